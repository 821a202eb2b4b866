"""Pending events of a router's loop, with the budget of one iteration and backpressure on links.

The budget is small because a flood of requests must not delay heartbeats. Each node and each operator has its own queue
(``wire/node/fair_queue.py``). A node whose shard messages are processed more slowly than they arrive is skipped. That
bounds its pending bytes and keeps the leases of other nodes alive.
"""

from collections.abc import Callable

from router.events import Event
from wire.messages.hello import TIER_EDGE, TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE
from wire.node.events import FrameArrived
from wire.node.fair_queue import FairQueue, LinkReading

__all__ = ["RouterEventQueue"]

ITERATION_BYTES = 32 * 1024  # of frames, at least one frame: decoding takes half a millisecond
EVENT_BYTES = 128  # weight of an event besides its payload: at most 256 events an iteration


class RouterEventQueue(FairQueue):
    """Events of all peers, in one queue per peer.

    Args:
        links: Reads the links, and pauses them.
    """

    def __init__(self, links: LinkReading | None = None) -> None:
        super().__init__(_weigh, (TIER_EDGE, TIER_STORAGE, TIER_ROUTER, TIER_OPERATOR, TIER_GATEWAY), links)

    def take(self, is_behind: Callable[[str], bool]) -> list[Event]:
        """Remove and return the events of one iteration.

        Args:
            is_behind: Returns whether events of a node are skipped now.
        """
        return self.next_events(ITERATION_BYTES, skips=is_behind)[0]


def _weigh(event: Event, _: int, __: int) -> tuple[int, int]:
    return EVENT_BYTES + (len(event.payload) if isinstance(event, FrameArrived) else 0), 0
