"""The orderly stop of an incarnation: messages to the leader, conditions, and time limits."""

import pytest

from tests.wire.test_lease_holder import Node
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.map_pages import map_pages
from wire.messages.nodes import DrainNode, HeartbeatReply, Leave, Registered, RequestRefused
from wire.node.lease_holder import LeaseHolder
from wire.node.orderly_stop import LAST_S, LEAVE_S, OrderlyStop, StopPhase


class Life(Node):
    """An active incarnation with a lease, its orderly stop, and another node of its tier."""

    def __init__(self, *, idle: bool = True, hands_over: bool = True, other: str = NodeState.ACTIVE) -> None:
        super().__init__()
        self.idle = idle
        self.other = other
        holder: LeaseHolder = self.holder
        self.stop = OrderlyStop(holder, 5.0, idle=lambda: self.idle, hands_over=hands_over)
        holder.router_up("r1", 0.0)
        holder.beat(0.0)
        holder.handle(0.0, "r1", Registered(1, 2))
        holder.beat(0.0)
        self.shows(NodeState.ACTIVE, 4)
        holder.handle(0.0, "r1", HeartbeatReply(2, 0.0, 60.0, 4, "r1"))

    def shows(self, state: str, epoch: int, settled: int = 0) -> None:
        """Set the state of this incarnation in the map."""
        nodes = {"e1": self.entry(2, state), "e2": NodeEntry("e2", "edge", 1, "host:2", state=self.other)}
        for page in map_pages(ClusterMap("c", epoch, nodes)):
            self.holder.handle(1.0, "r1", page)
        if settled:
            self.holder.handle(1.0, "r1", HeartbeatReply(2, 0.0, 60.0, settled, "r1"))

    def look(self, now: float) -> list[type]:
        """Run one step; return the sent stop messages."""
        self.sent.clear()
        self.stop.step(now)
        self.holder.beat(now)
        return [type(message) for _, message in self.sent if isinstance(message, DrainNode | Leave)]


def test_orderly_stop_drains_settles_leaves_and_ends() -> None:
    """It serves until all nodes have acknowledged the step, and decides no more once it has left."""
    life = Life()
    life.stop.begin(1.0)
    assert life.look(1.0) == [DrainNode]
    assert life.look(1.1) == []
    assert life.look(1.3) == [DrainNode]  # repeated without an answer
    assert life.holder.has_lease(1.3) and not life.stop.relieved
    life.shows(NodeState.DRAINING, 5)
    assert life.look(1.4) == [] and life.stop.relieved
    assert life.look(1.5) == [] and life.holder.has_lease(1.5)
    life.shows(NodeState.DRAINING, 6, settled=5)
    life.idle = False
    assert life.look(1.6) == []
    life.idle = True
    assert life.look(1.7) == [Leave]
    assert life.stop.phase == StopPhase.LEAVING and not life.holder.has_lease(1.7)
    life.holder.handle(1.8, "r1", HeartbeatReply(2, 1.6, 60.0, 6, "r1"))
    assert not life.holder.has_lease(1.8), "a late grant gives nothing back"
    life.shows(NodeState.DEAD, 7)
    life.look(1.9)
    assert life.stop.ended


def test_orderly_stop_of_an_edge_only_leaves() -> None:
    """It has no role to hand over."""
    life = Life(hands_over=False, idle=False)
    life.stop.begin(1.0)
    assert life.look(1.0) == []
    life.idle = True
    assert life.look(1.1) == [Leave]


def test_orderly_stop_without_remaining_nodes_hands_nothing_over() -> None:
    """The others stop too: the map keeps every role in its place for the next start."""
    life = Life(other=NodeState.DRAINING)
    life.stop.begin(1.0)
    life.look(1.0)
    life.shows(NodeState.DRAINING, 5)
    assert life.look(1.1) == []
    assert not life.stop.ended and life.holder.has_lease(1.1)
    assert life.look(1.1 + LAST_S) == []
    assert life.stop.ended


@pytest.mark.parametrize("answered", [False, True])
def test_orderly_stop_waits_are_bounded(answered: bool) -> None:
    """With routers without a majority, or ones that do not commit the death."""
    life = Life()
    life.stop.begin(1.0)
    life.look(1.0)
    if answered:
        life.shows(NodeState.DRAINING, 5, settled=5)
        assert life.look(1.1) == [Leave]
        life.look(1.1 + LEAVE_S)
    else:
        life.look(5.9)
        assert not life.stop.ended
        life.look(6.0)
    assert life.stop.ended


def test_orderly_stop_of_an_unlisted_incarnation_ends_at_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that waited for its first router was never listed; a replaced one is no longer listed."""
    caplog.set_level("INFO")
    dead = Life()
    dead.shows(NodeState.DEAD, 5)
    waiting = OrderlyStop(Node().holder, 5.0)
    for stop in (dead.stop, waiting):
        stop.begin(1.0)
        stop.step(1.0)
        assert stop.ended
    ends = ["stopped: the map no longer lists this incarnation", "stopped: this incarnation had not joined yet"]
    assert [message for message in caplog.messages if message.startswith("stopped")] == ends


def test_orderly_stop_finds_the_leader_by_a_refusal() -> None:
    """Drain is sent to the current leader."""
    life = Life()
    life.holder.router_up("r2", 1.0)
    life.stop.begin(1.0)
    life.look(1.0)
    assert life.sent[-1][0] == "r1"
    life.holder.handle(1.01, "r1", RequestRefused(0, "not_leader", "", "r2"))
    assert life.look(1.07) == [DrainNode]
    assert next(router for router, message in life.sent if isinstance(message, DrainNode)) == "r2"
