"""Names of secrets, and names that only sound like it."""

import pytest

from conf.secret_names import is_secret_name


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("edge.listeners.plain.token_secret", True),
        ("http_password", True),
        ("passwords_old", True),  # nobody thought of it: hidden
        ("token", True),
        ("private_key", True),
        ("edge.listeners.plain.token_secret_algorithm", False),
        ("bridge.password_file", False),
        ("scram_secret_file", False),
        ("token_audience", False),
        ("edge.secret.name", False),  # a listener may be called so
    ],
)
def test_a_name_with_the_word_is_a_secrets_unless_it_ends_as_something_about_one(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret
