"""Ages of a partition's queues: which one has the oldest message, without a look at all of them.

A queue stands here from its first message on, with the arrival of that one. Later arrivals are not noted: whoever asks
looks at the head of the queue that seems the oldest, and puts it back with its own arrival, until one is as old as it
was noted. So a message pays for one comparison, and a question for the queues that moved on since the last one.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from storage.state.durable_sessions import DurableSession
from storage.state.session_window import SessionWindow

__all__ = ["QueueAges"]

COUNTER_BITS = 48  # of a session number: what stands above is its partition, the same for all
STEPS_MAX = 256  # queues that one question looks at


class QueueAges:
    """The queues of one partition by the arrival of their heads, as numbers: arrival << 48 | counter of the session."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def note(self, session: SessionWindow, arrived: int) -> None:
        """Take up a queue whose oldest message came then; 0: nobody knows when."""
        if not session.aged:
            session.aged = True
            heappush(self._heap, arrived << COUNTER_BITS | session.number & ((1 << COUNTER_BITS) - 1))

    def oldest(
        self,
        partition: int,
        sessions: Mapping[int, DurableSession],
        head_arrival: Callable[[DurableSession], int | None],
    ) -> int | None:
        """Return the arrival of the oldest message, None where no queue has one.

        Args:
            partition: Number of it.
            sessions: By number.
            head_arrival: Returns the arrival of a queue's oldest message now, 0 if nobody knows, None for an empty one.
        """
        heap = self._heap
        for _ in range(STEPS_MAX):
            if not heap:
                return None
            noted, counter = heap[0] >> COUNTER_BITS, heap[0] & ((1 << COUNTER_BITS) - 1)
            session = sessions.get(partition << COUNTER_BITS | counter)
            arrived = head_arrival(session) if session is not None else None
            if arrived == noted:
                return noted
            heappop(heap)
            if session is not None:
                session.aged = False
                if arrived is not None:
                    self.note(session, arrived)
        return heap[0] >> COUNTER_BITS if heap else None  # many moved on since: no message is older than this
