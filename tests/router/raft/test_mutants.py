"""Every seeded bug is detected, by its script or within its number of seeds."""

import pytest

from tests.mutants.raft import MUTANTS
from tests.mutants.raft_mutant import Mutant

FAST_SEEDS = 20  # mutants that may need more run with the slow tests


def _slow(mutant: Mutant) -> bool:
    return mutant.caught_by != "script" and mutant.seeds > FAST_SEEDS


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] if _slow(mutant) else []) for mutant in MUTANTS],
)
def test_seeded_bug_is_caught(mutant: Mutant) -> None:
    """A rule without a test that fails in its absence is not tested."""
    assert mutant.first_catch() is not None


def test_there_are_at_least_ten() -> None:
    """The routing tier's minimum."""
    assert len(MUTANTS) >= 10
