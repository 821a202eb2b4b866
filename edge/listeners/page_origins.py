"""Checks which web pages may open a WebSocket of a listener.

Only browsers send Origin, and they let any page open a WebSocket to any host, with the client's certificate. Without a
list of origins a page must belong to the listener: scheme, host and port of Origin are those of the request, and the
host is a name of the listener. The last check stops DNS rebinding (``conf/served_hosts.py``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from conf.served_hosts import ServedHosts, parse_host, same_origin
from wire.decoding import plain_text

__all__ = ["PageOrigins", "RefusedPage"]

ORIGIN_REFUSED = "websocket_origins_refused"
HOST_REFUSED = "websocket_hosts_refused"


class RefusedPage(NamedTuple):
    """A refused handshake, for the log; untrusted texts are shortened and escaped."""

    counter: str
    origin: str
    host: str
    why: str


class PageOrigins:
    """The pages of one listener.

    Args:
        listed: Origins that may connect; none: those of the listener itself.
        scheme: Of the listener's own pages: "http", or "https" with TLS.
        hosts: Its names.
    """

    def __init__(self, listed: Sequence[str] = (), scheme: str = "http", hosts: ServedHosts | None = None) -> None:
        self._listed = frozenset(origin.lower() for origin in listed)
        self._scheme = scheme
        self._hosts = ServedHosts() if hosts is None else hosts

    def refuse(self, origins: Sequence[str], host: str, local: str) -> RefusedPage | None:
        """Return why a handshake is refused, None if it is not.

        Args:
            origins: Values of its Origin headers.
            host: Value of its Host header.
            local: Local address of the connection.
        """
        if not origins:
            return None
        counter, why = self._check(origins, host, local)
        return RefusedPage(counter, plain_text(" ".join(origins)), plain_text(host), why) if counter else None

    def _check(self, origins: Sequence[str], host: str, local: str) -> tuple[str, str]:
        if len(origins) > 1:
            return ORIGIN_REFUSED, "more than one Origin header"
        if self._listed:
            listed = origins[0].lower() in self._listed
            return ("", "") if listed else (ORIGIN_REFUSED, "the listener's `origins` does not list it")
        asked = parse_host(host)
        if asked is None or not same_origin(origins[0], self._scheme, asked):
            return (
                ORIGIN_REFUSED,
                f"not a page of this listener ({self._scheme}://); list it in the listener's `origins`",
            )
        if not self._hosts.serves(asked, local):
            return (
                HOST_REFUSED,
                "no host name of the listener; set its `advertise`, or list the page in `origins`",
            )
        return "", ""
