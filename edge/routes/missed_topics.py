"""Topics without a cached Route: their parked publishers, and the topics of the next Resolve requests.

A topic is *missed* if a publisher is parked for it. A topic further behind in the input of a publisher is *prefetched*:
it is added to the same requests behind all missed topics, within bounds. So a publisher of new topics does not delay
the first message of another publisher. Pure. Decision: docs/adr/0195-questions-wait-for-company.md.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from edge.loop.state import Route

__all__ = ["MissedTopics"]

ASKED_PER_TURN = 400
PREFETCHED_MAX = 4_000  # topics requested or queued, above which none is prefetched
PREFETCHES_IN_FLIGHT_MAX = 800  # topics in flight, above which prefetched ones stay queued
GATHER_S = 0.001  # about the latency of an answer on an idle link
QUESTIONS_ALIKE = 16  # requests with an unchanged batch size after waiting for a larger one failed


class MissedTopics:
    """Topics without an answer.

    Attributes:
        gather_until: Deadline of the batch of missed topics; 0: no batch is waiting.
    """

    def __init__(self) -> None:
        self.gather_until = 0.0
        self._waiting: dict[str, list[Callable[[Route], None]]] = {}  # topic -> callbacks
        self._missed: dict[str, None] = {}  # not requested yet
        self._prefetched: dict[str, None] = {}  # not requested yet
        self._missed_at = self._asked_at = 0.0  # of the first topic of the batch, 0: none; of the latest request
        self._company = 1  # batch size: a request waits for so many topics
        self._alike = 0  # requests left without a larger batch size

    def __len__(self) -> int:
        """Return the number of topics that are not requested yet."""
        return len(self._missed) + len(self._prefetched)

    def has_room(self, cache_topics_max: int) -> bool:
        """Return whether one more topic may be prefetched: a quarter of the cache bounds the pending answers."""
        return len(self._waiting) < min(PREFETCHED_MAX, cache_topics_max // 4)

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route when it is answered."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._waiting[topic] = [then]
            self._missed[topic] = None
            return
        waiting.append(then)
        if topic in self._prefetched:
            del self._prefetched[topic]
            self._missed[topic] = None

    def prefetch(self, topic: str) -> None:
        """Queue a topic that no publisher needs yet."""
        if topic not in self._waiting:
            self._waiting[topic] = []
            self._prefetched[topic] = None

    def answered(self, topic: str) -> list[Callable[[Route], None]]:
        """Remove a topic from the pending ones and return its callbacks."""
        return self._waiting.pop(topic, [])

    def ask_again(self, topics: Iterable[str]) -> None:
        """Request topics without a valid answer again; a topic without callbacks is dropped until its next miss."""
        for topic in topics:
            waiting = self._waiting.get(topic)
            if waiting:
                self._missed[topic] = None
            elif waiting is not None:
                del self._waiting[topic]

    def ask_at_once(self) -> None:
        """Send the next request without batching."""
        self._company = 1

    def busy(self, asked: int) -> bool:
        """Return whether the next iteration sends a request; ``asked``: topics in flight."""
        return len(self._missed) > ASKED_PER_TURN or (bool(self._prefetched) and asked < PREFETCHES_IN_FLIGHT_MAX)

    def gathers(self, is_asking: bool) -> bool:
        """Return whether missed topics are being batched, and no iteration is needed before ``gather_until``."""
        return bool(self.gather_until) and len(self._missed) < (ASKED_PER_TURN if is_asking else self._company)

    def take(self, now: float, asked: int, *, is_asking: bool) -> list[str]:
        """Return the topics to request now; ``asked``: topics in flight, ``is_asking``: whether any request is."""
        ahead = PREFETCHES_IN_FLIGHT_MAX - asked if self._prefetched else 0
        if ahead <= 0 and (not self._missed or self._waits_for_company(now, is_asking)):
            return []
        self._missed_at = self.gather_until = 0.0
        self._asked_at = now
        topics = list(islice(self._missed, ASKED_PER_TURN))
        for topic in topics:
            del self._missed[topic]
        prefetched = list(islice(self._prefetched, max(0, min(ahead, ASKED_PER_TURN) - len(topics))))
        for topic in prefetched:
            del self._prefetched[topic]
        return topics + prefetched

    def _waits_for_company(self, now: float, is_asking: bool) -> bool:
        """Return whether the batch waits, GATHER_S at most: while a request is in flight, or for more misses.

        The batch size doubles as long as batches fill. Publishers that wait for an answer before their next miss
        produce equal batches: then the size stays, and a lone topic is requested at once.
        """
        count = len(self._missed)
        first = self._missed_at or now
        until = now
        if count < ASKED_PER_TURN and is_asking:
            until = first + GATHER_S
        elif count < self._company:
            until = min(first, self._asked_at) + GATHER_S
        if now < until:
            self._missed_at, self.gather_until = first, until
            return True
        if count < self._company:
            self._company, self._alike = count, QUESTIONS_ALIKE
        elif self._alike:
            self._alike -= 1
        elif count > 1:
            self._company = min(2 * count, ASKED_PER_TURN)
        return False

    def waiters(self) -> int:
        """Return the number of parked publishers."""
        return sum(len(waiting) for waiting in self._waiting.values())
