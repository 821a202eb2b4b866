"""Goes of a storage node's core: parts of one turn, taken one after the other until others have theirs.

A turn ends where the core says so, though more has come: it ends behind a message that it was in the middle of. What
it asks for is carried out before the next one begins. Decision: docs/adr/0205-goes-end-inside-a-message.md.
"""

from collections.abc import Callable

from storage.core import StorageCore
from storage.ready import Ready
from storage.turn_events import TurnEvents
from wire.node.events import Tick

__all__ = ["take_goes"]


def take_goes(
    core: StorageCore, events: TurnEvents, clock: Callable[[], float], others_at: float, *, own: bool
) -> Ready:
    """Take what waits, until the turn is over or others have theirs; return the work of the last go.

    Args:
        core: Takes it.
        events: What waits.
        clock: As the core has it.
        others_at: When no other go is begun.
        own: Only of what routers sent, and of this node.
    """
    while True:
        taken = events.take(own=own) or [Tick()]
        ready = core.handle(clock(), taken, goes_on=events.goes_on)
        events.put_back(ready.left)
        if not (ready.goes_on and events.goes_on) or clock() >= others_at:
            return ready
