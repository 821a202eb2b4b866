"""Input and output of the SWIM core.

``Swim.handle(now, event)`` takes one of the inputs and returns a ``SwimReady``. Timers are inputs too (``SwimTick``).
Services receive the node events, which are hints and not decisions (``docs/membership.md``).
"""

from dataclasses import dataclass
from math import inf

from membership.members import MemberView
from membership.metadata import NodeMetadata
from membership.packets import Address, MemberRecord, Message

__all__ = [
    "ExchangeFailed",
    "Input",
    "LeaveCompleted",
    "LeaveRequested",
    "MessagesReceived",
    "MetadataChanged",
    "NodeEvent",
    "NodeJoin",
    "NodeLeave",
    "NodeUpdate",
    "OutgoingDatagram",
    "RecordsReceived",
    "Resync",
    "SeedsResolved",
    "StateExchange",
    "Superseded",
    "SwimReady",
    "SwimTick",
]


@dataclass(frozen=True, slots=True)
class SwimTick:
    """The next deadline has passed."""


@dataclass(frozen=True, slots=True)
class MessagesReceived:
    """One opened datagram, from a known session and with a new packet number."""

    sender_session: int
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class RecordsReceived:
    """The peer's half of a full exchange.

    ``initiated``: this member requested it; the records are then the cluster's view, perhaps of a former local process.
    """

    records: list[MemberRecord]
    initiated: bool


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """A full exchange that the core requested has failed."""

    address: Address


@dataclass(frozen=True, slots=True)
class SeedsResolved:
    """The current addresses of the seeds; replaces the former ones."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The local service changed its metadata."""

    metadata: NodeMetadata


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Announce the leave, then stop sending."""


Input = (
    SwimTick | MessagesReceived | RecordsReceived | ExchangeFailed | SeedsResolved | MetadataChanged | LeaveRequested
)


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A member became alive that was unknown, dead or left."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class NodeLeave:
    """Gossip considers a member dead, or received its leave (``member.state``)."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """A live member changed its metadata, restarted, or changed between alive and suspect."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer process has the local name. The core has stopped sending; the ClusterMap decides the consequences."""

    process_incarnation: int  # of the newer one


@dataclass(frozen=True, slots=True)
class LeaveCompleted:
    """The local leave has been sent."""


@dataclass(frozen=True, slots=True)
class Resync:
    """Events were dropped because the service was slow: read ``members()`` again."""


NodeEvent = NodeJoin | NodeLeave | NodeUpdate | Superseded | LeaveCompleted | Resync


@dataclass(frozen=True, slots=True)
class OutgoingDatagram:
    """One datagram to seal and send."""

    address: Address
    recipient_session: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StateExchange:
    """A full exchange to start over TCP; answer with RecordsReceived or ExchangeFailed."""

    address: Address


@dataclass(frozen=True, slots=True)
class SwimReady:
    """Effects for the shell; the three kinds are independent of one another."""

    messages: tuple[OutgoingDatagram, ...] = ()
    exchanges: tuple[StateExchange, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    next_deadline: float = inf
