"""TLS-terminated connections: handshake, facts about the client, and relay to the edge.

Each connection needs two trio tasks. For many connections terminate TLS in another program (costs: docs/balancing.md).
"""

import socket
import ssl

import trio

from gateways.balancer.proxy_header import TlsFacts
from gateways.balancer.relay import LINGER_CHECK_S, LINGER_S

__all__ = ["SecuredPump", "secure", "tls_facts"]

READ_BYTES = 64 * 1024
TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2 = 1, 4, 5  # of the kernel: the peer has not closed
Secured = trio.SSLStream[trio.SocketStream]


async def secure(client: socket.socket, context: ssl.SSLContext) -> Secured:
    """Do the TLS handshake of a client's connection; the caller bounds the wait.

    Raises:
      trio.BrokenResourceError: The handshake failed.
    """
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
    secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    await secured.do_handshake()
    return secured


def tls_facts(secured: Secured) -> TlsFacts:
    """Return the handshake's facts; the common name only of a verified certificate that has exactly one."""
    certificate = secured.getpeercert() or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return TlsFacts(secured.version() or "", names[0] if len(names) == 1 else "")


class SecuredPump:
    """All relayed connections with TLS terminated here.

    As in ``relay``, an edge that closed waits at most ``LINGER_S`` for its client.
    """

    def __init__(self) -> None:
        self._relayed = 0
        self._sending: dict[trio.CancelScope, trio.SocketStream] = {}  # edge by send to a client in progress
        self._left: dict[trio.CancelScope, float] = {}  # when an edge's close was detected during a send

    def __len__(self) -> int:
        return self._relayed

    async def run(self) -> None:
        """Until cancelled, cancel sends to clients that do not read after their edge has closed."""
        while True:
            await trio.sleep(LINGER_CHECK_S)
            now = trio.current_time()
            for scope, edge_stream in list(self._sending.items()):
                if _has_closed(edge_stream) and now - self._left.setdefault(scope, now) >= LINGER_S:
                    scope.cancel()

    async def relay(self, secured: Secured, edge: socket.socket, first: bytes) -> None:
        """Relay bytes both ways until both ends are closed, or one fails."""
        edge_stream = trio.SocketStream(trio.socket.from_stdlib_socket(edge))
        scope = trio.CancelScope()
        self._relayed += 1
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_to_edge, secured, edge_stream, first)
                    while data := await edge_stream.receive_some(READ_BYTES):
                        self._sending[scope] = edge_stream
                        await secured.send_all(data)
                        del self._sending[scope]
                    nursery.cancel_scope.cancel()  # clients do not support half-closed TLS
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            self._relayed -= 1
            self._sending.pop(scope, None)
            self._left.pop(scope, None)
            with trio.move_on_after(1.0, shield=True):
                await secured.aclose()
            await trio.aclose_forcefully(edge_stream)


def _has_closed(edge: trio.SocketStream) -> bool:
    """Return whether an edge has closed, even if unread bytes remain."""
    state = edge.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return isinstance(state, bytes) and state[0] not in (TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2)


async def _to_edge(secured: Secured, edge_stream: trio.SocketStream, first: bytes) -> None:
    if first:
        await edge_stream.send_all(first)
    while data := await secured.receive_some(READ_BYTES):
        await edge_stream.send_all(bytes(data))
    await edge_stream.send_eof()
