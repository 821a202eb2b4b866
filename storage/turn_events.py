"""Events that wait for a storage node's loop, and how many of them it takes in one turn.

So many that no client makes the turn long. A frame of many messages or acknowledgements is taken in several turns, in
its order: an edge packs what its clients sent into one.
"""

from collections import deque

from storage.core import BatchSynced, Event
from wire.messages.batches import publish_records, push_ack_records
from wire.messages.frames import FrameKind
from wire.node.events import FrameArrived

__all__ = ["TurnEvents"]

WEIGHT_MAX = 2_000  # microseconds, about, that the events of one turn take
REQUEST_WEIGHT = 70  # it may end a session and begin another one; what it leaves to do is cut where that may be long
MESSAGE_WEIGHT = 12  # of a message, for each of its partitions
ACK_WEIGHT = 7
SYNCED_WEIGHT = 200  # of a batch that is on disk: its rows leave the memory of what is not
SHORT_BYTES = 1_000  # of a frame that is not looked into


class TurnEvents:
    """Events in the order in which they came."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._begin = 0  # of what is left of the first one, a frame

    def __bool__(self) -> bool:
        return bool(self._events)

    def append(self, event: Event) -> None:
        """Add the newest one."""
        self._events.append(event)

    def take(self) -> list[Event]:
        """Remove and return the events of the next turn: something of the first one at least, if there is one."""
        taken: list[Event] = []
        room = WEIGHT_MAX
        events = self._events
        while events:
            event = events[0]
            if isinstance(event, FrameArrived):
                weight, rest = self._weigh(event, room)
                if weight > room and taken:
                    break
                if rest:
                    taken.append(FrameArrived(event.peer, event.kind, event.payload[self._begin : rest]))
                    self._begin = rest
                    break
                if self._begin:
                    event = FrameArrived(event.peer, event.kind, event.payload[self._begin :])
                    self._begin = 0
            else:
                weight = SYNCED_WEIGHT if isinstance(event, BatchSynced) else 1
                if weight > room and taken:
                    break
            taken.append(event)
            events.popleft()
            room -= weight
        return taken

    def _weigh(self, event: FrameArrived, room: int) -> tuple[int, int]:
        """Return the weight of what there is room for in a frame, and where that ends; 0: all that is left of it."""
        if event.kind == FrameKind.PUBLISH:
            records, weight = publish_records, MESSAGE_WEIGHT
        elif event.kind == FrameKind.PUSH_ACK:
            records, weight = push_ack_records, ACK_WEIGHT
        else:
            return REQUEST_WEIGHT if event.kind == FrameKind.CONTROL else MESSAGE_WEIGHT, 0
        if len(event.payload) <= SHORT_BYTES:
            return weight, 0
        end, count = records(event.payload, self._begin, max(1, room // weight))
        return count * weight, 0 if end == len(event.payload) else end
