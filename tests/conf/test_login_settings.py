"""Settings of logins that are contradictory or ineffective."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from conf.edge_settings import ListenerSettings

FILE = Path("x.pem")


def listener(**settings: Any) -> ListenerSettings:
    return ListenerSettings(name="l", port=0, tls=False, **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authentication": ("http",)}, "needs http_url"),
        ({"authentication": ("scram",), "http_url": "https://a/"}, 'for the step "http"'),
        ({"http_acl": True}, "need http_url"),
        ({"http_superuser_role": "boss", "http_url": "https://a/"}, "roles_file or cluster_roles"),
        ({"http_url": "http://localhost:1/", "http_ca": FILE}, "begins with https"),
        ({"http_url": "https://a/", "http_key": FILE}, "go together"),
        ({"ocsp": "soft"}, "go together"),
        ({"ocsp_url": "http://a/"}, "go together"),
        ({"ocsp": "require", "ocsp_url": "http://a/"}, "needs client_ca"),
        ({"cluster_users": True, "authentication": ("certificate",)}, '"password" and "scram"'),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        listener(**settings)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://auth.example/mqtt?site=1", True),
        ("http://127.0.0.1:8080/auth", True),
        ("http://[::1]/auth", True),
        ("http://auth.example/", False),
        ("http://localhost.example/", False),
        ("http://localhost:1@auth.example/", False),
        ("https://user:word@auth.example/", False),
        ("https://a b/", False),
        ("ftp://127.0.0.1/", False),
        ("file:///etc/passwd", False),
    ],
)
def test_callout_url_needs_tls_or_loopback(url: str, taken: bool) -> None:
    """Passwords are sent there: TLS, or this machine."""
    if taken:
        assert listener(http_url=url).http_url.plain == url
    else:
        with pytest.raises(ValidationError):
            listener(http_url=url)
