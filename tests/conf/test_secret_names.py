"""Names of secrets, and names that are only similar."""

import pytest

from conf.secret_names import is_secret_name


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("edge.listeners.plain.token_secret", True),
        ("http_password", True),
        ("passwords_old", True),  # unknown: masked
        ("token", True),
        ("private_key", True),
        ("edge.listeners.plain.token_secret_algorithm", False),
        ("bridge.password_file", False),
        ("scram_secret_file", False),
        ("token_audience", False),
        ("edge.secret.name", False),  # a listener may have this name
    ],
)
def test_is_secret_name_by_words(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret
