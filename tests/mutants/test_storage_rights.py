"""Every rule of rights at storage is missed by the test that is named for it."""

import pytest

from tests.mutants.seeded import SeededBug, caught_by
from tests.mutants.storage_rights import STORAGE_RIGHTS


@pytest.mark.parametrize("rule", STORAGE_RIGHTS, ids=lambda rule: rule.name)
def test_removed_storage_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
