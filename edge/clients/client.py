"""The edge core's record of one client connection: identity, requests and session.

The loop has its own record (``LoopConnection``); this one is ``LoopConnection.context`` and holds data that is used
once per connection or SUBSCRIBE, never per message.
"""

from typing import TYPE_CHECKING

import msgspec

from edge.clients.phase import TRANSITIONS, ClientPhase
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
    address: tuple[str, int] | None = None  # of the PROXY header
    seat: "ConnectionSlot | None" = None  # its slot at the listener; None: not admitted yet, or a loop without sockets
    port: int = 0  # at the other end of its socket, 0: unknown
    phase: str = ClientPhase.NEW
    is_new: bool = True  # no CONNECT received
    connect: Connect | None = None
    authentication: Authentication | None = None  # if CONNECT named a method
    principal: "Principal | None" = None  # identity that the listener's chain authenticated; None: not yet
    rights: "ConnectionRights | None" = None  # None: no rules are attached
    bounds: "Bounds | None" = None  # from its authentication on
    renewals: int = 0  # how often its rights were replaced
    login: object = None  # of edge/login, while a login is in progress
    client_id: str = ""
    version: int = 4
    bridge: bool = False  # another broker: each of its subscriptions has No Local and Retain As Published
    partition: int = -1
    owner_epoch: int = 0
    session: int = 0  # 0: ephemeral
    expiry_s: int = 0
    receive_maximum: int = 65_535  # of CONNECT, within its bounds
    opened_at: float = 0.0  # when its session opened
    clean_start: bool = False
    clean: bool = False  # its will does not fire: DISCONNECT 0x00 was received, or it was banned
    counted_as: str = ""  # user that its connection counts for
    session_tokens: tuple[str, ...] = ()  # rate buckets charged for a session that its claim may create
    opening: OpenSession | None = None  # unanswered request
    wants_reason_strings: bool = (
        False  # Reason Strings besides CONNACK and DISCONNECT [MQTT-3.1.2-29]; set with its session
    )
    has_will: bool = False
    will_at_once: bool = False  # it fires if the connection ends without DISCONNECT 0x00
    end_code: int = -1  # reason code of its disconnection by either side; -1: none
    close_by: float = 0.0  # deadline of closing its socket after a reported DISCONNECT 0x00; 0: none was reported
    filter_interval_ns: int = 0  # of its SUBSCRIBE rate, 0: unlimited
    holds: set[str] = set()  # filters with live copies held until the retained messages are sent
    partial: set[str] = set()  # partly granted filters: each delivery by them is authorized
    judge_pushes: bool = False  # each push is authorized: a filter is partial, or a policy step removed rights
    subscriptions: dict[str, SessionSubscription] = {}  # of an ephemeral session; storage has the others

    def __post_init__(self) -> None:
        """Copy the connection's number."""
        self.number = self.conn.number

    def enter(self, phase: str) -> None:
        """Enter a phase; ``edge/clients/phase.py`` lists the allowed transitions."""
        assert phase in TRANSITIONS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase

    @property
    def known_bounds(self) -> "Bounds":
        """The bounds of an authenticated client."""
        assert self.bounds is not None
        return self.bounds

    @property
    def was_open(self) -> bool:
        """Whether CONNACK 0x00 was sent: it clears the CONNECT."""
        return self.connect is None and self.owner_epoch > 0

    @property
    def is_plain(self) -> bool:
        """Whether its end affects only its partition: no durable session, will, filter, or login in progress."""
        return not (self.session or self.has_will or self.subscriptions or self.login is not None)

    @property
    def owner(self) -> str:
        """User that its session belongs to, "" for an anonymous client."""
        return self.principal.user if self.principal is not None else ""

    @property
    def owner_made(self) -> int:
        """Policy epoch at which that user was created, 0 if it is not a user of the cluster."""
        return self.principal.made if self.principal is not None else 0
