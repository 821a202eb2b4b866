"""URLs as text, which may contain secrets: the only place that formats URLs.

The text has scheme, host, port and path of a URL; user information, query and fragment are ``***``. Code that shows a
URL calls ``shown_url``; foreign text, such as an exception's message, passes ``mask_urls``. Log events, errors of the
command line and support bundles pass it as a whole. Settings that name a server: ``url_settings.py``.
"""

import re

__all__ = ["HOST", "MASK", "mask_urls", "shown_url"]

MASK = "***"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# Host and port as in RFC 3986. ``host:port`` is also used literally in our own messages.
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(?::(?:\d*|port))?")
# In a text a URL ends at a space; quotes end host and path, because quoted URLs occur, but no quoted secrets.
IN_TEXT = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#]*@)?[^\s/?#\"'<>`]*[^\s?#\"'<>`]*(?:[?#]\S*)?"
)
CLOSING = "\"'`)]}>.,;:"


def shown_url(url: str) -> str:
    """Return a URL with possible secrets masked; an invalid one is masked after its scheme."""
    scheme, mark, rest = url.partition("://")
    if not mark or not SCHEME.fullmatch(scheme):
        scheme, mark, rest = "", "", url
    rest, has_fragment, _ = rest.partition("#")
    rest, has_query, _ = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not HOST.fullmatch(host):
        return f"{scheme}{mark}{MASK}"
    return "".join(
        (
            *(scheme, mark, MASK + at if at else user, host, slash, path),
            has_query + MASK if has_query else "",
            has_fragment + MASK if has_fragment else "",
        )
    )


def mask_urls(text: str) -> str:
    """Return a text with every URL masked as by ``shown_url``: for foreign texts, such as exceptions."""
    return IN_TEXT.sub(_masked, text) if "://" in text else text


def _masked(match: re.Match[str]) -> str:
    url = match[0]
    core = url.rstrip(CLOSING)  # closing punctuation is not part of the URL
    return shown_url(core) + url[len(core) :]
