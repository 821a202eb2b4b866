"""Some of the cases of ``random_cases.py``; a night has a million of each."""

import pytest

from tests.access.rules.random_cases import PROPERTIES, run


@pytest.mark.parametrize("name", PROPERTIES)
def test_random_cases(name: str) -> None:
    """NIST: protect. Any user, client ID and rules: as the reference decides, never wider or granted too much."""
    assert run(name, 1, 0, 3_000) == ""
