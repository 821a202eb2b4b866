"""Every rule of routes, leases and placement is missed by the schedule that is named for it."""

import pytest

from tests.mutants.rules import RULES
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_removed_cluster_rule_is_detected(rule: SeededBug) -> None:
    """The schedule passes with the rule in place (also in tests/simulation), and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
