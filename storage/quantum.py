"""Quanta of a storage node's core: parts of one iteration, run in sequence until the time budget is used.

The core ends an iteration even if more events are queued, when a message's fan-out is in progress. Its work is carried
out before the next iteration begins. Decision: docs/adr/0205-goes-end-inside-a-message.md.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from storage.event_queue import StorageEventQueue
from storage.ready import Event, StorageReady

__all__ = ["QuantumRunner", "take_goes"]


class QuantumRunner(Protocol):
    def handle(self, now: float, events: Sequence[Event], *, goes_on: bool = False) -> StorageReady:
        """Process events; ``goes_on``: more events of this iteration follow."""
        ...


def take_goes(
    core: QuantumRunner, events: StorageEventQueue, clock: Callable[[], float], others_at: float, *, own: bool
) -> StorageReady:
    """Process queued events until the iteration ends or the time budget is used; return the last result.

    Args:
        core: Processes the events.
        events: The event queue.
        clock: The core's clock.
        others_at: End of the time budget: no quantum begins after it.
        own: Only events of routers and of this node.
    """
    while True:
        taken = events.take(own=own)  # may be empty: the core's own timer is due now or soon
        ready = core.handle(clock(), taken, goes_on=events.goes_on)
        events.requeue(ready.left)
        if not (ready.goes_on and events.goes_on) or clock() >= others_at:
            return ready
