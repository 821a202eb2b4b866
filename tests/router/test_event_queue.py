"""A router's event queue: a flooding peer delays only itself, its link is paused, and no other node loses its lease."""

import pytest

from bench.routes import EDGES, Router
from router.event_queue import RouterEventQueue
from router.routes.held_messages import HELD_BYTES_MAX, HELD_MAX, SenderMessages, octets_of
from router.routes.shard_work import BEHIND_AT, STEPS_PER_ITERATION, WAITING_BYTES_MAX, BatchValidator, ShardWork
from wire.messages.control import Control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import Heartbeat
from wire.messages.routes import AddRoutes, RemoveRoutes, ReportRoutes, Resolve, RouteEntry, SenderReport
from wire.node.events import FrameArrived
from wire.node.fair_queue import LANE_BYTES_MAX

FLOODING, HONEST = EDGES[0], EDGES[1]


class Links:
    """Links that record pauses."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def pause(self, node: str) -> None:
        self.paused.add(node)

    def go_on(self, node: str) -> None:
        self.paused.remove(node)


def frame(peer: PeerKey, message: Control) -> FrameArrived:
    return FrameArrived(peer, FrameKind.CONTROL, encode_control(message))


@pytest.mark.parametrize("of", ["the past", "now"])
def test_flood_of_one_node_is_bounded_and_delays_no_heartbeat(of: str) -> None:
    """Also with messages that no sender repeats, which are never dropped: the link is paused."""
    router, links = Router(), Links()
    shard = router.shard("site/a")
    epoch = router.epoch(shard) - (of == "the past")
    events = RouterEventQueue(links)
    flood = frame(FLOODING, RemoveRoutes(shard, epoch, -1, 1, 1, [RouteEntry("a")] * (3 if of == "now" else 0)))
    beat = frame(HONEST, Heartbeat(HONEST.node, 1, 1.0, 0))
    most = 0
    for turn in range(2_000):
        for _ in range(600):
            if FLOODING.node not in links.paused:
                events.append(flood)
        if turn % 10 == 0:
            events.append(beat)
        taken = [*events.take(router.core.is_behind), *events.take(router.core.is_behind)]
        assert (beat in taken) == (turn % 10 == 0), "a heartbeat waits behind what another node sends"
        router.core.handle(router.now, taken)
        most = max(most, events.octets)
    assert events.pauses and most < 1.1 * LANE_BYTES_MAX


def test_flooding_router_is_bounded_and_delays_no_other() -> None:
    """Regression: a stolen router certificate filled a router, and all nodes' heartbeats waited behind it."""
    router, links = Router(), Links()
    events = RouterEventQueue(links)
    stolen, other = PeerKey("r8", "router", 1), PeerKey("r9", "router", 1)
    flood = frame(stolen, Heartbeat(stolen.node, 1, 1.0, 0))
    beats = [frame(peer, Heartbeat(peer.node, 1, 1.0, 0)) for peer in (other, HONEST)]
    most = 0
    for turn in range(1_000):
        while stolen.node not in links.paused:
            events.append(flood)
        most = max(most, events.octets)
        if turn % 10 == 0:
            for beat in beats:
                events.append(beat)
        taken = [*events.take(router.core.is_behind), *events.take(router.core.is_behind)]
        assert [beat in taken for beat in beats] == [turn % 10 == 0] * 2, "a heartbeat waits behind a router's flood"
        router.core.handle(router.now, taken)
    assert events.pauses and most < 1.1 * LANE_BYTES_MAX


def test_peer_is_behind_while_its_messages_are_queued() -> None:
    work = ShardWork(lambda *_: 1)
    judge = BatchValidator(1.0, Router().core.machine.map, True)
    while not work.is_behind(FLOODING.node):
        assert work.add(FLOODING, RemoveRoutes(0, 1, -1, 1, 1, []))
    assert len(work) == BEHIND_AT and not work.is_behind(HONEST.node)
    work.run_iteration(judge, {})
    assert len(work) == BEHIND_AT - STEPS_PER_ITERATION and not work.is_behind(FLOODING.node)


def test_queued_shard_messages_are_bounded_in_bytes() -> None:
    """Ten thousand long requests would be gigabytes. Messages that no sender repeats are accepted."""
    work = ShardWork(lambda *_: 1)
    judge = BatchValidator(1.0, Router().core.machine.map, True)
    question = Resolve(1, 0, 1, ["t" * 60_000] * 100)
    taken = sum(work.add(FLOODING, question) for _ in range(1_000))
    assert taken == len(work) == WAITING_BYTES_MAX // octets_of(question)
    assert work.is_behind(FLOODING.node) and not work.is_behind(HONEST.node)
    assert work.add(HONEST, ReportRoutes(0, 1, [SenderReport(-1, 1, 1, [RouteEntry("t" * 60_000)] * 100)]))
    work.run_iteration(judge, {})
    assert not work and not work.is_behind(FLOODING.node) and work.add(FLOODING, question)


def test_messages_waiting_for_reports_are_bounded_in_bytes() -> None:
    """The oldest are dropped; one message of any length stays."""
    held: SenderMessages[Resolve] = SenderMessages()
    for number in range(2_000):
        held.append("e1", Resolve(number, 0, 1, ["t" * 60_000]))
    assert len(held) < HELD_BYTES_MAX / 60_000 and held.dropped == 2_000 - len(held)
    assert [held.popleft()[1].request for _ in range(len(held))][-1] == 1_999
    held.append("e1", Resolve(0, 0, 1, ["t" * 60_000] * 100))
    assert len(held) == 1
    small: SenderMessages[AddRoutes | RemoveRoutes] = SenderMessages()
    for number in range(HELD_MAX + 5):
        small.append("e1", RemoveRoutes(0, 1, -1, 1, number, []))
    assert (len(small), small.dropped) == (HELD_MAX, 5)
    small.drop(lambda peer, _: peer == "e1")
    assert not small


def test_drops_of_a_collecting_shard_are_counted() -> None:
    router = Router(collect=False)
    shard = router.shard("site/a")
    asked = frame(HONEST, Resolve(1, shard, router.epoch(shard), ["t" * 60_000]))
    for _ in range(200):
        router.core.handle(router.now, [asked])
    assert router.core.counts["shard_messages_dropped"] > 100
