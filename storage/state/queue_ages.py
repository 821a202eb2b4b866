"""Ages of a partition's queues: finds the oldest queued message without a scan of all queues.

A queue is added with the arrival of its first message. Later arrivals are not recorded. A query checks the head of the
queue that seems the oldest and puts it back with its current arrival, until one matches its recorded arrival. So a
message costs one comparison, and a query costs the queues that advanced since the last one.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from storage.state.durable_sessions import DurableSession
from storage.state.session_window import SessionWindow

__all__ = ["QueueAges"]

COUNTER_BITS = 48  # of a session number: the bits above are its partition, the same for all
STEPS_MAX = 256  # queues that one query checks


class QueueAges:
    """The queues of one partition by the arrival of their heads, as numbers: arrival << 48 | counter of the session."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def note(self, session: SessionWindow, arrived: int) -> None:
        """Add a queue with the arrival of its oldest message; 0: unknown."""
        if not session.aged:
            session.aged = True
            heappush(self._heap, arrived << COUNTER_BITS | session.number & ((1 << COUNTER_BITS) - 1))

    def oldest(
        self,
        partition: int,
        sessions: Mapping[int, DurableSession],
        head_arrival: Callable[[DurableSession], int | None],
    ) -> int | None:
        """Return the arrival of the oldest message, None if all queues are empty.

        Args:
            partition: Its number.
            sessions: By number.
            head_arrival: Returns the arrival of a queue's oldest message now, 0 if unknown, None for an empty queue.
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
        return heap[0] >> COUNTER_BITS if heap else None  # many advanced since: no message is older than this
