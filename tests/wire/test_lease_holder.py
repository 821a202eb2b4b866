"""Registration, lease and map stream of one node."""

import math

import pytest

from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.control import Control
from wire.messages.map_pages import map_pages
from wire.messages.nodes import (
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    MapPage,
    MapStep,
    Registered,
    RegisterRequest,
    RequestRefused,
)
from wire.node.lease_holder import LeaseHolder


class Node:
    """An edge of incarnation 2 and its sent messages; it has sent requests to the given routers."""

    def __init__(self, *routers: str) -> None:
        self.sent: list[tuple[str, Control]] = []
        self.holder = LeaseHolder(self.entry(2, NodeState.JOINING), self.send, lambda _: None)
        for router in routers:
            self.holder.router_up(router, 0.0)
        if routers:
            self.holder.beat(0.0)

    def entry(self, incarnation: int, state: str = NodeState.ACTIVE) -> NodeEntry:
        return NodeEntry("e1", "edge", incarnation, "host:1", state=state)

    def send(self, router: str, message: Control) -> bool:
        self.sent.append((router, message))
        return True

    def answer(self, now: float, message: Control, router: str = "r1") -> None:
        """Deliver a router's answer to a request; a heartbeat is sent before its answer."""
        beats = [message.sent_at for to, message in self.sent if to == router and isinstance(message, Heartbeat)]
        if isinstance(message, HeartbeatReply) and message.sent_at not in beats:
            self.holder.beat(message.sent_at)
        self.holder.handle(now, router, message)

    def step(self, epoch: int, entry: NodeEntry) -> MapStep:
        """Return the step to an epoch, on this node's map."""
        return MapStep(MapDelta(epoch, (entry,), before=self.holder.map.digest))

    def map(self, entry: NodeEntry, epoch: int = 4, lease_s: float = 2.0) -> MapPage:
        return map_pages(ClusterMap("c", epoch, {"e1": entry}, lease_s=lease_s))[0]


def test_lease_holder_registers_follows_and_counts_its_lease_from_sending() -> None:
    """The lease runs from when the answered heartbeat was sent, and only while the map lists this incarnation."""
    node = Node("r1")
    assert [type(message) for _, message in node.sent] == [RegisterRequest, FollowMap]
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    node.holder.beat(0.1)
    beat = node.sent[-1][1]
    assert isinstance(beat, Heartbeat) and beat.map_epoch == 4
    node.answer(0.9, HeartbeatReply(2, 0.1, 2.0, 4, "r1"))
    assert node.holder.has_lease(2.0)
    assert not node.holder.has_lease(2.1)


def test_lease_holder_ignores_the_lease_of_a_former_incarnation() -> None:
    """It ran on another host with a clock far ahead; the answer to its last heartbeat arrived on the new link."""
    node = Node("r1")
    node.answer(0.1, HeartbeatReply(1, 90_000.0, 2.0, 4, "r1"))
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    assert not node.holder.has_lease(0.2)
    assert node.holder.newest_at < 0.2


def test_lease_holder_ignores_a_former_incarnation_in_a_late_map() -> None:
    """The answer to the registration came from the leader; the map came from a lagging router."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(1)))
    node.answer(0.1, node.step(5, node.entry(1, NodeState.DEAD)))
    assert not node.holder.ended
    node.answer(0.2, node.step(6, node.entry(2)))
    assert node.holder.active
    node.answer(0.3, node.step(7, node.entry(2, NodeState.DEAD)))
    assert node.holder.ended


def test_lease_holder_ends_if_the_map_shows_it_dead_before_the_registration_answer() -> None:
    """The leader registered it, and its answer was lost with it; the next leader got no heartbeat."""
    node = Node("r1")
    node.answer(0.1, node.map(node.entry(1)))
    assert not node.holder.ended
    node.answer(5.0, node.map(node.entry(2, NodeState.DEAD), 9))
    assert node.holder.ended


def test_lease_holder_ignores_a_registration_answer_to_a_former_incarnation() -> None:
    """The former incarnation died before its registration was committed; the answer arrived on the next one's link."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 1))
    node.answer(0.1, node.map(node.entry(1)))
    node.sent.clear()
    node.holder.beat(0.5)
    assert [type(message) for _, message in node.sent] == [RegisterRequest]


def test_lease_holder_logs_a_registration_refusal_once(caplog: pytest.LogCaptureFixture) -> None:
    """For example a wiped node whose clock is behind. A missing leader is not logged as a refusal."""
    node = Node()
    node.holder.router_up("r1", 0.0)
    for code, detail in (("not_leader", "this router does not lead"), ("invalid", "is over"), ("invalid", "is over")):
        node.holder.beat(node.holder.next_deadline())
        request = node.sent[-1][1] if isinstance(node.sent[-1][1], RegisterRequest) else node.sent[-2][1]
        assert isinstance(request, RegisterRequest)
        node.answer(1.0, RequestRefused(request.request, code, detail))
    node.answer(1.0, RequestRefused(99, "invalid", "partition 3 is at 4"))
    assert [record.getMessage() for record in caplog.records] == ["the routers do not let this node in: is over"]


