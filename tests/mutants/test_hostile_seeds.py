"""A hostile seed detects each removed rule about the sender's role; with all rules it passes."""

import pytest

from tests.mutants.hostile_seeds import HOSTILE_SEEDS, MEMBERS_MESSAGES, SEED, without_role
from tests.mutants.seeded import SeededBug, caught_by
from tests.simulation.simulation import Options, run_seed


def test_the_seed_passes_with_all_rules() -> None:
    result = run_seed(SEED, Options(seconds=4.0, hostile=True))
    assert not result.failures, result.failures
    assert result.refused > 0


BUGS = [*HOSTILE_SEEDS[:2], *(pytest.param(bug, marks=pytest.mark.slow) for bug in HOSTILE_SEEDS[2:])]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_seeded_bug_is_detected(bug: SeededBug) -> None:
    assert caught_by(bug) is not None


@pytest.mark.slow
@pytest.mark.parametrize("message", MEMBERS_MESSAGES, ids=lambda message: str(message.__name__))
def test_message_allowed_to_every_sender_is_detected(message: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender column of the table of rights, row by row, at routers: other nodes accept no link of an outsider."""
    name = message.__struct_config__.tag  # type: ignore[attr-defined]
    without_role(message)(monkeypatch)
    options = Options(seconds=4.0, hostile=True)
    failures = (failure for seed in range(SEED, SEED + 10) for failure in run_seed(seed, options).failures)
    assert any(f"took {name} of" in failure for failure in failures)
