"""Connections whose TLS ends at the balancer: the handshake, what it says of the client, and the relay of it.

Each has two tasks of trio; who has many lets another program end TLS (docs/balancing.md has the prices).
"""

import socket
import ssl

import trio

from gateways.balancer.proxy_header import TlsFacts
from gateways.balancer.relay import LINGER_S, LOOK_S

__all__ = ["SecuredPump", "secure", "tls_facts"]

READ_BYTES = 64 * 1024
TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2 = 1, 4, 5  # of the kernel: the other end has not closed
Secured = trio.SSLStream[trio.SocketStream]


async def secure(client: socket.socket, context: ssl.SSLContext) -> Secured:
    """Do the handshake of a client's connection; the caller bounds the wait.

    Raises:
        trio.BrokenResourceError: It failed.
    """
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
    secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    await secured.do_handshake()
    return secured


def tls_facts(secured: Secured) -> TlsFacts:
    """Return what the handshake said; the common name of a verified certificate that has exactly one."""
    certificate = secured.getpeercert() or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return TlsFacts(secured.version() or "", names[0] if len(names) == 1 else "")


class SecuredPump:
    """All relayed connections whose TLS ends here.

    An edge that has closed waits for its client ``LINGER_S`` at most, as in clear: one that does not read would hold
    both ends for ever.
    """

    def __init__(self) -> None:
        self._relayed = 0
        self._sending: dict[trio.CancelScope, trio.SocketStream] = {}  # to clients, just now: the edge of each
        self._left: dict[trio.CancelScope, float] = {}  # when an edge was seen to have closed meanwhile

    def __len__(self) -> int:
        return self._relayed

    async def run(self) -> None:
        """End those whose clients take nothing from an edge that has closed, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            now = trio.current_time()
            for scope, plain in list(self._sending.items()):
                if _has_left(plain) and now - self._left.setdefault(scope, now) >= LINGER_S:
                    scope.cancel()

    async def relay(self, secured: Secured, edge: socket.socket, first: bytes) -> None:
        """Move bytes both ways until both ends are done, or one fails."""
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(edge))
        scope = trio.CancelScope()
        self._relayed += 1
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_to_edge, secured, plain, first)
                    while data := await plain.receive_some(READ_BYTES):
                        self._sending[scope] = plain
                        await secured.send_all(data)
                        del self._sending[scope]
                    nursery.cancel_scope.cancel()  # TLS has no half-close that clients understand
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            self._relayed -= 1
            self._sending.pop(scope, None)
            self._left.pop(scope, None)
            with trio.move_on_after(1.0, shield=True):
                await secured.aclose()
            await trio.aclose_forcefully(plain)


def _has_left(edge: trio.SocketStream) -> bool:
    """Whether an edge has closed, though what it said before was not read yet."""
    state = edge.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return isinstance(state, bytes) and state[0] not in (TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2)


async def _to_edge(secured: Secured, plain: trio.SocketStream, first: bytes) -> None:
    if first:
        await plain.send_all(first)
    while data := await secured.receive_some(READ_BYTES):
        await plain.send_all(bytes(data))
    await plain.send_eof()
