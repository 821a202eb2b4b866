"""Gossip's two sockets, UDP and TCP on one port."""

import socket
from errno import EADDRINUSE

import trio

from membership.packets import Address

__all__ = ["advertised_address", "bind_sockets", "resolve_bind"]

BIND_ATTEMPTS = 32  # for port 0: the free TCP port may be taken for UDP
BACKLOG = 64


async def resolve_bind(host: str, port: int) -> tuple[int, Address]:
    """Resolve the address to bind; the first result is used.

    Returns:
        The address family, and a numeric address.

    Raises:
        OSError: The host does not resolve.
    """
    family, _, _, _, found = (await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    return int(family), (str(found[0]), int(found[1]))


def bind_sockets(family: int, address: Address, receive_buffer_bytes: int) -> tuple[socket.socket, socket.socket]:
    """Bind UDP and TCP to the same port, both non-blocking, TCP listening.

    Raises:
        OSError: The port is taken, or the host is not ours.
    """
    for attempt in range(BIND_ATTEMPTS):
        stream = socket.socket(family, socket.SOCK_STREAM)
        datagram = socket.socket(family, socket.SOCK_DGRAM)
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stream.bind(address)
            datagram.bind((address[0], stream.getsockname()[1]))
            datagram.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            stream.listen(BACKLOG)
        except OSError as error:
            stream.close()
            datagram.close()
            if error.errno == EADDRINUSE and address[1] == 0 and attempt < BIND_ATTEMPTS - 1:
                continue
            raise
        stream.setblocking(False)
        datagram.setblocking(False)
        return datagram, stream
    raise AssertionError("unreachable")


def advertised_address(bound: Address, asked: Address | None, towards: str | None) -> Address:
    """Return the address to advertise.

    Args:
        bound: Bound address of the sockets.
        asked: Configured address; port 0 means the bound one.
        towards: The local address towards the seeds, if there are any.

    Raises:
        ValueError: The sockets are bound to all addresses, and no reachable one is configured.
    """
    host, port = bound
    if asked is not None:
        return asked[0], asked[1] or port
    if host in ("0.0.0.0", "::"):
        if towards is None:
            raise ValueError(f"gossip is bound to {host}: set membership.advertise to an address others can reach")
        return towards, port
    return host, port