def test_lease_holder_is_ended_by_a_newer_incarnation() -> None:
    """Of two processes with one name, the older one ends."""
    node = Node("r1")
    node.answer(0.0, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(3)))
    assert node.holder.ended


def test_lease_holder_tries_other_routers_if_the_leader_is_silent() -> None:
    """After a lease without an answer it sends to the other routers in turn: one of them knows the leader."""
    node = Node("r1", "r2")
    node.answer(0.0, Registered(1, 2))
    node.answer(0.0, node.map(node.entry(2)))
    node.answer(0.1, HeartbeatReply(2, 0.0, 2.0, 4, "r1"))
    node.sent.clear()
    for tenth in range(1, 60):
        node.holder.beat(tenth / 10)
    asked = [router for router, message in node.sent if isinstance(message, Heartbeat)]
    assert asked[0] == "r1"
    assert set(asked[-4:]) == {"r1", "r2"}


def test_lease_holder_follows_another_router_at_once() -> None:
    """After the loss of the followed router, changes of placement must not wait for the next check."""
    node = Node("r1", "r2")
    node.answer(0.0, Registered(1, 2))
    node.answer(0.0, node.map(node.entry(2)))
    node.holder.beat(0.3)
    (followed,) = [router for router, message in node.sent if isinstance(message, FollowMap)]
    node.holder.router_down(followed)
    node.sent.clear()
    node.holder.beat(0.4)
    again = [router for router, message in node.sent if isinstance(message, FollowMap)]
    assert again and followed not in again


def test_lease_holder_stops_following_a_lagging_router() -> None:
    """Both links are up, but the followed router has an old map."""
    node = Node("r1")
    node.holder.router_up("r2", 0.1)
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(1)))  # from before our registration
    for tenth in range(2, 12):
        node.holder.beat(tenth / 10)
        node.answer(tenth / 10, HeartbeatReply(2, tenth / 10, 2.0, 4, "r2", map_epoch=9), "r2")
    assert [router for router, message in node.sent if isinstance(message, FollowMap)] == ["r1", "r2"]


def test_lease_holder_requests_the_map_again_if_a_step_is_lost() -> None:
    """Only the next step revealed the loss, and a rarely changing map stayed behind until then."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    for tenth in range(2, 40):
        node.holder.beat(tenth / 10)
        node.answer(tenth / 10, HeartbeatReply(2, tenth / 10, 2.0, 4, "r1", map_epoch=5))
    requests = [message for router, message in node.sent if isinstance(message, FollowMap)]
    assert len(requests) == 2  # its page is pending
    node.answer(4.0, node.map(node.entry(2), epoch=5))
    assert node.holder.map.epoch == 5


def test_lease_holder_sends_sizes_again_to_a_restarted_leader() -> None:
    """It leads under the same name, without the sizes sent to its former incarnation."""
    node = Node("r1")
    node.answer(0.0, Registered(1, 2))
    node.answer(0.0, node.map(node.entry(2)))
    node.answer(0.1, HeartbeatReply(2, 0.0, 2.0, 4, "r1"))
    node.holder.sizes = {7: (3, 100)}
    node.sent.clear()
    for now in (0.2, 0.8):
        node.holder.beat(now)
    node.holder.router_down("r1")
    node.holder.router_up("r1", 0.9)
    node.answer(0.9, HeartbeatReply(2, 0.8, 2.0, 4, "r1"))
    node.holder.beat(1.0)
    told = [message.sizes for _, message in node.sent if isinstance(message, Heartbeat)]
    assert told == [{7: (3, 100)}, {}, {7: (3, 100)}]


@pytest.mark.parametrize("lease_s", [2.0, 1.7])
def test_lease_holder_aligns_heartbeats_to_multiples_of_the_period(lease_s: float) -> None:
    """A late wake-up moves no later heartbeat, and an exact one repeats none."""
    node = Node()
    node.holder.router_up("r1", 0.0)
    node.holder.beat(0.1)
    node.answer(0.1, node.map(node.entry(2), lease_s=lease_s))
    now, due = 100.13, []
    node.answer(100.0, HeartbeatReply(2, 100.0, 10.0, 4, "r1"))
    for late_s in (0.0, 0.0, 0.004, 0.02, 0.0, 0.0):
        now += late_s
        node.holder.beat(now)
        node.holder.handle(now, "r1", HeartbeatReply(2, now, lease_s, 4, "r1"))
        now = node.holder.next_deadline()
        due.append(now)
    period_s = lease_s / 4
    first = math.ceil(100.13 / period_s)
    assert due == pytest.approx([(first + at) * period_s for at in range(6)])


def test_lease_holder_step_before_the_requested_page_causes_no_second_request() -> None:
    """The router sent it before it read the request: the requested page includes it."""
    node = Node("r1")
    node.answer(0.1, node.step(4, node.entry(2)))
    node.holder.beat(0.1)
    assert [type(message) for _, message in node.sent] == [RegisterRequest, FollowMap]
    node.answer(0.2, node.map(node.entry(2)))
    assert node.holder.map.epoch == 4
    node.answer(0.3, node.step(6, node.entry(2)))  # no page was requested: one step is missing
    node.holder.beat(0.3)
    assert node.sent[-1][1] == FollowMap(4) or node.sent[-2][1] == FollowMap(4)


def test_lease_holder_follows_again_after_a_replaced_connection() -> None:
    """The router saw the former connection end and forgot its followers; this node saw no end."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    node.sent.clear()
    node.holder.router_up("r1", 0.2)
    node.holder.beat(0.2)
    assert FollowMap(4) in [message for _, message in node.sent]


