"""Some of the cases of ``random_cases.py``; a nightly run has a million of each."""

import pytest

from tests.access.rules.random_cases import PROPERTIES, run


@pytest.mark.parametrize("name", PROPERTIES)
def test_random_cases(name: str) -> None:
    """Any user, client ID and rules: decided like the reference, never wider or granted too much."""
    assert run(name, 1, 0, 3_000) == ""
