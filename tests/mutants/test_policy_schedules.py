"""Every rule of docs/revocation.md is missed by the schedule that is named for it."""

import pytest

from tests.mutants.policy_schedules import POLICY_SCHEDULES
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", POLICY_SCHEDULES, ids=lambda rule: rule.name)
def test_removed_cluster_rule_is_detected(rule: SeededBug) -> None:
    """The schedule passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
