"""One client connection as the edge core knows it: who it is, what it asked for, where its session lives.

The hot loop has its own record (``Conn``); this one is ``Conn.owner`` and holds what is needed once per connection or
per SUBSCRIBE, never per message.
"""

from typing import TYPE_CHECKING

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


class Client:
    """One client connection."""

    __slots__ = (
        "address",
        "authentication",
        "bridge",
        "clean",
        "client_id",
        "conn",
        "connect",
        "expiry_s",
        "first_bytes",
        "has_will",
        "holds",
        "identity",
        "leaves_at",
        "number",
        "opened_at",
        "opening",
        "owner_epoch",
        "partition",
        "phase",
        "policy",
        "session",
        "session_token",
        "stream_filter",
        "subscriptions",
        "version",
    )

    def __init__(
        self,
        conn: Conn,
        policy: ListenerPolicy,
        now: float,
        stream_filter: StreamFilter | None = None,
        first_bytes: "ProxiedSocket | None" = None,
    ) -> None:
        self.conn = conn
        self.number = conn.number
        self.policy = policy
        self.address: tuple[str, int] | None = None  # what a PROXY header said
        self.first_bytes = first_bytes
        self.stream_filter = stream_filter
        self.opened_at = now
        self.phase = Phase.NEW
        self.connect: Connect | None = None
        self.authentication: Authentication | None = None  # if CONNECT named a method
        self.identity = ""  # whom the certificate or the exchange proved, else the user name given; "" for anonymous
        self.client_id = ""
        self.version = 4
        self.bridge = False  # another broker: each of its subscriptions has No Local and Retain As Published
        self.partition = -1
        self.owner_epoch = 0
        self.session = 0  # 0: ephemeral
        self.expiry_s = 0
        self.clean = False  # DISCONNECT 0x00 was read
        self.session_token: str | None = None  # the address that paid for a session which its claim may make
        self.opening: OpenSession | None = None  # not answered yet
        self.has_will = False
        self.leaves_at = 0.0  # when its socket is closed at the latest after a reported DISCONNECT 0x00; 0: none was
        self.holds: dict[str, Conn] = {}  # filter: where its live copies wait for the retained ones
        self.subscriptions: dict[str, Subscription] = {}  # ephemeral sessions only; durable ones' stand in storage

    def enter(self, phase: str) -> None:
        """Go to a phase; the ways are those of ``edge/clients/phase.py``."""
        assert phase in WAYS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase
