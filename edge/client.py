"""One client connection as the edge core knows it: who it is, what it asked for, where its session lives.

The hot loop has its own record (``Conn``); this one is ``Conn.owner`` and holds what is needed once per connection or
per SUBSCRIBE, never per message.
"""

from edge.hot.state import Conn
from edge.settings import ListenerPolicy
from mqtt.packets import Connect
from wire.messages import Subscription

__all__ = ["Client", "Phase"]


class Phase:
    """Life of a connection; a packet that does not fit ends it."""

    NEW = "new"  # no CONNECT yet
    AUTHENTICATING = "authenticating"  # AUTH exchange before CONNACK
    OPENING = "opening"  # the claim is under way
    OPEN = "open"
    ENDED = "ended"


class Client:
    """One client connection."""

    __slots__ = (
        "address",
        "authentication",
        "clean",
        "client_id",
        "conn",
        "connect",
        "expiry_s",
        "identity",
        "number",
        "opened_at",
        "owner_epoch",
        "partition",
        "phase",
        "policy",
        "session",
        "subscriptions",
        "version",
    )

    def __init__(self, conn: Conn, policy: ListenerPolicy, address: tuple[str, int], now: float) -> None:
        self.conn = conn
        self.number = conn.number
        self.policy = policy
        self.address = address
        self.opened_at = now
        self.phase = Phase.NEW
        self.connect: Connect | None = None
        self.authentication: object = None  # the exchange under way, or the method of the connection
        self.identity = ""  # certificate's common name or user name; "" for anonymous
        self.client_id = ""
        self.version = 4
        self.partition = -1
        self.owner_epoch = 0
        self.session = 0  # 0: ephemeral
        self.expiry_s = 0
        self.clean = False  # DISCONNECT 0x00 was read
        self.subscriptions: dict[str, Subscription] = {}  # ephemeral sessions only; durable ones' stand in storage
