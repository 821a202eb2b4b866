"""How many of the events that wait a storage node takes in one turn: so many that no client makes the turn long."""

from collections.abc import Sequence

from storage.core import BatchSynced
from wire.messages.frames import FrameKind
from wire.node.events import FrameArrived

__all__ = ["events_of_turn"]

WEIGHT_MAX = 2_000  # microseconds, about, that the events of one turn take
# A request may end a session and begin another one; what it leaves to do is cut into slices where that may be long. Of
# messages and acknowledgements an edge packs what it has into one frame.
REQUEST_WEIGHT = 70
FRAME_WEIGHT = 12
SYNCED_WEIGHT = 200  # of a batch that is on disk: its rows leave the memory of what is not


def events_of_turn(events: Sequence[object]) -> int:
    """Return how many of the first events the loop takes before it commits: at least one, if there is one."""
    weight = 0
    for count, event in enumerate(events):
        weight += _weight(event)
        if weight > WEIGHT_MAX:
            return count
    return len(events)


def _weight(event: object) -> int:
    if isinstance(event, FrameArrived):
        return REQUEST_WEIGHT if event.kind == FrameKind.CONTROL else FRAME_WEIGHT
    return SYNCED_WEIGHT if isinstance(event, BatchSynced) else 1
