"""No message and no death makes a router's turn long: work goes on in the next ones, in the order in which it came."""

import time
from collections.abc import Iterable

import pytest

from bench.routes import EDGES, Router
from router.event_queue import RouterEventQueue
from router.events import Applied, Event, RoundEnded, RouterReady
from router.map.commands import DeclareDead, RegisterNode, encode_command
from router.routes.sender_routes import SenderRoutes
from router.routes.shard_work import STEPS_PER_TURN, WAITING_MAX
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
LIMIT_MS = 5  # of the processor, for three of four turns


def frame(peer: PeerKey, message: Control) -> FrameArrived:
    return FrameArrived(peer, FrameKind.CONTROL, encode_control(message))


def waiting(events: Iterable[Event]) -> RouterEventQueue:
    left = RouterEventQueue()
    for event in events:
        left.append(event)
    return left


class Turns:
    """A router as its service calls it, its turns measured."""

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
        """Hand events in, turn by turn, until the router waits for others."""
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
        """The work took so many turns at least, none of them long."""
        times = sorted(self.times)
        print(f"{len(times)} turns, median {times[len(times) // 2] * 1e3:.2f} ms, longest {times[-1] * 1e3:.2f} ms")
        assert len(times) >= turns
        assert_within(what, times[len(times) * 3 // 4] * 1e3, LIMIT_MS)


def reports(turns: Turns, version: int, names: list[str]) -> list[FrameArrived]:
    pieces = [names[at : at + REPORT_ROUTES_MAX] for at in range(0, len(names), REPORT_ROUTES_MAX)] or [[]]
    return [
        frame(
            EDGES[0],
            ReportRoutes(
                turns.shard,
                turns.epoch,
                [SenderReport(-1, 1, version, [RouteEntry(name) for name in piece], at == 0, at == len(pieces) - 1)],
            ),
        )
        for at, piece in enumerate(pieces)
    ]


@timed
def test_a_long_report_is_taken_in_turns() -> None:
    """5 000 wildcard filters of one edge; then a report of none of them, after which they go."""
    turns = Turns()
    turns.run(*reports(turns, 1, WILD))
    assert turns.router.core.shards[turns.shard].routes == len(WILD)
    turns.check("a report", len(WILD) // STEPS_PER_TURN // 2)
    turns.run(*reports(turns, 2, WILD[:1]))
    assert turns.router.core.shards[turns.shard].routes == 1
    turns.check("a report of one", len(WILD) // STEPS_PER_TURN)


@timed
def test_a_dead_edge_with_many_filters_leaves_in_turns() -> None:
    """Those that are left may still be answered; a topic answered with them is dropped when they are gone."""
    turns = Turns()
    turns.add_all()
    ready = turns.handle([Applied(encode_command(DeclareDead(EDGES[0].node, 1)))])
    assert ready.next_deadline <= turns.router.now
    assert turns.router.core.shards[turns.shard].routes > 0
    turns.run(frame(EDGES[1], Resolve(9, turns.shard, turns.epoch, TOPICS[:5000:500])))
    assert turns.router.core.shards[turns.shard].routes == 0
    turns.check("a dead edge", len(WILD) // STEPS_PER_TURN)
    (answer,) = turns.taken(Resolved)
    assert isinstance(answer, Resolved)
    if any(item.edges for item in answer.destinations):
        assert turns.taken(Invalidate)


def test_an_edge_that_comes_back_keeps_what_it_says_anew() -> None:
    """Its next incarnation says some filters again while those of the former one leave."""
    turns = Turns()
    turns.add_all()
    turns.handle([Applied(encode_command(DeclareDead(EDGES[0].node, 1)))])
    turns.handle([Applied(encode_command(RegisterNode(NodeEntry(EDGES[0].node, "edge", 2, "h:1"))))])
    again = PeerKey(EDGES[0].node, "edge", 2)
    turns.run(frame(again, turns.add([WILD[0], WILD[2500], WILD[-1]], 1, again)))
    assert turns.router.core.shards[turns.shard].routes == 3
    assert turns.taken(RoutesAdded)
    turns.run(frame(EDGES[1], Resolve(9, turns.shard, turns.epoch, [TOPICS[0], TOPICS[2500], TOPICS[4999], TOPICS[7]])))
    answer = turns.taken(Resolved)[-1]
    assert isinstance(answer, Resolved)
    assert [answer.destinations[place].edges for place in answer.answers] == [[EDGES[0].node]] * 3 + [[]]


@timed
def test_many_questions_are_answered_in_turns() -> None:
    """One of 2 000 topics gets its first ones; a hundred of 200 topics wait for each other."""
    turns = Turns()
    turns.add_all()
    turns.run(frame(EDGES[1], Resolve(1, turns.shard, turns.epoch, TOPICS[:2000])))
    (first,) = turns.taken(Resolved)
    assert isinstance(first, Resolved)
    assert 200 < len(first.answers) < 2000
    questions = [
        Resolve(2 + at // 200, turns.shard, turns.epoch, TOPICS[at : at + 200]) for at in range(0, 20_000, 200)
    ]
    turns.run(*[frame(EDGES[1], question) for question in questions])
    turns.check("questions", 20_000 // STEPS_PER_TURN // 2)
    answers = [answer for answer in turns.taken(Resolved)[1:] if isinstance(answer, Resolved)]
    assert [(answer.request, len(answer.answers)) for answer in answers] == [(2 + at, 200) for at in range(100)]


def test_a_flood_of_questions_is_bounded() -> None:
    """What their senders repeat is dropped beyond a bound, what nobody repeats is taken."""
    turns = Turns()
    question = frame(EDGES[1], Resolve(1, turns.shard, turns.epoch, ["a"]))
    core = turns.router.core
    core.handle(turns.router.now, [question] * (WAITING_MAX + STEPS_PER_TURN + 1000))
    assert core.counts["shard_messages_dropped"] > 0
    report = ReportRoutes(turns.shard, turns.epoch, [SenderReport(-1, 1, 5, [RouteEntry("late")])])
    turns.run(frame(EDGES[0], report))
    assert core.shards[turns.shard].routes == 1


@pytest.mark.parametrize("size", [1, 100, 40_000])
def test_a_turn_takes_few_bytes_and_one_event_at_least(size: int) -> None:
    events = waiting(FrameArrived(EDGES[0], FrameKind.CONTROL, b"x" * size) for _ in range(1000))
    assert len(events.take(lambda _: False)) == {1: 254, 100: 143, 40_000: 1}[size]
    assert waiting([]).take(lambda _: False) == []


def test_a_route_that_was_said_again_stays() -> None:
    """Two incarnations of an edge leave at once, and the third one says a filter of both."""
    routes = SenderRoutes()
    sender = ("e1", -1)
    for incarnation in (1, 2):
        assert routes.accept(sender, incarnation)
        for name in ("a/+", "b/+", f"only/{incarnation}"):
            assert routes.put(sender, [RouteEntry(name)], 1)
        routes.sender_dead(sender)
    assert routes.accept(sender, 3) and routes.put(sender, [RouteEntry("a/+")], 1)
    gone = []
    while routes.leaves:
        gone += routes.leave_some(1)
    assert sorted(gone) == ["a/+", "a/+", "b/+", "b/+", "only/1", "only/2"]
    assert routes.match("a/x") == [sender] and not routes.match("b/x") and not routes.match("only/1")
    assert (routes.routes, routes.bytes) == (1, 3)


def test_what_a_report_does_not_repeat_goes_unless_it_is_said_again() -> None:
    """A route added while the others leave is newer than the report."""
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
    assert routes.leave_some(100) == ["c"] and not routes.leaves
    assert routes.routes == 2


def test_invalidations_that_one_death_ends_are_forgotten_in_turns() -> None:
    """Orders at a dead edge are over at once, whatever they named."""
    turns = Turns()
    turns.run(frame(EDGES[1], Resolve(1, turns.shard, turns.epoch, TOPICS[:200])))
    turns.run(frame(EDGES[0], turns.add(["#"])))
    assert turns.taken(Invalidate) and not turns.taken(RoutesAdded)
    turns.run(Applied(encode_command(DeclareDead(EDGES[1].node, 1))))
    assert len(turns.taken(RoutesAdded)) == 1
    shard = turns.router.core.shards[turns.shard]
    shard.invalidated(EDGES[1].node, Invalidated(1, turns.shard, turns.epoch))
    assert len(shard.cached.leaving_topics) == 0


def test_messages_to_shards_keep_nobody_from_renewing_leases_and_seeing_who_is_silent() -> None:
    """They change no deadline, so turns with nothing else do not look at the time; until it is due."""
    turns = Turns()
    question = frame(EDGES[0], Resolve(7, turns.shard, turns.epoch, ["site/a"]))
    rounds, dead, looked_late = 0, set(), 0.0
    due = turns.router.now
    for _ in range(70 * 20):  # a lease is 60 s
        turns.router.now += 0.05
        ready = turns.handle([question])
        rounds += len(ready.rounds)
        looked_late = max(looked_late, turns.router.now - due if ready.rounds else 0.0)
        due = ready.next_deadline
        turns.router.core.handle(turns.router.now, [RoundEnded(context, True) for context in ready.rounds])
        dead |= {item.command.node for item in ready.proposals if isinstance(item.command, DeclareDead)}
    assert rounds >= 4 and looked_late < 0.06, "its own heartbeats"
    assert dead == {edge.node for edge in EDGES}
