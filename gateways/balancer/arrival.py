"""One client between its arrival and its edge."""

import socket
from dataclasses import dataclass

import trio

from conf.balance_settings import BalanceListener
from gateways.balancer.directory import PlacementRequest
from gateways.balancer.proxy_header import TlsFacts

__all__ = ["Arrival"]


@dataclass(slots=True)
class Arrival:
    """A connection that was accepted, and what is known of its client.

    Attributes:
        client: The connection.
        settings: Of the listener at which it came.
        accepted: When, on the boot clock.
        until: When it is closed if no edge took it.
        wanted: What it asks of the directory.
        version: Of MQTT, 0 while no CONNECT was read.
        first: Bytes that were read, of TLS that ended here.
        secured: The connection within TLS that ended here.
        tls: What is known of that.
    """

    client: socket.socket
    settings: BalanceListener
    accepted: float
    until: float
    wanted: PlacementRequest
    version: int = 0
    first: bytes = b""
    secured: "trio.SSLStream[trio.SocketStream] | None" = None
    tls: TlsFacts | None = None