def test_lease_holder_of_a_router_sends_only_to_its_raft_group() -> None:
    """A router that left the group received registrations and heartbeats of all linked routers."""
    sent: list[str] = []
    group = {"r1", "r2"}

    def send(router: str, _: Control) -> bool:
        sent.append(router)
        return True

    entry = NodeEntry("r1", "router", 2, "host:1")
    holder = LeaseHolder(entry, send, lambda _: None, follows=False, group=lambda: group)
    for router in ("r8", "r2", "r9"):
        holder.router_up(router, 0.0, 5)
    for beat in range(8):
        holder.beat(float(beat))
    assert holder.linked == ["r2"] and set(sent) == {"r2"}
    group.add("r9")
    holder.take_own(8.0, ClusterMap("c", 4, {"r1": NodeEntry("r1", "router", 2, "host:1", state=NodeState.ACTIVE)}))
    holder.beat(9.0)
    assert set(sent) == {"r2", "r9"}


def contradicted() -> Node:
    """Return an active node whose map, at epoch 5, the leader reports as not a state of the log."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    node.answer(0.2, node.step(5, node.entry(2)))
    node.holder.beat(0.3)
    node.answer(0.4, HeartbeatReply(2, 0.3, 0.0, 4, "r1", map_epoch=4, reload_map=True))
    node.sent.clear()
    node.holder.beat(0.5)
    return node


def test_lease_holder_refuses_a_step_on_another_map_and_requests_the_map() -> None:
    """Its epoch matches, its digest of the previous map does not."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    node.sent.clear()
    node.answer(0.2, MapStep(MapDelta(5, (node.entry(2, NodeState.DEAD),), before=b"another")))
    node.holder.beat(0.2)
    assert node.holder.map.epoch == 4 and not node.holder.ended
    assert FollowMap(4) in [message for _, message in node.sent]


def test_lease_holder_with_a_contradicting_map_reloads_it_and_ends() -> None:
    """The log has the same epoch with another state: the actions of this incarnation are void."""
    node = contradicted()
    assert FollowMap(5) in [message for _, message in node.sent] and not node.holder.ended
    node.answer(0.6, node.map(node.entry(2)))
    assert node.holder.ended


def test_lease_holder_replaces_a_contradicting_map_by_a_newer_log() -> None:
    node = contradicted()
    node.answer(0.6, node.map(node.entry(2), 9))
    assert node.holder.map.epoch == 9 and not node.holder.ended


def test_lease_holder_accepts_a_lease_only_from_the_leader() -> None:
    """A router that also got the heartbeat grants a lease, but names another leader."""
    node = Node("r1", "r2")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)), node.holder.following)
    node.holder.beat(0.2)
    sent_at = next(message.sent_at for to, message in node.sent if to == "r2" and isinstance(message, Heartbeat))
    node.holder.handle(0.3, "r2", HeartbeatReply(2, sent_at, 2.0, 4, "r1"))
    assert not node.holder.has_lease(0.3) and node.holder.settled_epoch == 0
    node.holder.handle(0.3, "r2", HeartbeatReply(2, sent_at, 0.0, 0, "r1"))
    assert node.holder.leader == "r1", "a referral is every router's"
    node.holder.handle(0.3, "r2", HeartbeatReply(2, sent_at, 2.0, 4, "r2"))
    assert node.holder.has_lease(0.3)


def test_lease_holder_ignores_unrequested_answers() -> None:
    """From a router of the map."""
    node = Node("r1")
    node.answer(0.1, Registered(1, 2))
    node.answer(0.1, node.map(node.entry(2)))
    node.answer(0.2, node.step(5, node.entry(2, NodeState.DEAD)), "r2")
    node.holder.handle(0.2, "r2", HeartbeatReply(2, 0.1, 2.0, 4, "r2"))
    assert node.holder.map.epoch == 4 and not node.holder.ended and not node.holder.has_lease(0.2)
