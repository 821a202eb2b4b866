"""Events that wait for a storage node's loop: how many of them it takes in one go, and whose links wait to be read.

So many that no client keeps the loop long. A frame of many messages or acknowledgements is taken in parts, in its
order: an edge packs what its clients sent into one. Several such goes are one turn to the core, so that what is written
to disk at once stays large; the loop sees to others between them.

Each edge and each storage node has a lane (``wire/node/fair_queue.py``): behind an edge that sends more than this node
takes waits that edge alone. Ends of syncs go first, and what routers send comes next.
"""

from storage.ready import BatchSynced, Event
from wire.messages.batches import only_pubacks, publish_records, push_ack_records
from wire.messages.control import count_of_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER
from wire.node.events import FrameArrived, LinkDown, LinkUp
from wire.node.fair_queue import FairQueue, LinkReading

__all__ = ["StorageEventQueue"]

WEIGHT_MAX = 2_000  # microseconds, about, of what is taken in one go
TURN_WEIGHT = 9_000  # beyond it the core's turn ends: what it writes and says takes a third of that
REQUEST_WEIGHT = 70  # it may end a session and begin another one; what it leaves to do is cut where that may be long
MESSAGE_WEIGHT = 12  # of a message, for each of its partitions
ACK_WEIGHT = 7
SYNCED_WEIGHT = 200  # of a batch that is on disk: its rows leave the memory of what is not
SHORT_BYTES = 1_000  # of a frame that is not looked into: its records are estimated
RECORD_BYTES = 100
# Of messages in one go of the core, plain ones among them: how many receivers one has is not known before it is taken.
COPIES_MAX = WEIGHT_MAX // MESSAGE_WEIGHT + 1

RECORDS = {
    FrameKind.PUBLISH: (publish_records, MESSAGE_WEIGHT),
    FrameKind.PUSH_ACK: (push_ack_records, ACK_WEIGHT),
}


class StorageEventQueue(FairQueue):
    """Events of all peers.

    Args:
        links: Reads them; None in a simulation, where nobody sends without a bound.

    Attributes:
        goes_on: What was taken last and what is taken next are one turn to the core.
        pressing: Somebody waits for one of them, whatever the core knows: not all are PUBACKs of subscribers, or a
            link is not read.
    """

    def __init__(self, links: LinkReading | None = None) -> None:
        super().__init__(_weigh, (TIER_EDGE, TIER_ROUTER), links)
        self.goes_on = self.pressing = False
        self._weight = 0  # of the core's turn
        self._left: dict[str, list[Event]] = {}  # was taken from a lane, and put back: by node, whose turn it is first
        self._others_next = False

    def __bool__(self) -> bool:
        return bool(self._left) or super().__bool__()

    @property
    def octets(self) -> int:
        """Bytes of what waits."""
        left = sum(
            len(event.payload) for some in self._left.values() for event in some if isinstance(event, FrameArrived)
        )
        return super().octets + left

    def append(self, event: Event) -> bool:
        """Add the newest one of its peer; return whether that is not read any more from here on."""
        if not self.pressing:
            acks = isinstance(event, FrameArrived) and event.kind == FrameKind.PUSH_ACK and only_pubacks(event.payload)
            self.pressing = not acks
        paused = super().append(event)
        self.pressing = self.pressing or paused
        return paused

    def take(self, *, own: bool = False) -> list[Event]:
        """Remove and return what is taken next: something of the first event at least, if there is one.

        Args:
            own: Only of what routers sent, and of this node.
        """
        taken: list[Event] = []
        if own or not self._left or self._others_next:
            taken, left = self.next_events(WEIGHT_MAX, own=own, skips=self._left.__contains__ if self._left else None)
            self._weight += WEIGHT_MAX - left
            self._others_next = self._others_next and own
        if not (taken or own) and self._left:
            taken, _ = self.next_events(WEIGHT_MAX, own=True)
            taken += self._left.pop(next(iter(self._left)))
            self._weight += WEIGHT_MAX
            self._others_next = True
        self.goes_on = self._weight < TURN_WEIGHT and (self.own if own else bool(self))
        if not self.goes_on:
            self._weight = 0
        if not self:
            self.pressing = False
        return taken

    def put_back(self, left: list[Event]) -> None:
        """Keep what a go had no time for: of each node it comes before what waits in its lane, others in between."""
        for event in left:
            assert isinstance(event, FrameArrived | LinkUp | LinkDown), "what is no peer's is never left"
            self._left.setdefault(event.peer.node, []).append(event)
            self.pressing = True


def _weigh(event: Event, begin: int, left: int) -> tuple[int, int]:
    """Return the weight of what there is room for in an event, and where that ends in a frame; 0: with it."""
    if not isinstance(event, FrameArrived):
        return SYNCED_WEIGHT if isinstance(event, BatchSynced) else 1, 0
    if event.kind in (FrameKind.CONTROLS, FrameKind.CONNECTS):
        return REQUEST_WEIGHT * count_of_controls(event.payload), 0
    if event.kind not in RECORDS:
        return REQUEST_WEIGHT if event.kind == FrameKind.CONTROL else MESSAGE_WEIGHT, 0
    records, weight = RECORDS[event.kind]
    if len(event.payload) <= SHORT_BYTES:
        return weight * (1 + len(event.payload) // RECORD_BYTES), 0
    end, count = records(event.payload, begin, max(1, left // weight))
    return count * weight, end if end < len(event.payload) else 0
