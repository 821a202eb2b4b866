"""A few random seeds of the whole cluster in both modes; many more run by ``make sim``. Failing ones come back here."""

import pytest

from tests.simulation.faults import Fault
from tests.simulation.simulation import Mode, Options, run_seed

REGRESSIONS: list[tuple[int, Mode, float]] = [
    (2, "liveness", 12.0),  # a backup matched far behind: the window was counted from 0, and streaming stopped
    (13, "safety", 20.0),  # an answer to an older AddRoutes spoke for a later holder: a message was lost
    (14, "liveness", 20.0),  # an OpenSession sent again took over itself and fired its own will
    (23, "liveness", 20.0),  # an edge with a waiting report of DISCONNECT 0x00 claimed nothing: the will fired
    (211, "safety", 8.0),  # the harness: a timer of a clock that rounds was asked for without end
    (2013, "safety", 60.0),  # CONNECTs sent again to a new primary took over newer ones: wills twice
    (2023, "safety", 60.0),  # QoS 2 repeated through another edge reached an ephemeral subscriber twice
    (2027, "liveness", 60.0),  # DISCONNECT 0x00 was confirmed by the close before its partition knew
    (3014, "liveness", 60.0),  # what was held for one subscription was overtaken by what another one got
    (4009, "safety", 60.0),  # retained copies that were older than what had come live
    (3034, "safety", 60.0),  # an edge followed a former life of a router: its map stood still
]


@pytest.mark.parametrize("seed", range(1_000, 1_010))
def test_random_seed(seed: int) -> None:
    mode: Mode = "liveness" if seed % 3 == 0 else "safety"
    result = run_seed(seed, Options(mode=mode, seconds=4.0))
    assert not result.failures, result.failures


@pytest.mark.parametrize("seed", [1, 20])
def test_flipped_bits_of_one_node_lose_nothing(seed: int) -> None:
    """R3: a damaged disk is noticed when it is read, put aside, and rebuilt from another copy; clocks drift."""
    faults = (Fault(0.5, 0.8, "flip_bits", "s1", "", 8.0), Fault(1.5, 1.6, "kill", "s2"))
    options = Options(seconds=2.5, hardware=True, faults=faults, works=("queue",), log=True)
    result = run_seed(seed, options)
    assert not result.failures, result.failures
    assert any("its disk is damaged" in line for line in result.log)


@pytest.mark.parametrize(("seed", "mode", "seconds"), REGRESSIONS)
@pytest.mark.slow
def test_seed_that_failed(seed: int, mode: Mode, seconds: float) -> None:
    result = run_seed(seed, Options(mode=mode, seconds=seconds))
    assert not result.failures, result.failures
