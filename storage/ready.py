"""Events of a turn of a storage node's core, and the work that it asks of its shell."""

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
    """Work for the shell: commit and sync the writes as batch ``commit``; send now what ``sends`` holds."""

    batch: int = 0  # its number; 0: nothing to write
    writes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    sends: list[Output] = field(default_factory=list)
    next_deadline: float = float("inf")
    condemned: list[tuple[PeerKey, str]] = field(default_factory=list)  # broke the protocol, and how: end their links
    orders: list[tuple[str, OrderNode]] = field(default_factory=list)  # (router, what it passed on)
    ended: bool = False  # this incarnation is dead in the map: start anew
    left: list[Event] = field(default_factory=list)  # was not taken: it is the first of its peers in a later go
    goes_on: bool = False  # the turn is not over: there is no work of it yet
    stopped: bool = False  # the orderly stop is over: end the process
