"""Which byte protocols stand between a listener's sockets and MQTT: a PROXY header, a WebSocket, both, or none.

What a listener needs is imported when the listener is made: not for those that need none, and not by a first client.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge.listeners.admission_control import Admit
from edge.loop.options import StreamFilter

if TYPE_CHECKING:
    from edge.listeners.page_origins import PageOrigins
    from edge.listeners.proxied_socket import ProxiedSocket, TrustedProxies

__all__ = ["ListenerAdmission", "front_door", "listener_filter"]


class ListenerAdmission:
    """Where a load balancer stands before a listener: whose headers are believed, and what reads them."""

    def __init__(self, trusted: "TrustedProxies", begin: "Callable[[Admit | None], ProxiedSocket]") -> None:
        self.trusted = trusted
        self.begin = begin


def front_door(versions: str, networks: tuple[str, ...]) -> ListenerAdmission | None:
    """Return what takes PROXY headers of "v1", "v2" or "any" version; None for "none"."""
    if versions == "none":
        return None
    from edge.listeners.proxied_socket import ProxiedSocket, TrustedProxies

    return ListenerAdmission(TrustedProxies(networks), lambda admit: ProxiedSocket(versions, admit))


def listener_filter(
    protocol: str, path: str = "", pages: "PageOrigins | None" = None, *, joined: bool = False
) -> Callable[[int, str], StreamFilter | None]:
    """Return what makes a fresh filter for each connection, or None where MQTT comes as it is.

    It is called with the bytes that a client's packet may have, and the address that the connection
    came to.
    """
    if protocol != "ws":
        return _none
    from edge.listeners.websocket import WebSocketServer

    return lambda packet_bytes_max, local: WebSocketServer(path, pages, packet_bytes_max, joined, local)


def _none(packet_bytes_max: int, local: str) -> None:
    del packet_bytes_max, local  # MQTT as it comes
