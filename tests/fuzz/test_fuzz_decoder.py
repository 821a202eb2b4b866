"""Two seconds of the decoder's fuzz target with a fixed seed, in every run."""

import random

from tests.fuzz.fuzz_decoder import CORPUS, check
from tests.fuzz.one_target import run_target
from tests.fuzz.targets import TARGETS


def test_corpus() -> None:
    """Every golden packet, decoded in every mode."""
    for raw in CORPUS:
        for choice in range(0, 256, 5):
            check(bytes((choice,)) + raw)


def test_mutations() -> None:
    """Damaged golden packets raise only RemoteProtocolError."""
    decoder = next(target for target in TARGETS if target.name == "decoder")
    cases, culprit = run_target(decoder, seed=20_240_601, seconds=2.0)
    assert culprit is None
    assert cases > 500


def test_noise() -> None:
    """So does random input."""
    rng = random.Random(3)
    for _ in range(2000):
        check(rng.randbytes(rng.randint(0, 64)))
