"""The byte protocols between a listener's sockets and MQTT: a PROXY header, a WebSocket, both, or none.

Modules are imported when a listener needs them: not for other listeners, and not on a first client.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge.listeners.admission_control import Admit
from edge.loop.options import StreamFilter

if TYPE_CHECKING:
    from edge.listeners.page_origins import PageOrigins
    from edge.listeners.proxied_socket import ProxiedSocket, TrustedProxies

__all__ = ["ListenerAdmission", "listener_filter", "proxy_admission"]


class ListenerAdmission:
    """A listener behind a load balancer: its trusted networks, and the reader of its PROXY headers."""

    def __init__(self, trusted: "TrustedProxies", begin: "Callable[[Admit | None], ProxiedSocket]") -> None:
        self.trusted = trusted
        self.begin = begin


def proxy_admission(versions: str, networks: tuple[str, ...]) -> ListenerAdmission | None:
    """Return the reader of PROXY headers of "v1", "v2" or "any" version; None for "none"."""
    if versions == "none":
        return None
    from edge.listeners.proxied_socket import ProxiedSocket, TrustedProxies

    return ListenerAdmission(TrustedProxies(networks), lambda admit: ProxiedSocket(versions, admit))


def listener_filter(
    protocol: str, path: str = "", pages: "PageOrigins | None" = None, *, joined: bool = False
) -> Callable[[int, str], StreamFilter | None]:
    """Return a factory of the filter of each connection; its result is None for plain MQTT.

    It is called with the largest size of a client's packet in bytes, and the connection's local address.
    """
    if protocol != "ws":
        return _none
    from edge.listeners.websocket import WebSocketServer

    return lambda packet_bytes_max, local: WebSocketServer(path, pages, packet_bytes_max, joined, local)


def _none(packet_bytes_max: int, local: str) -> None:
    del packet_bytes_max, local  # plain MQTT
