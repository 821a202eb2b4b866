"""The event queue of a storage node's loop: bounds of one quantum, and backpressure on links.

A quantum is short enough that no client occupies the loop for long. A frame of many messages or acknowledgements is
processed in parts, in order: an edge packs the packets of all its clients into one. Several quanta form one iteration
of the core, so the batches written to disk stay large. The loop serves other tasks between quanta.

Each edge and each storage node has its own queue (``wire/node/fair_queue.py``): an edge that sends more than this node
can process delays only itself. Completed syncs go first, then events of routers.
"""

from storage.ready import BatchSynced, Event
from wire.messages.batches import only_pubacks, publish_records, push_ack_records
from wire.messages.control import count_of_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER
from wire.node.events import FrameArrived, LinkDown, LinkUp
from wire.node.fair_queue import FairQueue, LinkReading

__all__ = ["StorageEventQueue"]

WEIGHT_MAX = 2_000  # microseconds, estimated, of the events in one quantum
ITERATION_BUDGET_US = (
    9_000  # microseconds, estimated; above it the core's iteration ends. Its writes and sends take a third of that.
)
REQUEST_WEIGHT = 70  # it may end a session and begin another one; long remainders are divided into slices
MESSAGE_WEIGHT = 12  # of a message, for each of its partitions
ACK_WEIGHT = 7
SYNCED_WEIGHT = 200  # of a synced batch: its rows are removed from the unsynced overlay
SHORT_BYTES = 1_000  # of a frame that is not parsed: its records are estimated
RECORD_BYTES = 100
# Of messages in one quantum of the core, fast path included: the receivers of a message are unknown before it is
# processed.
COPIES_MAX = WEIGHT_MAX // MESSAGE_WEIGHT + 1

RECORDS = {
    FrameKind.PUBLISH: (publish_records, MESSAGE_WEIGHT),
    FrameKind.PUSH_ACK: (push_ack_records, ACK_WEIGHT),
}


class StorageEventQueue(FairQueue):
    """Events of all peers.

    Args:
        links: Pauses and resumes reading; None in a simulation, where senders are bounded.

    Attributes:
        goes_on: The last and the next batch belong to one iteration of the core.
        pressing: An event must be processed now: not all are PUBACKs of subscribers, or a link is paused.
    """

    def __init__(self, links: LinkReading | None = None) -> None:
        super().__init__(_weigh, (TIER_EDGE, TIER_ROUTER), links)
        self.goes_on = self.pressing = False
        self._weight = 0  # of the core's iteration
        self._left: dict[str, list[Event]] = {}  # requeued events by node, the next one first
        self._others_next = False

    def __bool__(self) -> bool:
        return bool(self._left) or super().__bool__()

    @property
    def octets(self) -> int:
        """Payload bytes of all queued events."""
        left = sum(
            len(event.payload) for some in self._left.values() for event in some if isinstance(event, FrameArrived)
        )
        return super().octets + left

    def append(self, event: Event) -> bool:
        """Add the newest event of its peer; return whether the peer's link is now paused."""
        if not self.pressing:
            acks = isinstance(event, FrameArrived) and event.kind == FrameKind.PUSH_ACK and only_pubacks(event.payload)
            self.pressing = not acks
        paused = super().append(event)
        self.pressing = self.pressing or paused
        return paused

    def take(self, *, own: bool = False) -> list[Event]:
        """Remove and return the next batch: a part of the first event at least, if there is one.

        Args:
            own: Only events of routers and of this node.
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
        self.goes_on = self._weight < ITERATION_BUDGET_US and (self.own if own else bool(self))
        if not self.goes_on:
            self._weight = 0
        if not self:
            self.pressing = False
        return taken

    def requeue(self, left: list[Event]) -> None:
        """Requeue unprocessed events: each goes before its node's queue, after the events of other nodes."""
        for event in left:
            assert isinstance(event, FrameArrived | LinkUp | LinkDown), "only events of peers are requeued"
            self._left.setdefault(event.peer.node, []).append(event)
            self.pressing = True


def _weigh(event: Event, begin: int, left: int) -> tuple[int, int]:
    """Return the weight of the part of an event that fits, and its end in the frame; 0 if the event fits whole."""
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
