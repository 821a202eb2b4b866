"""Events of members on their way to a service that may not listen: bounded, and what was dropped is said.

After a loss the first event that has room again is ``Resync``: the service then reads the members anew.
"""

import trio

from membership.events import NodeEvent, Resync

__all__ = ["EventQueue"]


class EventQueue:
    """The queue of one service.

    Attributes:
        events: What the service reads.
        dropped: Events that had no room, or nobody to read them.
    """

    def __init__(self, events_max: int) -> None:
        self._send, self.events = trio.open_memory_channel[NodeEvent](events_max)
        self._resync_due = False
        self.dropped = 0

    def put(self, event: NodeEvent) -> None:
        """Add an event, or drop it."""
        try:
            if self._resync_due:
                self._send.send_nowait(Resync())
                self._resync_due = False
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self.dropped += 1
            self._resync_due = True
        except trio.BrokenResourceError:  # the service does not listen any more
            self.dropped += 1
