"""Events that wait for a router's loop: how many of them it takes in one turn, and whose links wait to be read.

So few that Raft has its turn: heartbeats must not wait behind a flood of questions. Each node and each operator has a
lane (``wire/node/fair_queue.py``); nothing is taken from one whose messages to shards are worked off more slowly than
they come, so that what is held for it has a bound in bytes, and the leases of the others go on.
"""

from collections.abc import Callable

from router.events import Event
from wire.messages.hello import TIER_EDGE, TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE
from wire.node.events import FrameArrived
from wire.node.fair_queue import FairQueue, LinkReading

__all__ = ["RouterEventQueue"]

TURN_BYTES = 32 * 1024  # of frames, one at least: to decode so much takes half a millisecond
EVENT_BYTES = 128  # that an event weighs beside its payload: 256 events a turn at most


class RouterEventQueue(FairQueue):
    """Events of all peers.

    Args:
        links: Reads them.
    """

    def __init__(self, links: LinkReading | None = None) -> None:
        super().__init__(_weigh, (TIER_EDGE, TIER_STORAGE, TIER_ROUTER, TIER_OPERATOR, TIER_GATEWAY), links)

    def take(self, is_behind: Callable[[str], bool]) -> list[Event]:
        """Remove and return what a turn takes.

        Args:
            is_behind: Says of which node nothing is taken now.
        """
        return self.next_events(TURN_BYTES, skips=is_behind)[0]


def _weigh(event: Event, _: int, __: int) -> tuple[int, int]:
    return EVENT_BYTES + (len(event.payload) if isinstance(event, FrameArrived) else 0), 0
