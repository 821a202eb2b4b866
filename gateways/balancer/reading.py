"""CONNECT of a client before an edge is chosen: peeked from the kernel's buffer, or read from TLS.

Peeked bytes remain for the edge. SO_RCVLOWAT makes the kernel wake this process only when the CONNECT is complete.
"""

import socket

import trio

from gateways.balancer.first_bytes import bytes_wanted, read_connect
from gateways.balancer.tls_relay import Secured
from mqtt.packets import Connect

__all__ = ["peek_connect", "receive_connect"]

READ_BYTES = 16 * 1024


async def peek_connect(client: socket.socket, bytes_max: int) -> Connect | None:
    """Return the CONNECT in a socket's buffer, None if the client closed; the caller bounds the wait.

    Raises:
      WrongFirstBytes: The bytes are no CONNECT.
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
                return None  # end of stream after the received bytes
            connect = read_connect(data, bytes_max)
            if connect is not None:
                return connect
            have = len(data)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, bytes_wanted(data, bytes_max))
    finally:
        if have and client.fileno() >= 0:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def receive_connect(secured: Secured, bytes_max: int) -> tuple[Connect | None, bytes]:
    """Return the CONNECT received over TLS, None if the client closed, and all received bytes.

    Raises:
      WrongFirstBytes: The bytes are no CONNECT.
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
