"""Which byte protocols stand between a listener's sockets and MQTT: PROXY header, WebSocket, both, or none."""

from edge.hot.options import StreamFilter

__all__ = ["listener_filter"]


def listener_filter(protocol: str, proxy_protocol: str) -> StreamFilter | None:
    """Return a fresh filter for one connection, None where MQTT comes as it is."""
    from edge.proxy_protocol import ProxyHeader
    from edge.websocket import WebSocketServer

    inner: StreamFilter | None = WebSocketServer() if protocol == "ws" else None
    if proxy_protocol != "none":
        return ProxyHeader(proxy_protocol, inner)
    return inner
