"""Events that the router's core takes, and the work that it asks of its shell."""

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
    """Raft committed this command; ``proposal`` is ours if this router proposed it, else 0."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """Raft did not take a proposal, or its fate is unknown."""

    number: int
    leader_hint: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Raft's role and leader, as this router sees them."""

    leads: bool
    leader: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A quorum round that this core asked for has ended; ``confirmed`` if this router led throughout."""

    context: int
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Suspected:
    """Gossip holds a node dead: a reason to look at its lease now, and nothing else."""

    node: str


@dataclass(frozen=True, slots=True)
class OrderDone:
    """The process carried out an order that a router, or this one, had passed on."""

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
    """A command for Raft; ``ProposalFailed`` names it by number."""

    number: int
    command: Command | PolicyCommand
    data: bytes  # of it, for the log


@dataclass(slots=True)
class RouterReady:
    """Work for the shell: propose, start quorum rounds, send."""

    proposals: list[Proposal] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    sends: list[tuple[str, int, bytes]] = field(default_factory=list)
    next_deadline: float = float("inf")
    questions: list[tuple[str, Admin]] = field(default_factory=list)  # (who asked, what): the shell answers
    orders: list[tuple[str, OrderNode, str]] = field(default_factory=list)  # (router, what it passed on, why refused)
    condemned: list[tuple[PeerKey, str]] = field(default_factory=list)  # broke the protocol, and how: end their links
    ended: bool = False  # this router's incarnation is dead in the map: start anew
    transfer: str = ""  # this router stops: give the leadership to that one
    stopped: bool = False  # the orderly stop is over: end the process
