"""Topics without a cached Route: their waiting publishers, and the topics of the next Resolve requests.

A topic that a publisher waits for is *missed*. A topic further behind in the input of a publisher is *prefetched*: it
is added to the same requests behind all missed topics, within bounds. So a publisher of new topics does not delay the
first message of another publisher. Pure. Decision: docs/adr/0195-questions-wait-for-company.md.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from edge.loop.state import Route

__all__ = ["MissedTopics"]

ASKED_PER_TURN = 400
PREFETCHED_MAX = 4_000  # topics requested or queued, above which none is prefetched
PREFETCHES_IN_FLIGHT_MAX = 800  # topics in flight, above which prefetched ones stay queued
GATHER_S = 0.001  # about what an answer takes that nobody waits before
QUESTIONS_ALIKE = 16  # asked with as much company as came before, after more was waited for in vain


class MissedTopics:
    """Topics that wait for an answer.

    Attributes:
        gather_until: When missed topics that wait for company are asked for; 0: none does.
    """

    def __init__(self) -> None:
        self.gather_until = 0.0
        self._waiting: dict[str, list[Callable[[Route], None]]] = {}  # topic -> who needs it
        self._missed: dict[str, None] = {}  # not asked yet
        self._prefetched: dict[str, None] = {}  # likewise
        self._missed_at = self._asked_at = 0.0  # the first of those missed; 0: none waits. And the last question
        self._company = 1  # topics that a question waits for
        self._alike = 0  # questions left that wait for no more than that

    def __len__(self) -> int:
        """Return how many topics are not asked yet."""
        return len(self._missed) + len(self._prefetched)

    def has_room(self, cache_topics_max: int) -> bool:
        """Whether one more topic may be prefetched: answers of at most a quarter of the cache are on their way."""
        return len(self._waiting) < min(PREFETCHED_MAX, cache_topics_max // 4)

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` when the topic is answered."""
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
        """Queue a topic that no publisher waits for yet."""
        if topic not in self._waiting:
            self._waiting[topic] = []
            self._prefetched[topic] = None

    def answered(self, topic: str) -> list[Callable[[Route], None]]:
        """Return who waits for a topic, which is asked for no more."""
        return self._waiting.pop(topic, [])

    def ask_again(self, topics: Iterable[str]) -> None:
        """Ask once more for topics that have no valid answer; for those that nobody waits for when they are missed."""
        for topic in topics:
            waiting = self._waiting.get(topic)
            if waiting:
                self._missed[topic] = None
            elif waiting is not None:
                del self._waiting[topic]

    def ask_at_once(self) -> None:
        """Let the next question wait for no company."""
        self._company = 1

    def busy(self, asked: int) -> bool:
        """Whether the next turn asks for something, given how many topics are under way."""
        return len(self._missed) > ASKED_PER_TURN or (bool(self._prefetched) and asked < PREFETCHES_IN_FLIGHT_MAX)

    def gathers(self, is_asking: bool) -> bool:
        """Whether misses wait for company, and no turn is wanted before ``gather_until``."""
        return bool(self.gather_until) and len(self._missed) < (ASKED_PER_TURN if is_asking else self._company)

    def take(self, now: float, asked: int, *, is_asking: bool) -> list[str]:
        """Return the topics to ask for now, given how many are under way, and whether anything is."""
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
        """Return whether misses wait for company, GATHER_S at most: while others are asked for, or for more to come.

        More is waited for as long as that brings more. Publishers that wait for an answer before they miss again bring
        as many as before: then so many are waited for, and a lone one is asked for at once.
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
        """Return how many publishers wait for an answer."""
        return sum(len(waiting) for waiting in self._waiting.values())
