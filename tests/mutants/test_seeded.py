"""Every seeded bug is noticed by the test that is named for it; without the bug that test passes."""

from collections.abc import Callable

import pytest

from tests.mutants.scenarios import SCENARIOS
from tests.mutants.seeded import BUGS, SeededBug, caught_by


@pytest.mark.parametrize("name", sorted(vars(SCENARIOS)))
def test_scenario_passes_without_a_bug(name: str) -> None:
    scenario: Callable[[], None] = getattr(SCENARIOS, name)
    scenario()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_seeded_bug_is_detected(bug: SeededBug) -> None:
    bug.witness()
    assert caught_by(bug) is not None


def test_table_has_minimum_size_and_unique_names() -> None:
    assert len(BUGS) >= 20
    assert len({bug.name for bug in BUGS}) == len(BUGS)
