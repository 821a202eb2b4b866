"""The edge's route cache: one request per topic, cached until its invalidation.

A miss sends a request to the owner of the topic's shard; the misses of an iteration share few requests. The publisher
is parked meanwhile. An invalidation voids all answers and pending requests that its filters match. It is acknowledged
after the retained writes that used a void answer have completed. Answers of a shard are void when its owner changes;
the new owner's registration is complete when those writes are. Long work runs in slices, one order after the other.
Rules: docs/protocol.md section 3, docs/adr/0023-work-in-slices.md.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge.loop.state import Route
from edge.node.slices import Slices
from edge.routes.answers import RouteAnswer, RouteAnswers
from edge.routes.invalidations import Invalidations
from edge.routes.missed_topics import MissedTopics
from wire.decoding import Unreadable
from wire.links.roster import is_shard_owner
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control
from wire.messages.nodes import Moved
from wire.messages.pieces import pieces
from wire.messages.routes import Invalidate, Invalidated, Resolve, Resolved

__all__ = ["RouteCache"]

TOPICS_PER_RESOLVE = 200  # an answer is decoded at once
SKIPPED_MAX = 8  # topics in use that are passed over per eviction
RETRY_S = 0.5
TOPIC_BYTES = 700  # of a cached topic with its Routes, without its name and shared objects
STEPS_MAX = 30  # per iteration, see the next two
TOPICS_PER_STEP = 5  # answers stored
FILTERS_PER_STEP = 20  # of an invalidation
WRITES_PER_STEP = 50  # retained writes checked
EVICTED_MAX = 16  # evictions per new topic, until the byte limit is met
SWEEP_TOPICS = 150  # checked at once
SWEEP_S = 0.02  # between two checks
ORDER_BYTES_MAX = 32 * 1024 * 1024  # pending orders of one router; it repeats an order above the limit
ORDER_BYTES = 512  # of an order, and of a filter, without its text
WILDCARD_BURST, WILDCARD_PER_S = 100.0, 10.0  # orders with a wildcard; those above the rate are batched


class _Request:
    __slots__ = ("number", "retry_at", "shard", "topics")

    def __init__(self, shard: int, topics: list[str], number: int, retry_at: float) -> None:
        self.shard = shard
        self.topics = topics  # empty: a registration
        self.number = number  # completed invalidations at the first request
        self.retry_at = retry_at


class _Probe(NamedTuple):
    number: int
    shard: int
    then: Callable[[], None]


NO_PROBE = _Probe(0, 0, lambda: None)


class _Cached:
    __slots__ = ("answer", "number", "shard", "shard_epoch")

    def __init__(self, answer: RouteAnswer, number: int, shard: int, shard_epoch: int) -> None:
        self.answer = answer
        self.number = number  # latest invalidation that it was checked against
        self.shard = shard
        self.shard_epoch = shard_epoch


class RouteCache:
    """Cached destinations of topics, and the pending requests.

    Args:
        cluster_map: Returns the current map.
        tell: Sends to a router; False when that is impossible now.
        tell_all: Sends several messages; returns how many were accepted.
        answers: Deduplicates equal answers.
        install: Builds and installs a Route from a topic's answer.
        drop: Deletes a topic's Route from the loop.
        check: Renews a topic's Route if it is outdated.
        clear_used: Returns whether several messages used a topic's Route lately.
        changed: Makes the loop check every Route before its next use.
        topics_max: Limit of the cache; the oldest unused topic is evicted.
        has_room: Returns whether the byte limit is met, given the topics' bytes.
        next_number: Numbers a request, uniquely over all incarnations of this edge.
    """

    def __init__(
        self,
        cluster_map: Callable[[], ClusterMap],
        tell: Callable[[str, Control], bool],
        tell_all: Callable[[str, list[Control]], int],
        answers: RouteAnswers,
        install: Callable[[str, RouteAnswer], Route],
        drop: Callable[[str], None],
        check: Callable[[str], object],
        clear_used: Callable[[str], bool],
        changed: Callable[[], None],
        topics_max: int,
        has_room: Callable[[int], bool],
        next_number: Callable[[], int],
    ) -> None:
        self._map = cluster_map
        self._tell = tell
        self._tell_all = tell_all
        self._answers = answers
        self._install = install
        self._drop = drop
        self._check = check
        self._clear_used = clear_used
        self._changed = changed
        self._max = topics_max
        self._has_room = has_room
        self._next_number = next_number
        self.bytes = 0  # of the topics, without shared objects
        self.wide_delayed = 0
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        self._void = Invalidations()
        self._misses = MissedTopics()
        self._requests: dict[int, _Request] = {}
        self._probe = NO_PROBE  # a request without a cached answer
        self._answered: set[_Request] = set()  # whose answers are being processed
        self._retained: dict[str, int] = {}  # topic -> retained writes in flight that used its answer
        self._pending_acks: list[tuple[str, Invalidated, set[str]]] = []  # acknowledgements that wait for those writes
        self._work = Slices(STEPS_MAX, in_order=True)
        self._orders: list[tuple[str, Invalidate]] = []  # with a wildcard, above the rate
        self._order_bytes: Counter[str] = Counter()  # of pending orders, by router
        self._wildcard_tokens = WILDCARD_BURST  # orders with a wildcard within the rate
        self._wildcard_at = 0.0
        self._sweep: list[str] = []  # topics not checked yet
        self._sweep_number = 0
        self._sweeping = False
        self._stale = False  # unused Routes may hold closed subscribers
        self._sweep_at = 0.0

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def outstanding(self) -> int:
        """Number of pending requests."""
        return len(self._requests)

    @property
    def waits(self) -> bool:
        """Whether a request is pending or queued."""
        return bool(self._requests or len(self._misses))

    @property
    def busy(self) -> bool:
        """Whether the next iteration has work that needs no answer."""
        return bool(len(self._work)) or self._misses.busy(self._topics_in_flight())

    @property
    def is_batching(self) -> bool:
        """Whether missed topics are being batched, and no iteration is needed before ``next_deadline``."""
        return self._misses.is_batching(bool(self._requests))

    def next_deadline(self) -> float:
        """Return when ``flush`` has work that needs no answer."""
        at = self._sweep_at if self._sweeping or self._void.has_filters or self._stale else float("inf")
        if self._misses.batch_until:
            at = min(at, self._misses.batch_until)
        return min(at, self._wildcard_at + 1 / WILDCARD_PER_S) if self._orders else at

    # --- misses

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route when it is known; at once if it is cached."""
        answer = self.answer(topic)
        if answer is not None:
            then(self._install(topic, answer))
            return
        self._misses.need(topic, then)

    def prefetch(self, topic: str) -> bool:
        """Request the Route of a topic before a message needs it. False: too many are requested."""
        if not self._misses.has_room(self._max):
            return False
        if self.answer(topic) is None:
            self._misses.prefetch(topic)
        return True

    def answer(self, topic: str) -> RouteAnswer | None:
        """Return the cached answer for a topic if it is valid; else delete it."""
        cached = self._cached.get(topic)
        if cached is None:
            return None
        if cached.number != self._void.done:
            if self._void.is_void(topic, cached.number):
                self._remove(topic)
                return None
            cached.number = self._void.done
        if not self._is_owned(cached.shard, cached.shard_epoch):
            self._remove(topic)
            return None
        self._answers.resolve_peers(cached.answer)
        return cached.answer

    def _is_owned(self, shard: int, shard_epoch: int) -> bool:
        shards = self._map().shards
        return shard < len(shards) and shards[shard].epoch == shard_epoch

    def flush(self, now: float) -> None:
        """Send requests for missed topics and continue pending work; once per iteration."""
        self._work.next_turn()
        self._start_orders(now)
        if (self._sweeping or self._void.has_filters or self._stale) and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._continue_sweep()
        if not self._map().base_shards:  # retried in a later iteration
            return
        topics = self._misses.take(now, self._topics_in_flight(), has_requests=bool(self._requests))
        if topics:
            self._send_requests(topics, now)

    def _topics_in_flight(self) -> int:
        return sum(len(request.topics) for request in self._requests.values())

    def _send_requests(self, topics: list[str], now: float) -> None:
        cluster_map = self._map()
        by_shard: dict[int, list[str]] = {}
        for topic in topics:
            by_shard.setdefault(cluster_map.shard_for_topic(topic), []).append(topic)
        by_owner: dict[str, list[tuple[_Request, Control]]] = {}  # by owner: they are sent together
        for shard, some in sorted(by_shard.items()):
            for piece in pieces(some, TOPICS_PER_RESOLVE):
                number, request = self._add_request(shard, piece, now)
                owner, message = self._message(number, request)
                by_owner.setdefault(owner, []).append((request, message))
        for owner, requests in by_owner.items():
            accepted = self._tell_all(owner, [message for _, message in requests])
            for request, _ in requests[accepted:]:
                request.retry_at = now + RETRY_S

    def _add_request(self, shard: int, topics: list[str], now: float) -> tuple[int, _Request]:
        number = self._next_number()
        request = self._requests[number] = _Request(shard, topics, self._void.done, now + RETRY_S * 4)
        return number, request

    def _send(self, shard: int, topics: list[str], now: float) -> None:
        number, request = self._add_request(shard, topics, now)
        if not self._tell(*self._message(number, request)):
            request.retry_at = now + RETRY_S

    def _message(self, number: int, request: _Request) -> tuple[str, Resolve]:
        placement = self._map().shards[request.shard]
        topics = request.topics
        return placement.owner, Resolve(number, request.shard, placement.epoch, topics, not topics)

    def probe(self, shard: int, topic: str, then: Callable[[], None]) -> bool:
        """Request a topic without caching the answer, then call ``then``; replaces the former probe.

        The owner counts the topic as cached by this edge. Invalidating a topic that is not cached is acknowledged
        too.
        """
        placement = self._map().shards[shard]
        number = self._next_number()
        self._probe = _Probe(number, shard, then)
        return self._tell(placement.owner, Resolve(number, shard, placement.epoch, [topic]))

    def resolved(self, router: str, answer: Resolved) -> bool:
        """Process an owner's answers to the first topics; request omitted and invalidated topics again.

        Returns:
            False: the map names another owner of the requested shard; nothing changed.

        Raises:
            Unreadable: The answers do not fit the request, or name missing destinations.
        """
        request = self._requests.get(answer.request)
        if request is None:
            return self._probed(router, answer)
        if not is_shard_owner(self._map(), router, request.shard):
            return False
        if not self._is_owned(request.shard, answer.shard_epoch):
            return True
        count, topics = len(answer.answers), request.topics
        if count > len(topics) or (topics and not count):
            raise Unreadable(f"{count} answers for {len(topics)} topics")
        if answer.answers and max(answer.answers) >= len(answer.destinations):
            raise Unreadable(f"answer {max(answer.answers)} of {len(answer.destinations)}")
        del self._requests[answer.request]
        request.topics = topics[:count]
        if count < len(topics):
            self._misses.request_again(topics[count:])
            self._misses.skip_batching()  # these topics have already waited
        self._answered.add(request)
        self._work.add(self._resolving(request, answer))
        return True

    def _probed(self, router: str, answer: Resolved) -> bool:
        number, shard, then = self._probe
        if answer.request == number:
            if not is_shard_owner(self._map(), router, shard):
                return False
            self._probe = NO_PROBE
            then()
        return True

    def _resolving(self, request: _Request, answer: Resolved) -> Iterator[int]:
        shared: dict[int, RouteAnswer] = {}
        for position, (topic, place) in enumerate(zip(request.topics, answer.answers, strict=True)):
            if position % TOPICS_PER_STEP == 0 and position:
                yield 1
            same = shared.get(place)
            if same is None:
                same = shared[place] = yield from self._answers.find_or_create(answer.destinations[place])
            if not self._is_owned(request.shard, answer.shard_epoch) or self._void.is_void(topic, request.number):
                self._misses.request_again((topic,))
                continue
            cached = _Cached(same, self._void.done, request.shard, answer.shard_epoch)
            self._answers.resolve_peers(cached.answer)
            self._add(topic, cached)
        self._answered.discard(request)

    def _add(self, topic: str, cached: _Cached) -> None:
        if topic not in self._cached:
            self.bytes += TOPIC_BYTES + 3 * len(topic)
            if len(self._cached) >= self._max:
                self._evict_one()
        for _ in range(EVICTED_MAX):
            if self._has_room(self.bytes) or not self._cached:
                break
            self._evict_one()
        self._cached[topic] = cached
        route = self._install(topic, cached.answer)
        for then in self._misses.take_callbacks(topic):
            then(route)

    def _evict_one(self) -> None:
        """Evict the oldest unused topic: a client with many new topics does not evict the topics of others."""
        for _ in range(SKIPPED_MAX):
            topic = next(iter(self._cached))
            if not self._clear_used(topic):
                break
            self._cached.move_to_end(topic)
        self._remove(next(iter(self._cached)))

    def _remove(self, topic: str) -> None:
        if self._cached.pop(topic, None) is not None:
            self.bytes -= TOPIC_BYTES + 3 * len(topic)
        self._drop(topic)

    # --- changes

    def invalidate(self, router: str, order: Invalidate, now: float) -> bool:
        """Void every answer that the filters match, at any epoch; dropping is always safe.

        Consecutive orders with a wildcard are batched: each may void the whole cache, and no route is confirmed before
        the acknowledgement. Returns False, without effect, if the router has too many pending orders; the router
        repeats an unacknowledged order.
        """
        octets = _order_octets(order)
        if self._order_bytes[router] + octets > ORDER_BYTES_MAX:
            return False
        self._order_bytes[router] += octets
        if len(self._cached) and any("+" in name or "#" in name for name in order.topic_filters):
            self._orders.append((router, order))
            self._start_orders(now)
        else:
            self._work.add(self._invalidating(router, order))
        return True

    def _start_orders(self, now: float) -> None:
        self._wildcard_tokens = min(WILDCARD_BURST, self._wildcard_tokens + (now - self._wildcard_at) * WILDCARD_PER_S)
        self._wildcard_at = now
        if not self._orders:
            return
        if self._wildcard_tokens < 1.0:
            self.wide_delayed += 1
            return
        self._wildcard_tokens -= 1.0
        orders, self._orders = self._orders, []
        for router, order in orders:
            self._work.add(self._invalidating(router, order))

    def _invalidating(self, router: str, order: Invalidate) -> Iterator[int]:
        void = self._void
        void.begin()
        for position, name in enumerate(order.topic_filters):
            if position % FILTERS_PER_STEP == 0 and position:
                yield 1
            void.add(name)
        number = void.complete()
        if order.topic_filters:
            self._changed()  # before the acknowledgement: from now on the filters are checked before a Route is used
        busy = set()
        for position, topic in enumerate(list(self._retained)):  # including those of an evicted answer
            if position % WRITES_PER_STEP == 0 and position:
                yield 1
            if order.topic_filters:
                is_busy = void.is_matched(topic, number)
            else:  # a registration: the new owner does not know the answers that these writes used
                is_busy = self._map().shard_for_topic(topic) == order.shard
            if is_busy and topic in self._retained:
                busy.add(topic)
        void.end()
        self._order_bytes[router] -= _order_octets(order)
        answer = Invalidated(order.number, order.shard, order.shard_epoch)
        busy = {topic for topic in busy if topic in self._retained}
        if busy:
            self._pending_acks.append((router, answer, busy))
        else:
            self._tell(router, answer)

    def retained_started(self, topic: str) -> None:
        """Count a retained write that was sent with the cached answer."""
        self._retained[topic] = self._retained.get(topic, 0) + 1

    def retained_finished(self, topic: str) -> None:
        """Count its acknowledgement."""
        self._retained[topic] -= 1
        if self._retained[topic]:
            return
        del self._retained[topic]
        pending_acks = []
        for router, answer, busy in self._pending_acks:
            busy.discard(topic)
            if busy:
                pending_acks.append((router, answer, busy))
            else:
                self._tell(router, answer)
        self._pending_acks = pending_acks

    def placement_changed(self, shards: set[int], now: float, *, jurisdiction: bool = False) -> None:
        """Void the answers of shards with new owners, and repeat pending requests.

        Each new owner receives an empty registration: a topic is requested, and thereby registered, at its next use.
        """
        for number in [number for number, request in self._requests.items() if request.shard in shards]:
            self._misses.request_again(self._requests.pop(number).topics)
        if jurisdiction:
            self._void.void_all()
        self._changed()
        for shard in sorted(shards):
            self._send(shard, [], now)

    def look_again(self) -> None:
        """Schedule a sweep that renews unused Routes after subscribers or peers changed."""
        self._stale = True

    def _continue_sweep(self) -> None:
        """Check some unused topics; after the last one delete the filters of the sweep."""
        if not self._sweeping:
            if self._void.is_open:
                return
            self._sweeping = True
            self._stale = False
            self._sweep = list(dict.keys(self._cached))  # an OrderedDict's own iterator takes ten times as long
            self._sweep_number = self._void.begin_sweep()
        for topic in self._sweep[-SWEEP_TOPICS:]:
            if self.answer(topic) is not None:
                self._check(topic)
        del self._sweep[-SWEEP_TOPICS:]
        if self._sweep:
            return
        self._sweeping = False
        for request in (*self._requests.values(), *self._answered):
            if request.number < self._sweep_number:
                request.number = -1  # any answer to it is void
        self._void.end_sweep()

    def moved(self, router: str, answer: Moved, now: float) -> bool:
        """Retry a request soon: the router does not own the shard at that epoch.

        Returns:
            False: the map names another owner, so this router was not asked.
        """
        request = self._requests.get(answer.request)
        if request is None:
            return True
        if not is_shard_owner(self._map(), router, request.shard):
            return False
        request.retry_at = now + RETRY_S / 10
        return True

    def tick(self, now: float) -> None:
        """Repeat requests without an answer."""
        for number, request in self._requests.items():
            if request.retry_at > now:
                continue
            # With the same number, because either answer will do: *any* answer completes a registration.
            owner, message = self._message(number, request)
            sent = bool(owner) and self._tell(owner, message)
            request.retry_at = now + (RETRY_S * 4 if sent else RETRY_S)

    def waiters(self) -> int:
        """Return the number of parked publishers."""
        return self._misses.waiters()


def _order_octets(order: Invalidate) -> int:
    return ORDER_BYTES * (1 + len(order.topic_filters)) + sum(map(len, order.topic_filters))
