"""No message and no death makes a router's iteration long: work continues in later iterations, in order of arrival."""

import time
from collections.abc import Iterable

import pytest

from bench.routes import EDGES, Router
from router.event_queue import RouterEventQueue
from router.events import Applied, Event, RoundEnded, RouterReady
from router.map.commands import DeclareDead, RegisterNode, encode_command
from router.routes.sender_routes import SenderRoutes
from router.routes.shard_work import STEPS_PER_ITERATION, WAITING_MAX
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.routes import (
    AddRoutes,
    Invalidate,
    Invalidated,
    ReportRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    RoutesAdded,
    SenderReport,
)
from wire.node.events import FrameArrived
from wire.node.route_registrar import REPORT_ROUTES_MAX, ROUTES_PER_REQUEST

WILD = [f"site/+/line/{number}/+" for number in range(5000)]
TOPICS = [f"site/a/line/{number}/temperature" for number in range(20_000)]
LIMIT_MS = 5  # of processor time, for three of four iterations


def frame(peer: PeerKey, message: Control) -> FrameArrived:
    return FrameArrived(peer, FrameKind.CONTROL, encode_control(message))


def waiting(events: Iterable[Event]) -> RouterEventQueue:
    left = RouterEventQueue()
    for event in events:
        left.append(event)
    return left


