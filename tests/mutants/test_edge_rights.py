"""Every rule of rights at an edge is missed by the test that is named for it."""

import pytest

from tests.mutants.edge_rights import EDGE_RIGHTS
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", EDGE_RIGHTS, ids=lambda rule: rule.name)
def test_removed_edge_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
