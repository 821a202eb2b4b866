"""Goes of a storage node's core: parts of one turn, taken one after the other until others have theirs.

A turn ends where the core says so, though more has come: it ends behind a message that it was in the middle of. What
it asks for is carried out before the next one begins. Decision: docs/adr/0205-goes-end-inside-a-message.md.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from storage.event_queue import StorageEventQueue
from storage.ready import Event, StorageReady

__all__ = ["QuantumRunner", "take_goes"]


class QuantumRunner(Protocol):
    """The core, as this module uses it."""

    def handle(self, now: float, events: Sequence[Event], *, goes_on: bool = False) -> StorageReady:
        """Take events; ``goes_on``: more have come."""
        ...


def take_goes(
    core: QuantumRunner, events: StorageEventQueue, clock: Callable[[], float], others_at: float, *, own: bool
) -> StorageReady:
    """Take what waits, until the turn is over or others have theirs; return the work of the last go.

    Args:
        core: Takes it.
        events: What waits.
        clock: As the core has it.
        others_at: When no other go is begun.
        own: Only of what routers sent, and of this node.
    """
    while True:
        taken = events.take(own=own)  # nothing: it is time for something of the core's own, or will soon be
        ready = core.handle(clock(), taken, goes_on=events.goes_on)
        events.put_back(ready.left)
        if not (ready.goes_on and events.goes_on) or clock() >= others_at:
            return ready
