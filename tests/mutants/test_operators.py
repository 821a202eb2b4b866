"""Every rule of the operators' surface is missed by the test that is named for it."""

import pytest

from tests.mutants.operators import OPERATORS
from tests.mutants.seeded import SeededBug, caught_by

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Litestar's, of forms of parameters


@pytest.mark.parametrize("rule", OPERATORS, ids=lambda rule: rule.name)
def test_removed_operator_rule_is_detected(rule: SeededBug) -> None:
    """The test passes with the rule in place, and fails without it."""
    rule.witness()
    assert caught_by(rule) is not None
