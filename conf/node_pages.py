"""A node's own pages, ``/metrics``, ``/livez``, ``/startupz``, ``/readyz``, as an ASGI application without a framework.

A scrape blocks the event loop of a node with clients: four paths need no router and no request or response classes.
Decides status and text; ``conf/metrics.py`` has metrics and conditions.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from conf.served_hosts import ServedHosts, is_for

__all__ = ["NodePages"]

TEXT = b"text/plain; charset=utf-8"
FIGURES = b"text/plain; version=0.0.4; charset=utf-8"
MISDIRECTED = b"Host is no name of this node: ask by its address, or list the name in metrics.hosts\n"
Send = Callable[[dict[str, Any]], Awaitable[None]]


class NodeMetrics(Protocol):
    """Metrics and conditions of one node.

    Attributes:
        pages_misdirected: Requests for a host that is not a name of the node.
    """

    pages_misdirected: int

    @property
    def waits_for(self) -> Callable[[], str]:
        """Returns why the node is not ready, in one line; "" if it is."""

    async def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""

    def readiness(self) -> dict[str, bool]:
        """Return every condition of ``/readyz``."""

    def has_started(self) -> bool:
        """Return whether all conditions were met once."""


class NodePages:
    """The pages.

    Args:
        metrics: Their content.
        health_only: Serve no ``/metrics``: the address is reachable for many.
        hosts: Names of the node; requests for others are refused. None: any.
    """

    def __init__(self, metrics: NodeMetrics, *, health_only: bool, hosts: ServedHosts | None = None) -> None:
        self._metrics = metrics
        self._hosts = hosts
        self._health_only = health_only

    async def answer(self, scope: dict[str, Any], _receive: object, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # a WebSocket
            await send({"type": "websocket.close"})
            return
        if not is_for(self._hosts, scope):
            self._metrics.pages_misdirected += 1
            await _send_text(send, 421, MISDIRECTED)
            return
        status, kind, body = await self._found(scope["method"], scope["path"], scope.get("query_string", b""))
        length = str(len(body)).encode()
        headers = [(b"content-type", kind), (b"content-length", length)]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _found(self, method: str, path: str, query: bytes) -> tuple[int, bytes, bytes]:
        metrics = self._metrics
        if path not in ("/metrics", "/livez", "/startupz", "/readyz") or (path == "/metrics" and self._health_only):
            return 404, TEXT, b"Not Found"
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"Method Not Allowed"
        if path == "/metrics":
            return 200, FIGURES, await metrics.page()
        if path == "/livez":
            return 200, TEXT, b"ok\n"  # any answer shows that the event loop runs
        waits_for = metrics.waits_for() or "starting"
        if path == "/startupz":
            if metrics.has_started():
                return 200, TEXT, b"ok\n"
            return 503, TEXT, f"not started: {waits_for}\n".encode()
        checks = metrics.readiness()
        ready = bool(checks) and all(checks.values())  # none exist before the node has started
        text = "ok\n" if ready else f"not ready: {waits_for}\n"
        if b"verbose" in (part.partition(b"=")[0] for part in query.split(b"&")):
            text = "".join(f"{name}: {'ok' if passed else 'no'}\n" for name, passed in checks.items()) + text
        return 200 if ready else 503, TEXT, text.encode()


async def _send_text(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", TEXT), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
