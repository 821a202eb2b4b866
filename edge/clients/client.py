"""One client connection as the edge core knows it: who it is, what it asked for, where its session lives.

The hot loop has its own record (``LoopConnection``); this one is ``LoopConnection.context`` and holds what is needed
once per connection or per SUBSCRIBE, never per message.
"""

from typing import TYPE_CHECKING

import msgspec

from edge.clients.phase import WAYS, ClientPhase
from edge.login.auth_packets import Authentication
from edge.loop.options import StreamFilter
from edge.loop.state import LoopConnection
from edge.node.limits import ListenerPolicy
from mqtt.packets import Connect
from wire.messages.sessions import OpenSession, SessionSubscription

if TYPE_CHECKING:
    from access.identity.principal import Principal
    from access.rules.rights import ConnectionRights
    from edge.listeners.admission_control import ConnectionSlot
    from edge.listeners.proxied_socket import ProxiedSocket
    from edge.rights.bounds import Bounds

__all__ = ["Client"]


class Client(msgspec.Struct, eq=False):  # made for each connection, and in C
    """One client connection."""

    conn: LoopConnection
    policy: ListenerPolicy
    stream_filter: StreamFilter | None = None
    first_bytes: "ProxiedSocket | None" = None
    number: int = 0  # of the connection
    address: tuple[str, int] | None = None  # what a PROXY header said
    seat: "ConnectionSlot | None" = None  # its place at the listener; None: not taken yet, or a loop without sockets
    port: int = 0  # at the other end of its socket, 0: not known
    phase: str = ClientPhase.NEW
    is_new: bool = True  # it has not sent CONNECT
    connect: Connect | None = None
    authentication: Authentication | None = None  # if CONNECT named a method
    principal: "Principal | None" = None  # whom the listener's chain let in; None: no chain has judged it
    rights: "ConnectionRights | None" = None  # None: no rules are joined
    bounds: "Bounds | None" = None  # from when it was let in
    renewals: int = 0  # how often its rights were replaced by others
    login: object = None  # of edge/login, while it is under way
    client_id: str = ""
    version: int = 4
    bridge: bool = False  # another broker: each of its subscriptions has No Local and Retain As Published
    partition: int = -1
    owner_epoch: int = 0
    session: int = 0  # 0: ephemeral
    expiry_s: int = 0
    receive_maximum: int = 65_535  # as it said in CONNECT, within its bounds
    opened_at: float = 0.0  # when its session was open
    clean_start: bool = False
    clean: bool = False  # its will does not fire: DISCONNECT 0x00 was read, or it was banned
    counted_as: str = ""  # user whose connections it is among
    session_tokens: tuple[str, ...] = ()  # whose buckets paid for a session which its claim may make
    opening: OpenSession | None = None  # not answered yet
    takes_reasons: bool = False  # Reason Strings beside CONNACK and DISCONNECT [MQTT-3.1.2-29]; set with its session
    has_will: bool = False
    will_at_once: bool = False  # it fires when the connection ends without DISCONNECT 0x00
    end_code: int = -1  # by which it was disconnected, by itself or by us; -1: by none
    leaves_at: float = 0.0  # when its socket is closed at the latest after a reported DISCONNECT 0x00; 0: none was
    filter_gap_ns: int = 0  # of the rate of its SUBSCRIBEs, 0: none
    holds: set[str] = set()  # filters whose live copies wait for the retained ones
    partial: set[str] = set()  # filters that were granted in part: each delivery by them is judged
    judge_pushes: bool = False  # each push is judged: a filter is partial, or a step took rights
    subscriptions: dict[str, SessionSubscription] = {}  # ephemeral sessions only; durable ones' stand in storage

    def __post_init__(self) -> None:
        """Take the connection's number."""
        self.number = self.conn.number

    def enter(self, phase: str) -> None:
        """Go to a phase; the ways are those of ``edge/clients/phase.py``."""
        assert phase in WAYS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase

    @property
    def known_bounds(self) -> "Bounds":
        """The bounds of a client that was let in."""
        assert self.bounds is not None
        return self.bounds

    @property
    def was_open(self) -> bool:
        """Whether it has, or had, CONNACK 0x00: its CONNECT is forgotten with that."""
        return self.connect is None and self.owner_epoch > 0

    @property
    def is_plain(self) -> bool:
        """Whether its end concerns its partition alone: no stored session, will, filter, or login under way."""
        return not (self.session or self.has_will or self.subscriptions or self.login is not None)

    @property
    def owner(self) -> str:
        """User that its session belongs to, "" for an anonymous one."""
        return self.principal.user if self.principal is not None else ""

    @property
    def owner_made(self) -> int:
        """Policy epoch at which that user was made, 0 for one that is none of the cluster's."""
        return self.principal.made if self.principal is not None else 0
