"""How fast retained messages are read for each client: so many a second, a second's worth in advance.

Paced is what is asked for, not what came: nothing waits in this edge's memory. A question reserves as many messages as
its answer may have, and gives back those that were not there. Live messages go on; a read that waits loses nothing.
"""

import heapq
from collections import deque
from collections.abc import Callable

__all__ = ["RetainedPace"]

BURST_S = 1.0  # of the rate, that may be read at once
SWEPT_PER_CLIENT = 2  # clients whose rate is whole again that are forgotten when one is noted


class RetainedPace:
    """The pace of one edge.

    Args:
        rate: Messages a second for one client, 0: no limit.
    Attributes:
        rate: That, from now on.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._paid: dict[int, float] = {}  # until when what a client reserved has used up its rate; the oldest first
        self._waiting: dict[int, deque[Callable[[], None]]] = {}  # what asks on, by client
        self._due: list[tuple[float, int]] = []  # a heap: when, which client of those

    def __len__(self) -> int:
        """Return how many clients have reads that wait for their time."""
        return len(self._waiting)

    def is_waiting(self, client: int) -> bool:
        """Return whether reads of a client wait."""
        return client in self._waiting

    def page(self, most: int, partitions: int) -> int:
        """Return how many messages each of some partitions, which are asked at once, may answer with."""
        return min(most, max(1, int(self.rate / max(1, partitions)))) if self.rate else most

    def wait_s(self, client: int, now: float) -> float:
        """Return the seconds for which nothing more may be asked for a client."""
        return max(0.0, self._paid.get(client, now) - now - BURST_S)

    def reserve(self, client: int, messages: int, now: float) -> None:
        """Note that so many may come."""
        if not self.rate:
            return
        self._paid[client] = max(self._paid.pop(client, now), now) + messages / self.rate
        for _ in range(SWEPT_PER_CLIENT):
            oldest = next(iter(self._paid))
            if self._paid[oldest] > now:
                break
            del self._paid[oldest]

    def give_back(self, client: int, messages: int) -> None:
        """Note that so many of those did not come."""
        if client in self._paid and self.rate:
            self._paid[client] -= messages / self.rate

    def later(self, client: int, now: float, ask: Callable[[], None]) -> None:
        """Have a question asked when its client may read more."""
        waiting = self._waiting.get(client)
        if waiting is None:
            waiting = self._waiting[client] = deque()
            heapq.heappush(self._due, (now + self.wait_s(client, now), client))
        waiting.append(ask)

    def tick(self, now: float) -> None:
        """Let clients ask on whose time has come."""
        for _ in range(len(self._due)):
            if self._due[0][0] > now:
                break
            _, client = heapq.heappop(self._due)
            waiting = self._waiting[client]
            while waiting and not self.wait_s(client, now):
                waiting.popleft()()
            if waiting:
                heapq.heappush(self._due, (now + self.wait_s(client, now), client))
            else:
                del self._waiting[client]
