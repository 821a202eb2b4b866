"""Events of an iteration of a storage node's core, and the work that it returns to its shell."""

from dataclasses import dataclass, field

from storage.state.partition import Output
from wire.messages.hello import PeerKey
from wire.messages.orders import OrderNode
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick

__all__ = ["BatchSynced", "Event", "StorageReady"]


@dataclass(frozen=True, slots=True)
class BatchSynced:
    """Every batch up to this number is on disk."""

    batch: int


Event = FrameArrived | LinkUp | LinkDown | BatchSynced | NodeTick


@dataclass(slots=True)
class StorageReady:
    """Work for the shell: send ``sends`` now; commit and sync ``writes`` as batch ``batch``."""

    batch: int = 0  # number of the batch; 0: no writes
    writes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    sends: list[Output] = field(default_factory=list)
    next_deadline: float = float("inf")
    # Peers that violated the protocol, and how: close their links
    condemned: list[tuple[PeerKey, str]] = field(default_factory=list)
    orders: list[tuple[str, OrderNode]] = field(default_factory=list)  # (router, forwarded order)
    ended: bool = False  # the map declares this incarnation dead: restart the node
    # Unprocessed events: they are the first of their peers in a later quantum
    left: list[Event] = field(default_factory=list)
    goes_on: bool = False  # the iteration has not ended: it returns no work yet
    stopped: bool = False  # the orderly stop is complete: end the process
