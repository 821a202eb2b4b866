"""Which byte protocols stand between a listener's sockets and MQTT: PROXY header, WebSocket, both, or none.

What a listener needs is imported when the listener is made: not for those that need none, and not by a first client.
"""

from collections.abc import Callable

from edge.hot.options import StreamFilter

__all__ = ["listener_filter"]


def listener_filter(protocol: str, proxy_protocol: str) -> Callable[[], StreamFilter | None]:
    """Return what makes a fresh filter for each connection, or None where MQTT comes as it is."""
    inner: Callable[[], StreamFilter | None] = _none
    if protocol == "ws":
        from edge.websocket import WebSocketServer

        inner = WebSocketServer
    if proxy_protocol == "none":
        return inner
    from edge.proxy_protocol import ProxyHeader

    return lambda: ProxyHeader(proxy_protocol, inner())


def _none() -> None:
    return None
