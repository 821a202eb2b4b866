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
    """An accepted connection and the facts known about its client.

    Attributes:
      client: The connection.
      settings: Settings of the listener that accepted it.
      accepted: Timestamp, boot clock.
      until: The connection is closed at this time if no edge has accepted it.
      wanted: The request to the directory.
      version: MQTT version, 0 before the CONNECT is read.
      first: Bytes that were read from TLS terminated here.
      secured: The TLS stream terminated here.
      tls: Facts of that TLS handshake.
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
