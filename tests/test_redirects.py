"""No code that dials out follows a server's redirect, except by the rule of ``gateways/addresses.py``."""

import re
from pathlib import Path

from tests.packages import PACKAGES

ROOT = Path(__file__).parents[1]
FOLLOWS = re.compile(r"follow_redirects=(?!False)|urllib\.request|import requests|max_redirects")


def test_no_http_client_follows_redirects() -> None:
    """httpx and http.client follow none by default; libraries that do are not used."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for room in PACKAGES
        for path in (ROOT / room).rglob("*.py")
        for match in FOLLOWS.finditer(path.read_text())
    ]
    assert not found


def test_server_references_checked_in_one_place() -> None:
    """Code that reads the property of CONNACK or DISCONNECT calls the selector."""
    readers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gateways").rglob("*.py")
        if re.search(r"get\(PropertyId\.SERVER_REFERENCE", path.read_text())
    }
    assert readers == {"gateways/client.py"}
