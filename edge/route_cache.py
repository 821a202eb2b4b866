"""The edge's route cache: one question per topic, kept until it is invalidated; local subscribers merged in.

A miss is asked at the owner of the topic's shard, all misses of a round in one message per shard; the publisher waits
parked. An invalidation drops every matching answer, voids every outstanding question that matches, and is acknowledged
when the retained writes that used a dropped answer are finished. A new owner gets every cached topic registered, and
its answers replace the kept ones. Rules: docs/adr/0003-cluster-map-leases-completion.md.
"""

from collections.abc import Callable

from edge.hot.state import Route
from mqtt.topic_index import TopicIndex
from mqtt.topics import matches
from wire.cluster_map import ClusterMap
from wire.messages import Control, Destinations, Invalidate, Invalidated, Moved, Resolve, Resolved

__all__ = ["RouteCache"]

TOPICS_PER_RESOLVE = 2_000
RETRY_S = 0.5


class _Question:
    __slots__ = ("kept", "retry_at", "shard", "topics", "voided")

    def __init__(self, shard: int, topics: list[str], kept: bool, retry_at: float) -> None:
        self.shard = shard
        self.topics = topics
        self.kept = kept
        self.voided: set[str] = set()
        self.retry_at = retry_at


class RouteCache:
    """Cached destinations of topics, and the questions under way.

    Args:
        cluster_map: The map as of now.
        tell: Sends to a router; False when that is not possible now.
        install: Builds and installs a Route from a topic's destinations.
        drop: Makes the loop forget a topic's Route.
        routes_max: Bound of the cache; the oldest goes silently.
        next_number: Numbers a question; no life of this edge gives a number twice.
    """

    def __init__(
        self,
        cluster_map: Callable[[], ClusterMap],
        tell: Callable[[str, Control], bool],
        install: Callable[[str, Destinations], Route],
        drop: Callable[[str], None],
        routes_max: int,
        next_number: Callable[[], int],
    ) -> None:
        self._map = cluster_map
        self._tell = tell
        self._install = install
        self._drop = drop
        self._max = routes_max
        self._next_number = next_number
        self._cached: TopicIndex[Destinations] = TopicIndex()
        self._order: dict[str, None] = {}
        self._waiting: dict[str, list[Callable[[Route], None]]] = {}  # topic -> who needs it
        self._fresh: list[str] = []  # missed in this round
        self._questions: dict[int, _Question] = {}
        self._retained: dict[str, int] = {}  # topic -> retained writes under way that used its answer
        self._owed: list[tuple[str, Invalidated, set[str]]] = []  # acknowledgements that wait for those

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def outstanding(self) -> int:
        """Questions under way."""
        return len(self._questions)

    @property
    def waits(self) -> bool:
        """Whether something is asked, or could not be asked yet."""
        return bool(self._questions or self._fresh)

    # --- misses

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route when it is known; at once if it is cached."""
        known = self._cached.get(topic)
        if known is not None:
            then(self._install(topic, known))
            return
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[topic] = [then]
        self._fresh.append(topic)

    def flush(self, now: float) -> None:
        """Ask for everything that was missed in this round."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._ask(fresh, kept=False, now=now)

    def _ask(self, topics: list[str], *, kept: bool, now: float) -> None:
        cluster_map = self._map()
        if not cluster_map.base_shards:
            self._fresh.extend(topics)  # no map yet: asked in a later round
            return
        by_shard: dict[int, list[str]] = {}
        for topic in topics:
            by_shard.setdefault(cluster_map.shard_for_topic(topic), []).append(topic)
        for shard, some in sorted(by_shard.items()):
            for start in range(0, len(some), TOPICS_PER_RESOLVE):
                self._send(shard, some[start : start + TOPICS_PER_RESOLVE], kept=kept, now=now)

    def _send(self, shard: int, topics: list[str], *, kept: bool, now: float) -> None:
        placement = self._map().shards[shard]
        number = self._next_number()
        question = self._questions[number] = _Question(shard, topics, kept, now + RETRY_S * 4)
        if not self._tell(placement.owner, Resolve(number, shard, placement.epoch, topics, kept)):
            question.retry_at = now + RETRY_S

    def resolved(self, answer: Resolved, now: float) -> None:
        """Take an owner's answers; what was invalidated meanwhile is asked again."""
        question = self._questions.get(answer.request)
        if question is None or self._map().shards[question.shard].epoch != answer.shard_epoch:
            return
        del self._questions[answer.request]
        for topic, destinations in zip(question.topics, answer.answers, strict=True):
            if topic in question.voided:
                continue
            self._keep(topic, destinations)
        again = sorted(question.voided & self._waiting.keys())
        if again:
            self._ask(again, kept=False, now=now)

    def _keep(self, topic: str, destinations: Destinations) -> None:
        if self._cached.get(topic) is None and len(self._order) >= self._max:
            self._forget(next(iter(self._order)))
        self._cached.add(topic, destinations)
        self._order[topic] = None
        route = self._install(topic, destinations)
        for then in self._waiting.pop(topic, ()):
            then(route)

    def _forget(self, topic: str) -> None:
        self._cached.remove(topic)
        self._order.pop(topic, None)
        self._drop(topic)

    # --- changes

    def rebuild(self, topic_filter: str) -> None:
        """Local subscribers of a filter changed: merge them anew into the routes it matches."""
        for topic, destinations in list(self._cached.match(topic_filter)):
            self._install(topic, destinations)

    def rebuild_all(self) -> None:
        """Peers changed: every Route names them."""
        for topic in list(self._order):
            destinations = self._cached.get(topic)
            if destinations is not None:
                self._install(topic, destinations)

    def invalidate(self, router: str, order: Invalidate) -> None:
        """Drop every answer that the filters match, at any epoch; dropping is always safe."""
        dropped: set[str] = set()
        for topic_filter in order.topic_filters:
            for topic, _ in list(self._cached.match(topic_filter)):
                dropped.add(topic)
                self._forget(topic)
            for question in self._questions.values():
                question.voided.update(topic for topic in question.topics if matches(topic_filter, topic))
        answer = Invalidated(order.number, order.shard, order.shard_epoch)
        busy = {  # those of an answer that was forgotten before, too
            topic
            for topic in self._retained
            if topic in dropped or any(matches(topic_filter, topic) for topic_filter in order.topic_filters)
        }
        if busy:
            self._owed.append((router, answer, busy))
        else:
            self._tell(router, answer)

    def retained_started(self, topic: str) -> None:
        """A retained write of this topic left with the cached answer."""
        self._retained[topic] = self._retained.get(topic, 0) + 1

    def retained_finished(self, topic: str) -> None:
        """That write is acknowledged."""
        self._retained[topic] -= 1
        if self._retained[topic]:
            return
        del self._retained[topic]
        owed = []
        for router, answer, busy in self._owed:
            busy.discard(topic)
            if busy:
                owed.append((router, answer, busy))
            else:
                self._tell(router, answer)
        self._owed = owed

    def placement_changed(self, shards: set[int], now: float) -> None:
        """New owners of shards: register what is cached there, ask again what was asked there."""
        cluster_map = self._map()
        for number in [number for number, question in self._questions.items() if question.shard in shards]:
            question = self._questions.pop(number)
            topics = [topic for topic in question.topics if not question.kept]
            if topics:
                self._ask(topics, kept=False, now=now)
        by_shard: dict[int, list[str]] = {shard: [] for shard in shards}
        for topic in self._order:
            shard = cluster_map.shard_for_topic(topic)
            if shard in by_shard:
                by_shard[shard].append(topic)
        for shard, topics in sorted(by_shard.items()):
            self._send(shard, topics, kept=True, now=now)  # one message: the registration is complete with it

    def moved(self, answer: Moved, now: float) -> None:
        """The router asked does not own the shard at that epoch: ask again soon, or when the map changes."""
        question = self._questions.get(answer.request)
        if question is not None:
            question.retry_at = now + RETRY_S / 10

    def tick(self, now: float) -> None:
        """Ask again what was not answered."""
        for number, question in self._questions.items():
            if question.retry_at > now:
                continue
            placement = self._map().shards[question.shard]
            # Under its number, so that either answer will do: a registration is complete when *an* answer was taken.
            request = Resolve(number, question.shard, placement.epoch, question.topics, question.kept)
            sent = bool(placement.owner) and self._tell(placement.owner, request)
            question.retry_at = now + (RETRY_S * 4 if sent else RETRY_S)

    def waiters(self) -> int:
        """Return how many publishers wait for an answer."""
        return sum(len(waiting) for waiting in self._waiting.values())
