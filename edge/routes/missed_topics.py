"""Topics without a cached Route: their parked publishers, and the topics of the next Resolve requests.

A topic is *missed* if a publisher is parked for it. A topic further behind in the input of a publisher is *prefetched*:
it is added to the same requests behind all missed topics, within bounds. So a publisher of new topics does not delay
the first message of another publisher. Pure. Decision: docs/adr/0195-questions-wait-for-company.md.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from edge.loop.state import Route

__all__ = ["MissedTopics"]

TOPICS_PER_ITERATION = 400
PREFETCHED_MAX = 4_000  # topics requested or queued, above which none is prefetched
PREFETCHES_IN_FLIGHT_MAX = 800  # topics in flight, above which prefetched ones stay queued
BATCH_DELAY_S = 0.001  # about the latency of an answer on an idle link
STEADY_BATCHES = 16  # requests with an unchanged batch size after waiting for a larger one failed


class MissedTopics:
    """Topics without an answer.

    Attributes:
        batch_until: Deadline of the batch of missed topics; 0: no batch is waiting.
    """

    def __init__(self) -> None:
        self.batch_until = 0.0
        self._callbacks: dict[str, list[Callable[[Route], None]]] = {}  # topic -> callbacks
        self._missed: dict[str, None] = {}  # not requested yet
        self._prefetched: dict[str, None] = {}  # not requested yet
        self._batch_started_at = self._requested_at = 0.0  # first: 0 without a batch
        self._batch_size = 1  # topics that a request waits for
        self._steady_batches = 0  # requests left without a larger batch size

    def __len__(self) -> int:
        """Return the number of topics that are not requested yet."""
        return len(self._missed) + len(self._prefetched)

    def has_room(self, cache_topics_max: int) -> bool:
        """Return whether one more topic may be prefetched: a quarter of the cache bounds the pending answers."""
        return len(self._callbacks) < min(PREFETCHED_MAX, cache_topics_max // 4)

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route when it is answered."""
        callbacks = self._callbacks.get(topic)
        if callbacks is None:
            self._callbacks[topic] = [then]
            self._missed[topic] = None
            return
        callbacks.append(then)
        if topic in self._prefetched:
            del self._prefetched[topic]
            self._missed[topic] = None

    def prefetch(self, topic: str) -> None:
        """Queue a topic that no publisher needs yet."""
        if topic not in self._callbacks:
            self._callbacks[topic] = []
            self._prefetched[topic] = None

    def take_callbacks(self, topic: str) -> list[Callable[[Route], None]]:
        """Remove a topic from the pending ones and return its callbacks."""
        return self._callbacks.pop(topic, [])

    def request_again(self, topics: Iterable[str]) -> None:
        """Request topics without a valid answer again; a topic without callbacks is dropped until its next miss."""
        for topic in topics:
            callbacks = self._callbacks.get(topic)
            if callbacks:
                self._missed[topic] = None
            elif callbacks is not None:
                del self._callbacks[topic]

    def skip_batching(self) -> None:
        """Send the next request without batching."""
        self._batch_size = 1

    def busy(self, in_flight: int) -> bool:
        """Return whether the next iteration sends a request; ``in_flight``: topics in flight."""
        return len(self._missed) > TOPICS_PER_ITERATION or (
            bool(self._prefetched) and in_flight < PREFETCHES_IN_FLIGHT_MAX
        )

    def is_batching(self, has_requests: bool) -> bool:
        """Return whether missed topics are being batched, and no iteration is needed before ``batch_until``."""
        return bool(self.batch_until) and len(self._missed) < (
            TOPICS_PER_ITERATION if has_requests else self._batch_size
        )

    def take(self, now: float, in_flight: int, *, has_requests: bool) -> list[str]:
        """Return the topics to request now; ``in_flight``: topics in flight, ``has_requests``: any request is."""
        ahead = PREFETCHES_IN_FLIGHT_MAX - in_flight if self._prefetched else 0
        if ahead <= 0 and (not self._missed or self._delays_batch(now, has_requests)):
            return []
        self._batch_started_at = self.batch_until = 0.0
        self._requested_at = now
        topics = list(islice(self._missed, TOPICS_PER_ITERATION))
        for topic in topics:
            del self._missed[topic]
        prefetched = list(islice(self._prefetched, max(0, min(ahead, TOPICS_PER_ITERATION) - len(topics))))
        for topic in prefetched:
            del self._prefetched[topic]
        return topics + prefetched

    def _delays_batch(self, now: float, has_requests: bool) -> bool:
        """Return whether the batch waits, BATCH_DELAY_S at most: while a request is in flight, or for more misses.

        The batch size doubles as long as batches fill. Publishers that wait for an answer before their next miss
        produce equal batches: then the size stays, and a lone topic is requested at once.
        """
        count = len(self._missed)
        first = self._batch_started_at or now
        until = now
        if count < TOPICS_PER_ITERATION and has_requests:
            until = first + BATCH_DELAY_S
        elif count < self._batch_size:
            until = min(first, self._requested_at) + BATCH_DELAY_S
        if now < until:
            self._batch_started_at, self.batch_until = first, until
            return True
        if count < self._batch_size:
            self._batch_size, self._steady_batches = count, STEADY_BATCHES
        elif self._steady_batches:
            self._steady_batches -= 1
        elif count > 1:
            self._batch_size = min(2 * count, TOPICS_PER_ITERATION)
        return False

    def waiters(self) -> int:
        """Return the number of parked publishers."""
        return sum(len(callbacks) for callbacks in self._callbacks.values())
