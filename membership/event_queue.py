"""Bounded queue of member events to a service; dropped events are reported.

The first event after a loss is ``Resync``: the service then reads all members again.
"""

import trio

from membership.events import NodeEvent, Resync

__all__ = ["EventQueue"]


class EventQueue:
    """The queue of one service.

    Attributes:
        events: Receive channel of the service.
        dropped: Number of dropped events.
    """

    def __init__(self, events_max: int) -> None:
        self._send, self.events = trio.open_memory_channel[NodeEvent](events_max)
        self._resync_due = False
        self.dropped = 0

    def put(self, event: NodeEvent) -> None:
        """Add an event, or drop it if the queue is full or closed."""
        try:
            if self._resync_due:
                self._send.send_nowait(Resync())
                self._resync_due = False
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self.dropped += 1
            self._resync_due = True
        except trio.BrokenResourceError:  # the service closed the channel
            self.dropped += 1
