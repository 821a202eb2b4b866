"""Events for the router's core, and the work that it returns to its shell."""

from dataclasses import dataclass, field

from access.policy.commands import PolicyCommand
from router.map.commands import Command
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin
from wire.messages.orders import NodeOrdered, OrderNode
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick

__all__ = [
    "Applied",
    "Event",
    "OrderDone",
    "Proposal",
    "ProposalFailed",
    "RoleChanged",
    "RoundEnded",
    "RouterReady",
    "Suspected",
]


@dataclass(frozen=True, slots=True)
class Applied:
    """Raft committed this command."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """Raft rejected a proposal, or its result is unknown."""

    number: int
    leader_hint: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Raft's role and leader, as this router knows them."""

    leads: bool
    leader: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A quorum round of this core ended; ``confirmed`` if this router led throughout."""

    context: int
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Suspected:
    """Gossip declared a node dead: its lease is checked now, with no other effect."""

    node: str


@dataclass(frozen=True, slots=True)
class OrderDone:
    """The process executed a forwarded order."""

    router: str
    answer: NodeOrdered


Event = (
    OrderDone
    | Suspected
    | FrameArrived
    | LinkUp
    | LinkDown
    | Applied
    | ProposalFailed
    | RoleChanged
    | RoundEnded
    | NodeTick
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command for Raft; ``ProposalFailed`` refers to its number."""

    number: int
    command: Command | PolicyCommand
    data: bytes  # encoded command


@dataclass(slots=True)
class RouterReady:
    """Work for the shell: proposals, quorum rounds, frames to send."""

    proposals: list[Proposal] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    sends: list[tuple[str, int, bytes]] = field(default_factory=list)
    next_deadline: float = float("inf")
    questions: list[tuple[str, Admin]] = field(default_factory=list)  # (requesting node, request): the shell answers
    orders: list[tuple[str, OrderNode, str]] = field(default_factory=list)  # (router, its order, refusal or "")
    violations: list[tuple[PeerKey, str]] = field(default_factory=list)  # peers that broke the protocol, and the reason
    ended: bool = False  # the map declared this incarnation dead: restart
    transfer: str = ""  # this router stops: transfer leadership to this peer
    stopped: bool = False  # the orderly stop is complete: end the process
