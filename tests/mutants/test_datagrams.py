"""Every rule of datagram nodes is missed by the test that is named for it."""

import pytest

from tests.mutants.datagrams import DATAGRAMS
from tests.mutants.seeded import SeededBug, caught_by


@pytest.mark.parametrize("rule", DATAGRAMS, ids=lambda rule: rule.name)
def test_removed_datagram_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