class IterationRecorder:
    """A router as called by its service, with measured iterations."""

    def __init__(self) -> None:
        self.router = Router()
        self.shard = self.router.shard("site/a")
        self.epoch = self.router.epoch(self.shard)
        self.times: list[float] = []
        self.sent: list[tuple[str, Control]] = []

    def handle(self, events: list[Event]) -> RouterReady:
        began = time.thread_time()
        ready = self.router.core.handle(self.router.now, events)
        self.times.append(time.thread_time() - began)
        self.sent += [(node, decode_control(data)) for node, _, data in ready.sends]
        return ready

    def run(self, *events: FrameArrived | Applied) -> None:
        """Pass events in, iteration by iteration, until the router is idle."""
        left = waiting(events)
        for _ in range(10_000):
            some = left.take(self.router.core.is_behind)
            if self.handle(some).next_deadline > self.router.now and not left:
                return
        raise AssertionError("the router never comes to an end")

    def add(self, filters: list[str], version: int = 1, peer: PeerKey = EDGES[0]) -> AddRoutes:
        routes = [RouteEntry(name) for name in filters]
        return AddRoutes(version, self.shard, self.epoch, -1, peer.incarnation, version, routes)

    def add_all(self) -> None:
        pieces = range(0, len(WILD), ROUTES_PER_REQUEST)
        self.run(*[frame(EDGES[0], self.add(WILD[at : at + ROUTES_PER_REQUEST], at + 1)) for at in pieces])
        self.times.clear()

    def taken(self, kind: type[Control]) -> list[Control]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def check(self, what: str, turns: int) -> None:
        """The work took at least this number of iterations, none of them long."""
        times = sorted(self.times)
        print(f"{len(times)} recorder, median {times[len(times) // 2] * 1e3:.2f} ms, longest {times[-1] * 1e3:.2f} ms")
        assert len(times) >= turns
        assert_within(what, times[len(times) * 3 // 4] * 1e3, LIMIT_MS)


def reports(recorder: IterationRecorder, version: int, names: list[str]) -> list[FrameArrived]:
    pieces = [names[at : at + REPORT_ROUTES_MAX] for at in range(0, len(names), REPORT_ROUTES_MAX)] or [[]]
    return [
        frame(
            EDGES[0],
            ReportRoutes(
                recorder.shard,
                recorder.epoch,
                [SenderReport(-1, 1, version, [RouteEntry(name) for name in piece], at == 0, at == len(pieces) - 1)],
            ),
        )
        for at, piece in enumerate(pieces)
    ]


@timed
def test_long_report_is_processed_in_several_iterations() -> None:
    """5 000 wildcard filters of one edge; then a report of none of them, which removes them."""
    recorder = IterationRecorder()
    recorder.run(*reports(recorder, 1, WILD))
    assert recorder.router.core.shards[recorder.shard].routes == len(WILD)
    recorder.check("a report", len(WILD) // STEPS_PER_ITERATION // 2)
    recorder.run(*reports(recorder, 2, WILD[:1]))
    assert recorder.router.core.shards[recorder.shard].routes == 1
    recorder.check("a report of one", len(WILD) // STEPS_PER_ITERATION)


@timed
def test_routes_of_a_dead_edge_are_removed_in_several_iterations() -> None:
    """Remaining ones may still be answered; a topic answered with them is invalidated afterwards."""
    recorder = IterationRecorder()
    recorder.add_all()
    ready = recorder.handle([Applied(encode_command(DeclareDead(EDGES[0].node, 1)))])
    assert ready.next_deadline <= recorder.router.now
    assert recorder.router.core.shards[recorder.shard].routes > 0
    recorder.run(frame(EDGES[1], Resolve(9, recorder.shard, recorder.epoch, TOPICS[:5000:500])))
    assert recorder.router.core.shards[recorder.shard].routes == 0
    recorder.check("a dead edge", len(WILD) // STEPS_PER_ITERATION)
    (answer,) = recorder.taken(Resolved)
    assert isinstance(answer, Resolved)
    if any(item.edges for item in answer.destinations):
        assert recorder.taken(Invalidate)


def test_restarted_edge_keeps_routes_that_it_adds_again() -> None:
    """Its next incarnation adds some filters again while those of the former one are removed."""
    recorder = IterationRecorder()
    recorder.add_all()
    recorder.handle([Applied(encode_command(DeclareDead(EDGES[0].node, 1)))])
    recorder.handle([Applied(encode_command(RegisterNode(NodeEntry(EDGES[0].node, "edge", 2, "h:1"))))])
    again = PeerKey(EDGES[0].node, "edge", 2)
    recorder.run(frame(again, recorder.add([WILD[0], WILD[2500], WILD[-1]], 1, again)))
    assert recorder.router.core.shards[recorder.shard].routes == 3
    assert recorder.taken(RoutesAdded)
    recorder.run(
        frame(EDGES[1], Resolve(9, recorder.shard, recorder.epoch, [TOPICS[0], TOPICS[2500], TOPICS[4999], TOPICS[7]]))
    )
    answer = recorder.taken(Resolved)[-1]
    assert isinstance(answer, Resolved)
    assert [answer.destinations[place].edges for place in answer.answers] == [[EDGES[0].node]] * 3 + [[]]


@timed
def test_many_resolve_requests_are_answered_in_several_iterations() -> None:
    """One of 2 000 topics gets its first ones; a hundred of 200 topics wait for each other."""
    recorder = IterationRecorder()
    recorder.add_all()
    recorder.run(frame(EDGES[1], Resolve(1, recorder.shard, recorder.epoch, TOPICS[:2000])))
    (first,) = recorder.taken(Resolved)
    assert isinstance(first, Resolved)
    assert 200 < len(first.answers) < 2000
    questions = [
        Resolve(2 + at // 200, recorder.shard, recorder.epoch, TOPICS[at : at + 200]) for at in range(0, 20_000, 200)
    ]
    recorder.run(*[frame(EDGES[1], question) for question in questions])
    recorder.check("questions", 20_000 // STEPS_PER_ITERATION // 2)
    answers = [answer for answer in recorder.taken(Resolved)[1:] if isinstance(answer, Resolved)]
    assert [(answer.request, len(answer.answers)) for answer in answers] == [(2 + at, 200) for at in range(100)]


def test_flood_of_resolve_requests_is_bounded() -> None:
    """Beyond a bound, messages that their senders repeat are dropped, others are accepted."""
    recorder = IterationRecorder()
    question = frame(EDGES[1], Resolve(1, recorder.shard, recorder.epoch, ["a"]))
    core = recorder.router.core
    core.handle(recorder.router.now, [question] * (WAITING_MAX + STEPS_PER_ITERATION + 1000))
    assert core.counts["shard_messages_dropped"] > 0
    report = ReportRoutes(recorder.shard, recorder.epoch, [SenderReport(-1, 1, 5, [RouteEntry("late")])])
    recorder.run(frame(EDGES[0], report))
    assert core.shards[recorder.shard].routes == 1


@pytest.mark.parametrize("size", [1, 100, 40_000])
def test_iteration_takes_few_bytes_and_at_least_one_event(size: int) -> None:
    events = waiting(FrameArrived(EDGES[0], FrameKind.CONTROL, b"x" * size) for _ in range(1000))
    assert len(events.take(lambda _: False)) == {1: 254, 100: 143, 40_000: 1}[size]
    assert waiting([]).take(lambda _: False) == []


def test_route_added_again_stays() -> None:
    """Routes of two incarnations of an edge are removed while the third one adds a filter of both."""
    routes = SenderRoutes()
    sender = ("e1", -1)
    for incarnation in (1, 2):
        assert routes.accept(sender, incarnation)
        for name in ("a/+", "b/+", f"only/{incarnation}"):
            assert routes.put(sender, [RouteEntry(name)], 1)
        routes.sender_dead(sender)
    assert routes.accept(sender, 3) and routes.put(sender, [RouteEntry("a/+")], 1)
    gone = []
    while routes.has_leaving:
        gone += routes.remove_some(1)
    assert sorted(gone) == ["a/+", "a/+", "b/+", "b/+", "only/1", "only/2"]
    assert routes.match("a/x") == [sender] and not routes.match("b/x") and not routes.match("only/1")
    assert (routes.routes, routes.bytes) == (1, 3)


def test_report_removes_omitted_routes_unless_added_again() -> None:
    """A route added during the removal is newer than the report."""
    routes = SenderRoutes()
    sender = ("", 7)
    routes.accept(sender, 1)
    for name in ("a", "b", "c"):
        routes.put(sender, [RouteEntry(name)], 1)
    routes.accept(sender, 2)
    routes.report_begins(sender, 1)
    routes.put(sender, [RouteEntry("a")], 1)
    assert not routes.report_ends(sender, 3)
    assert routes.report_ends(sender, 1)
    assert not routes.put(sender, [RouteEntry("b")], 2)
    assert routes.remove_some(100) == ["c"] and not routes.has_leaving
    assert routes.routes == 2


def test_invalidations_of_a_dead_edge_are_removed_in_several_iterations() -> None:
    """They complete at once, with any number of topics."""
    recorder = IterationRecorder()
    recorder.run(frame(EDGES[1], Resolve(1, recorder.shard, recorder.epoch, TOPICS[:200])))
    recorder.run(frame(EDGES[0], recorder.add(["#"])))
    assert recorder.taken(Invalidate) and not recorder.taken(RoutesAdded)
    recorder.run(Applied(encode_command(DeclareDead(EDGES[1].node, 1))))
    assert len(recorder.taken(RoutesAdded)) == 1
    shard = recorder.router.core.shards[recorder.shard]
    shard.invalidated(EDGES[1].node, Invalidated(1, recorder.shard, recorder.epoch))
    assert len(shard.cached.leaving_topics) == 0


def test_shard_messages_do_not_delay_leases_and_silence_checks() -> None:
    """They change no deadline, so iterations with only such messages skip the time checks until one is due."""
    recorder = IterationRecorder()
    question = frame(EDGES[0], Resolve(7, recorder.shard, recorder.epoch, ["site/a"]))
    rounds, dead, looked_late = 0, set(), 0.0
    due = recorder.router.now
    for _ in range(70 * 20):  # a lease is 60 s
        recorder.router.now += 0.05
        ready = recorder.handle([question])
        rounds += len(ready.rounds)
        looked_late = max(looked_late, recorder.router.now - due if ready.rounds else 0.0)
        due = ready.next_deadline
        recorder.router.core.handle(recorder.router.now, [RoundEnded(context, True) for context in ready.rounds])
        dead |= {item.command.node for item in ready.proposals if isinstance(item.command, DeclareDead)}
    assert rounds >= 4 and looked_late < 0.06, "its own heartbeats"
    assert dead == {edge.node for edge in EDGES}
