"""Cached topics are searched in slices: no iteration is long, and AddRoutes is answered no sooner."""

import random
import time

import pytest

import router.routes.shard
from mqtt.topics import matches
from router.routes.shard import RouteShard
from tests.turn_time import assert_within, timed
from wire.messages.routes import (
    AddRoutes,
    Destinations,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    RoutesAdded,
)

EDGES = ["e0", "e1", "e2"]
SLICE_MS = 5  # largest processor time of a slice


class Shard:
    """A shard and edges that cache their answers; links keep the order and may be slow."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard = RouteShard(0, 1, [], [], 10_000)
        self.links: dict[str, list[object]] = {name: [] for name in EDGES}
        self.caches: dict[str, dict[str, Destinations]] = {name: {} for name in EDGES}
        self.asked: dict[int, tuple[str, list[str], set[str]]] = {}  # request -> edge, topics, voided
        self.stands: dict[tuple[str, str], int] = {}  # (filter, sender) -> request that added it
        self.adds: dict[int, tuple[str, list[str]]] = {}
        self.request = 0
        self.checked = 0

    def send(self) -> None:
        for node, message in self.shard.take_sends():
            self.links[node].append(message)

    def deliver(self, edge: str) -> None:
        if not self.links[edge]:
            return
        message = self.links[edge].pop(0)
        if isinstance(message, Resolved):
            _, topics, voided = self.asked.pop(message.request)
            for topic, answer in zip(topics, message.answers, strict=True):
                if topic not in voided:
                    self.caches[edge][topic] = message.destinations[answer]
        elif isinstance(message, Invalidate):
            for topic_filter in message.topic_filters:
                for topic in [topic for topic in self.caches[edge] if matches(topic_filter, topic)]:
                    del self.caches[edge][topic]
                for requester, topics, voided in self.asked.values():
                    if requester == edge:
                        voided.update(topic for topic in topics if matches(topic_filter, topic))
            self.shard.invalidated(edge, Invalidated(message.number, 0, 1))
        elif isinstance(message, RoutesAdded) and message.request in self.adds:
            sender, filters = self.adds.pop(message.request)
            for topic_filter in filters:
                self.check(topic_filter, sender, message.request)

    def check(self, topic_filter: str, sender: str, request: int) -> None:
        """No edge uses an answer without the route, unless the filter was removed meanwhile."""
        if self.stands.get((topic_filter, sender), request + 1) > request:
            return
        for cache in self.caches.values():
            for topic, answer in cache.items():
                if matches(topic_filter, topic):
                    assert sender in answer.edges, (topic_filter, topic)
                    self.checked += 1

    def topic(self) -> str:
        return "/".join(self.rng.choice("abc") for _ in range(self.rng.randrange(1, 5)))

    def filter(self) -> str:
        levels = [self.rng.choice("abc+") for _ in range(self.rng.randrange(1, 4))]
        return "/".join(levels + ["#"] * (self.rng.random() < 0.3))

    def step(self) -> None:
        rng = self.rng
        self.request += 1
        edge = rng.choice(EDGES)
        act = rng.random()
        if act < 0.3:
            topics = sorted({self.topic() for _ in range(rng.randrange(1, 8))})
            self.asked[self.request] = (edge, topics, set())
            self.shard.resolve(edge, Resolve(self.request, 0, 1, topics))
        elif act < 0.45:
            filters = sorted({self.filter() for _ in range(rng.choice((1, 3, 12)))})
            for name in filters:
                self.stands.setdefault((name, edge), self.request)
            self.adds[self.request] = (edge, filters)
            entries = [RouteEntry(name) for name in filters]
            for _ in range(rng.choice((1, 1, 2))):  # some are repeated
                self.shard.add(edge, AddRoutes(self.request, 0, 1, -1, 1, self.request, entries))
        elif act < 0.55 and self.stands:
            name, sender = rng.choice(sorted(self.stands))
            del self.stands[name, sender]
            self.shard.remove(sender, RemoveRoutes(0, 1, -1, 1, self.request, [RouteEntry(name)]))
        elif act < 0.75:
            self.shard.run_slice(rng.randrange(1, 10))
        else:
            self.deliver(edge)
        self.send()


@pytest.mark.parametrize("seed", range(20))
def test_no_cached_answer_lacks_an_acknowledged_route(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random requests between slices of a few topics; finally every AddRoutes is answered."""
    monkeypatch.setattr(router.routes.shard, "VISITS_AT_ONCE", 3)
    shard = Shard(seed)
    for _ in range(1500):
        shard.step()
    while shard.shard.has_slices:
        shard.shard.run_slice(10)
    shard.send()
    for edge in EDGES * 2000:
        shard.deliver(edge)
        shard.send()
    assert not shard.adds
    assert not shard.shard.waits
    while shard.shard.has_slices:
        shard.shard.run_slice(10)
    assert len(shard.shard.cached.leaving_topics) == 0
    assert shard.checked > 10


@timed
def test_search_of_many_cached_topics_runs_in_slices() -> None:
    """65 536 topics of two edges: no slice takes 5 ms of processor time, and the answer waits for both edges."""
    shard = RouteShard(0, 1, [], [], 100_000)
    topics = [f"plant/s{number % 100}/l{number // 100}/state" for number in range(65_536)]
    for edge in ("e0", "e1"):
        shard.cached.hold(edge, topics, 0.0)
    entries = [RouteEntry(f"+/+/+/x{number}") for number in range(999)] + [RouteEntry("plant/+/+/state")]
    began = time.thread_time()
    shard.add("e2", AddRoutes(1, 0, 1, -1, 1, 1, entries))
    times = [time.thread_time() - began]
    while shard.has_slices:
        assert not [message for _, message in shard.take_sends() if isinstance(message, RoutesAdded)]
        began = time.thread_time()
        shard.run_slice(400)
        times.append(time.thread_time() - began)
    times.sort()
    print(f"{len(times)} slices, median {times[len(times) // 2] * 1e3:.2f} ms, longest {times[-1] * 1e3:.2f} ms")
    assert len(times) > 100
    assert_within("nine of ten slices", times[len(times) * 9 // 10] * 1e3, SLICE_MS)
    orders = [(edge, message) for edge, message in shard.take_sends() if isinstance(message, Invalidate)]
    assert [edge for edge, _ in orders] == ["e0", "e1"]
    for edge, order in orders:
        assert not [message for _, message in shard.take_sends() if isinstance(message, RoutesAdded)]
        shard.invalidated(edge, Invalidated(order.number, 0, 1))
    assert [message.request for _, message in shard.take_sends() if isinstance(message, RoutesAdded)] == [1]
    assert shard.cached_topics == 0
    while shard.has_slices:
        began = time.thread_time()
        shard.run_slice(400)
        times.append(time.thread_time() - began)
    assert_within("nine of ten, to the end", sorted(times)[len(times) * 9 // 10] * 1e3, SLICE_MS)
    assert len(shard.cached.leaving_topics) == 0
