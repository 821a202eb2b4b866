"""First bytes of a client where an edge is chosen by them: looked at in the kernel's buffer, or read from TLS.

What was only looked at is still there for the edge. The kernel wakes this process when CONNECT is whole, however small
the pieces are in which it comes.
"""

import socket

import trio

from gateways.balancer.first_bytes import bytes_wanted, read_connect
from gateways.balancer.tls_relay import Secured
from mqtt.packets import Connect

__all__ = ["peek_connect", "receive_connect"]

READ_BYTES = 16 * 1024


async def peek_connect(client: socket.socket, bytes_max: int) -> Connect | None:
    """Return the CONNECT that waits in a socket, None if the client is gone; the caller bounds the wait.

    Raises:
        WrongFirstBytes: There is none.
        OSError: The connection broke.
    """
    have = 0
    try:
        while True:
            await trio.lowlevel.wait_readable(client)
            try:
                data = client.recv(bytes_max + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if len(data) <= have:
                return None  # its end, behind what came
            connect = read_connect(data, bytes_max)
            if connect is not None:
                return connect
            have = len(data)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, bytes_wanted(data, bytes_max))
    finally:
        if have and client.fileno() >= 0:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def receive_connect(secured: Secured, bytes_max: int) -> tuple[Connect | None, bytes]:
    """Return the CONNECT that comes over TLS, None if the client is gone, and all bytes that came.

    Raises:
        WrongFirstBytes: There is none.
        trio.BrokenResourceError: The connection broke.
    """
    data = bytearray()
    while True:
        more = await secured.receive_some(READ_BYTES)
        data += more
        if not more:
            return None, bytes(data)
        connect = read_connect(data, bytes_max)
        if connect is not None:
            return connect, bytes(data)
