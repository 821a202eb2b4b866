"""URLs as text, which may carry secrets: the one place where a URL becomes text.

Text has scheme, host, port and path of a URL; user information, query and fragment are ``***``. Whatever shows a URL
calls ``shown_url``; a text that others wrote, such as the message of an exception, passes ``mask_urls``. Log events,
errors of the command line and support bundles pass it as a whole. Settings that name a server: ``url_settings.py``.
"""

import re

__all__ = ["HOST", "MASK", "mask_urls", "shown_url"]

MASK = "***"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# Host and port as RFC 3986 has them. ``host:port`` with the word is how our own messages say what to write.
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(?::(?:\d*|port))?")
# In a text a URL ends at a space; quotes end host and path, because a text may quote a URL, but no secret.
IN_TEXT = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#]*@)?[^\s/?#\"'<>`]*[^\s?#\"'<>`]*(?:[?#]\S*)?"
)
CLOSING = "\"'`)]}>.,;:"


def shown_url(url: str) -> str:
    """Return a URL without what may be secret; of a text that is no URL as little as of one with a wrong host."""
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
    """Return a text in which every URL is as ``shown_url`` has it: for texts that others wrote, such as exceptions."""
    return IN_TEXT.sub(_masked, text) if "://" in text else text


def _masked(match: re.Match[str]) -> str:
    url = match[0]
    core = url.rstrip(CLOSING)  # what closes a sentence or a quotation is not the URL's
    return shown_url(core) + url[len(core) :]
