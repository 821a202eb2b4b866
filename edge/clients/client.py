"""One client connection as the edge core knows it: who it is, what it asked for, where its session lives.

The hot loop has its own record (``Conn``); this one is ``Conn.context`` and holds what is needed once per connection or
per SUBSCRIBE, never per message.
"""

from typing import TYPE_CHECKING

import msgspec

from edge.clients.auth_method import Exchange
from edge.clients.phase import WAYS, Phase
from edge.hot.options import StreamFilter
from edge.hot.state import Conn
from edge.node.limits import ListenerPolicy
from mqtt.packets import Connect
from mqtt.properties import PropertyId
from wire.messages.sessions import OpenSession, Subscription

if TYPE_CHECKING:
    from edge.listeners.proxied_socket import ProxiedSocket

__all__ = ["Authentication", "Client"]


class Authentication:
    """The method that CONNECT chose, and the exchange under way."""

    __slots__ = ("exchange", "final", "method")

    def __init__(self, method: str, exchange: Exchange) -> None:
        self.method = method
        self.exchange: Exchange | None = exchange  # None between exchanges
        self.final = b""  # data of the step that accepted, for CONNACK

    def connack_properties(self) -> dict[int, object]:
        """Return what CONNACK says about the exchange [MQTT-4.12.0-4]."""
        properties: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: self.method}
        if self.final:
            properties[PropertyId.AUTHENTICATION_DATA] = self.final
        return properties


class Client(msgspec.Struct, eq=False):  # made for each connection, and in C
    """One client connection."""

    conn: Conn
    policy: ListenerPolicy
    stream_filter: StreamFilter | None = None
    first_bytes: "ProxiedSocket | None" = None
    number: int = 0  # of the connection
    address: tuple[str, int] | None = None  # what a PROXY header said
    phase: str = Phase.NEW
    connect: Connect | None = None
    authentication: Authentication | None = None  # if CONNECT named a method
    identity: str = ""  # whom the certificate or the exchange proved, else the user name given; "" for anonymous
    client_id: str = ""
    version: int = 4
    bridge: bool = False  # another broker: each of its subscriptions has No Local and Retain As Published
    partition: int = -1
    owner_epoch: int = 0
    session: int = 0  # 0: ephemeral
    expiry_s: int = 0
    clean: bool = False  # DISCONNECT 0x00 was read
    session_token: str | None = None  # the address that paid for a session which its claim may make
    opening: OpenSession | None = None  # not answered yet
    has_will: bool = False
    leaves_at: float = 0.0  # when its socket is closed at the latest after a reported DISCONNECT 0x00; 0: none was
    holds: set[str] = set()  # filters whose live copies wait for the retained ones
    subscriptions: dict[str, Subscription] = {}  # ephemeral sessions only; durable ones' stand in storage

    def __post_init__(self) -> None:
        """Take the connection's number."""
        self.number = self.conn.number

    def enter(self, phase: str) -> None:
        """Go to a phase; the ways are those of ``edge/clients/phase.py``."""
        assert phase in WAYS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase
