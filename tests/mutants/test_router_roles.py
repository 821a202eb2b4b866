"""Every rule of a router's role is missed by the test that is named for it."""

import pytest

from tests.mutants.router_roles import ROUTER_ROLES
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", ROUTER_ROLES, ids=lambda rule: rule.name)
def test_removed_router_role_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
