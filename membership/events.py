"""Input and output of the SWIM core.

``Swim.handle(now, event)`` takes one of the inputs and returns a ``SwimReady``. Timers are inputs too (``SwimTick``).
The node events are what services of the tiers see; none of them is a decision (see ``docs/membership.md``).
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
    """The next deadline has come."""


@dataclass(frozen=True, slots=True)
class MessagesReceived:
    """One opened datagram, from a session that is known and a packet that is new."""

    sender_session: int
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class RecordsReceived:
    """The other side's half of a full exchange.

    ``initiated`` says that we asked: the answer is then the cluster's view of a newcomer, perhaps of its own past.
    """

    records: list[MemberRecord]
    initiated: bool


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """A full exchange that the core asked for did not come about."""

    address: Address


@dataclass(frozen=True, slots=True)
class SeedsResolved:
    """The present addresses of the seeds; replaces what was known."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """Our own service describes itself anew."""

    metadata: NodeMetadata


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Say goodbye, then fall silent."""


Input = (
    SwimTick | MessagesReceived | RecordsReceived | ExchangeFailed | SeedsResolved | MetadataChanged | LeaveRequested
)


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A member is alive that was unknown, dead or left."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class NodeLeave:
    """Gossip believes that a member is dead, or heard it leave (``member.state``)."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """A live member changed its description, restarted, or went from alive to suspect or back."""

    member: MemberView


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer process bears our name. The core has fallen silent; what that means is the ClusterMap's decision."""

    process_incarnation: int  # of the newer one


@dataclass(frozen=True, slots=True)
class LeaveCompleted:
    """Our own goodbye has been told."""


@dataclass(frozen=True, slots=True)
class Resync:
    """Events were dropped because the service did not take them: read ``members()`` anew."""


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
    """Work the SWIM core asks of its shell; the three kinds are independent of one another."""

    messages: tuple[OutgoingDatagram, ...] = ()
    exchanges: tuple[StateExchange, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    next_deadline: float = inf
