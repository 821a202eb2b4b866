"""Connections whose TLS ends at the balancer: the handshake, what it says of the client, and the relay of it.

Each has two tasks of trio; who has many lets another program end TLS (docs/balancing.md has the prices).
"""

import socket
import ssl

import trio

from gateways.balancer.proxy_header import TlsFacts

__all__ = ["relay_secured", "secure", "tls_facts"]

READ_BYTES = 64 * 1024
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


async def relay_secured(secured: Secured, edge: socket.socket, first: bytes) -> None:
    """Move bytes both ways until both ends are done, or one fails."""
    plain = trio.SocketStream(trio.socket.from_stdlib_socket(edge))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_to_edge, secured, plain, first)
            while data := await plain.receive_some(READ_BYTES):
                await secured.send_all(data)
            nursery.cancel_scope.cancel()  # TLS has no half-close that clients understand
    except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        pass
    finally:
        with trio.move_on_after(1.0, shield=True):
            await secured.aclose()
        await trio.aclose_forcefully(plain)


async def _to_edge(secured: Secured, plain: trio.SocketStream, first: bytes) -> None:
    if first:
        await plain.send_all(first)
    while data := await secured.receive_some(READ_BYTES):
        await plain.send_all(bytes(data))
    await plain.send_eof()
