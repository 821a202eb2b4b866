"""Every rule of identity is missed by the test that is named for it."""

import pytest

from tests.mutants.access_rules import ACCESS_RULES
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", ACCESS_RULES, ids=lambda rule: rule.name)
def test_removed_identity_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
