"""Rate limit of retained reads for each client: messages a second, with a burst of one second.

Requests are limited, not responses: no message waits in this edge's memory. A request reserves the largest number of
messages in its response, and releases the unused ones. Live messages are not affected; a waiting read loses none.
"""

import heapq
from collections import deque
from collections.abc import Callable

__all__ = ["RetainedPace"]

BURST_S = 1.0  # of the rate, as a burst
SWEPT_PER_CLIENT = 2  # idle clients removed for each reservation


class RetainedPace:
    """The rate limit of one edge.

    Args:
        rate: Messages a second for one client, 0: no limit.

    Attributes:
        rate: The current rate.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._paid: dict[int, float] = {}  # end of the reserved part of a client's rate; the oldest first
        self._waiting: dict[int, deque[Callable[[], None]]] = {}  # delayed requests, by client
        self._due: list[tuple[float, int]] = []  # a heap of (time, client)

    def __len__(self) -> int:
        """Return the number of clients with delayed reads."""
        return len(self._waiting)

    def is_waiting(self, client: int) -> bool:
        """Return whether reads of a client are delayed."""
        return client in self._waiting

    def page(self, most: int, partitions: int) -> int:
        """Return the largest page of each of several partitions with concurrent requests."""
        return min(most, max(1, int(self.rate / max(1, partitions)))) if self.rate else most

    def wait_s(self, client: int, now: float) -> float:
        """Return the seconds until the next request for a client."""
        return max(0.0, self._paid.get(client, now) - now - BURST_S)

    def reserve(self, client: int, messages: int, now: float) -> None:
        """Reserve messages of a request."""
        if not self.rate:
            return
        self._paid[client] = max(self._paid.pop(client, now), now) + messages / self.rate
        for _ in range(SWEPT_PER_CLIENT):
            oldest = next(iter(self._paid))
            if self._paid[oldest] > now:
                break
            del self._paid[oldest]

    def give_back(self, client: int, messages: int) -> None:
        """Release unused messages of a request."""
        if client in self._paid and self.rate:
            self._paid[client] -= messages / self.rate

    def later(self, client: int, now: float, ask: Callable[[], None]) -> None:
        """Call ``ask`` when its client may read more."""
        waiting = self._waiting.get(client)
        if waiting is None:
            waiting = self._waiting[client] = deque()
            heapq.heappush(self._due, (now + self.wait_s(client, now), client))
        waiting.append(ask)

    def tick(self, now: float) -> None:
        """Call the due requests."""
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
