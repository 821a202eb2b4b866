"""Schedules that break a naive router, against one router's core: each test fails without its rule."""

from collections.abc import Sequence

from router.core import RouterCore
from router.events import Applied, Event, RoleChanged, RoundEnded, RouterReady, Suspected
from router.map.commands import Bootstrap, Command, DeclareDead, Delegate, PlaceShards, RegisterNode, encode_command
from router.settings import RouterLimits
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import Heartbeat, HeartbeatReply, Moved, RegisterRequest, RequestRefused
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
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick

TIERS = {"r": "router", "s": "storage", "e": "edge"}


class Router:
    """r1, leading by default, with its clock and a Raft group that commits at once."""

    def __init__(self, *nodes: str, leads: bool = True) -> None:
        self.core = RouterCore(NodeEntry("r1", "router", 1, "h:1"), RouterLimits(lease_s=2.0, lease_margin_s=0.1))
        self.now = 0.0
        self.sent: list[tuple[str, Control]] = []
        self.proposed: list[Command] = []
        self.rounds: list[int] = []
        self.commit(Bootstrap("c", 4, 8, 1, 1, 2.0))
        for node in ("r1", *nodes):
            self.commit(self.register_command(node, 1))
        if leads:
            self.handle(RoleChanged(True, "r1"))
            self.beat()

    @staticmethod
    def register_command(node: str, incarnation: int) -> RegisterNode:
        return RegisterNode(NodeEntry(node, TIERS[node[0]], incarnation, "h:1"))

    def handle(self, *events: Event) -> RouterReady:
        ready = self.core.handle(self.now, list(events) or [NodeTick()])
        self.sent += [(node, decode_control(payload)) for node, _, payload in ready.sends]
        self.proposed += [one.command for one in ready.proposals if isinstance(one.command, Command)]
        self.rounds += ready.rounds
        return ready

    def commit(self, command: Command) -> None:
        self.handle(Applied(encode_command(command)))

    def commit_proposals(self) -> None:
        commands, self.proposed = self.proposed, []
        for command in commands:
            self.commit(command)

    def beat(self) -> None:
        """Answer the router's own heartbeat."""
        self.handle()
        self.end_rounds()

    def end_rounds(self) -> None:
        rounds, self.rounds = self.rounds, []
        self.handle(*[RoundEnded(context, True) for context in rounds])

    def tell(self, node: str, message: Control, incarnation: int = 1) -> list[Control]:
        """Send a message to the router; return its answers to the sender."""
        self.sent.clear()
        self.handle(
            FrameArrived(PeerKey(node, TIERS[node[0]], incarnation), FrameKind.CONTROL, encode_control(message))
        )
        return [answer for to, answer in self.sent if to == node]

    def epoch(self, shard: int) -> int:
        return self.core.machine.map.shards[shard].epoch

    def ready_shard(self, shard: int, edges: Sequence[str]) -> None:
        """Complete all edges' reports and registrations, without routes or topics."""
        for edge in edges:
            self.tell(edge, ReportRoutes(shard, self.epoch(shard), [SenderReport(-1, 1, 1, [])]))


def heartbeat(router: Router, edge: str, now: float, unreachable: list[str] | None = None) -> Heartbeat:
    """Return a heartbeat of an edge with the router's map."""
    cluster_map = router.core.machine.map
    return Heartbeat(edge, 1, now, cluster_map.epoch, unreachable or [], map_digest=cluster_map.digest)


def test_a1_delegation_restarts_every_shard() -> None:
    """The topic is in another shard without a new owner: that owner must collect reports first."""
    router = Router("e1")
    shard = router.core.machine.map.shard_for_topic("devices/7/temp")
    router.ready_shard(shard, ["e1"])
    assert not router.core.shards[shard].collecting
    router.commit(Delegate("devices", 2))
    assert all(owned.collecting for owned in router.core.shards.values())
    assert router.core.machine.map.shards_for_filter("devices/+/temp") == list(range(8))


def test_a2_partition_with_new_primary_must_still_report() -> None:
    """Reports count per partition: S2 must report what S1 did not."""
    router = Router("e1", "s1")
    router.commit(PlaceShards({0: "r1"}))
    router.ready_shard(0, ["e1"])
    assert router.core.shards[0].missing()[:1] == ["partition 0"]
    assert router.tell("e1", Resolve(1, 0, router.epoch(0), ["t"])) == []


def test_a5_restarted_router_owns_only_shards_of_its_incarnation() -> None:
    """The map's old placement, read from the log at the start, names a former incarnation."""
    router = RouterCore(NodeEntry("r1", "router", 2, "h:1"), RouterLimits())
    for command in (Bootstrap("c", 4, 8, 1, 1, 2.0), Router.register_command("r1", 1)):
        router.handle(0.0, [Applied(encode_command(command))])
    assert router.machine.map.shards[0].owner == "r1"
    assert router.shards == {}
    before = router.machine.map.shards[0].epoch
    router.handle(0.0, [Applied(encode_command(Router.register_command("r1", 2)))])
    assert router.shards[0].epoch == before + 1


def test_a6_messages_of_another_shard_epoch_are_refused() -> None:
    """After a shard moved away and back, requests of the older epoch are not answered."""
    router = Router("e1")
    old = router.epoch(0)
    router.commit(PlaceShards({0: "r1"}))
    router.ready_shard(0, ["e1"])
    (answer,) = router.tell("e1", Resolve(7, 0, old, ["t"]))
    assert isinstance(answer, Moved) and (answer.request, answer.epoch) == (7, old + 1)
    (answer,) = router.tell("e1", AddRoutes(8, 0, old, -1, 1, 1, [RouteEntry("t")]))
    assert isinstance(answer, Moved)
    (answer,) = router.tell("e1", Resolve(9, 0, old + 1, ["t"]))
    assert isinstance(answer, Resolved)


def test_a8_owner_without_lease_answers_nothing() -> None:
    """Without the leader it may not know that it lost its shards."""
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    router.handle(RoleChanged(False, ""))
    router.now += 2.5
    (answer,) = router.tell("e1", Resolve(1, 0, router.epoch(0), ["t"]))
    assert isinstance(answer, Moved)


def test_b1_heartbeat_after_a_proposed_death_is_not_answered() -> None:
    """The heartbeat waited for its round while the lease expired."""
    router = Router("e1")
    router.now = 2.05
    router.tell("e1", heartbeat(router, "e1", 2.0))
    router.now = 2.2
    router.handle()
    assert DeclareDead("e1", 1) in router.proposed
    router.sent.clear()
    router.end_rounds()
    replies = [message for node, message in router.sent if node == "e1" and isinstance(message, HeartbeatReply)]
    assert [reply.lease_s for reply in replies] == [0.0]


def test_b1_new_leader_grants_by_the_map_after_its_predecessors_log() -> None:
    """A death that the former leader proposed commits before the first round ends."""
    router = Router("e1")
    router.tell("e1", heartbeat(router, "e1", 0.0))
    router.commit(DeclareDead("e1", 1))
    router.sent.clear()
    router.end_rounds()
    replies = [message for node, message in router.sent if node == "e1" and isinstance(message, HeartbeatReply)]
    assert [reply.lease_s for reply in replies] == [0.0]


def test_b2_frames_of_a_dead_incarnation_change_nothing() -> None:
    """It was paused, declared dead, and continues."""
    router = Router("e1", "e2")
    router.ready_shard(0, ["e1", "e2"])
    router.commit(DeclareDead("e1", 1))
    assert router.tell("e1", AddRoutes(1, 0, router.epoch(0), -1, 1, 1, [RouteEntry("t")])) == []
    assert router.core.shards[0].routes == 0
    assert router.core.counts["frames_of_dead"] == 1


def test_a8_message_of_an_incarnation_missing_from_the_map_waits() -> None:
    """The step that ends the edge's former incarnation would remove the new one's routes and topics."""
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    assert router.tell("e1", Resolve(1, 0, router.epoch(0), ["t"]), incarnation=2) == []
    assert router.tell("e1", AddRoutes(2, 0, router.epoch(0), -1, 2, 1, [RouteEntry("t")]), incarnation=2) == []
    assert router.core.shards[0].routes == 0
    router.sent.clear()
    router.commit(Router.register_command("e1", 2))
    router.handle()
    assert [type(message) for _, message in router.sent] == [Resolved, Invalidate], router.sent
    assert router.core.shards[0].routes == 1


def test_b4_second_incarnation_does_not_acknowledge_for_the_first() -> None:
    """It is linked but not admitted; the first incarnation still has its lease and cached answers."""
    router = Router("e1", "e2")
    router.ready_shard(0, ["e1", "e2"])
    router.tell("e1", Resolve(1, 0, router.epoch(0), ["t"]))
    router.tell("e2", AddRoutes(1, 0, router.epoch(0), -1, 1, 1, [RouteEntry("t")]))
    (order,) = [message for node, message in router.sent if node == "e1" and isinstance(message, Invalidate)]
    answer = Invalidated(order.number, 0, order.shard_epoch)
    router.tell("e1", answer, incarnation=2)
    assert [message for _, message in router.sent if isinstance(message, RoutesAdded)] == []
    router.tell("e1", answer)
    assert [node for node, message in router.sent if isinstance(message, RoutesAdded)] == ["e2"]


def test_a6_acknowledgement_of_another_shard_epoch_does_not_count() -> None:
    """Invalidations of every epoch are numbered from 1."""
    router = Router("e1", "e2")
    router.ready_shard(0, ["e1", "e2"])
    router.tell("e1", Resolve(1, 0, router.epoch(0), ["t"]))
    router.tell("e2", AddRoutes(1, 0, router.epoch(0), -1, 1, 1, [RouteEntry("t")]))
    (late,) = [message for node, message in router.sent if node == "e1" and isinstance(message, Invalidate)]
    router.commit(PlaceShards({0: "r1"}))
    router.ready_shard(0, ["e1", "e2"])
    assert router.tell("e2", AddRoutes(2, 0, router.epoch(0), -1, 1, 2, [RouteEntry("u")])) == []
    orders = {}
    for edge in ("e1", "e2"):
        answers = router.tell(edge, Resolve(2, 0, router.epoch(0), ["t"], True))
        (orders[edge],) = [answer for answer in answers if isinstance(answer, Invalidate)]
    router.tell("e2", Invalidated(orders["e2"].number, 0, orders["e2"].shard_epoch))
    assert orders["e1"].number == late.number
    router.tell("e1", Invalidated(late.number, 0, late.shard_epoch))
    assert [message for _, message in router.sent if isinstance(message, RoutesAdded)] == []
    router.tell("e1", Invalidated(orders["e1"].number, 0, orders["e1"].shard_epoch))
    assert [node for node, message in router.sent if isinstance(message, RoutesAdded)] == ["e2"]


def test_b4_second_incarnation_waits_for_the_lease_of_the_first() -> None:
    """Unless it is admitted at once with the proof that the first has ended."""
    router = Router("e1", "e2")
    router.tell("e1", RegisterRequest(1, NodeEntry("e1", "edge", 2, "h:2")), incarnation=2)
    assert not any(isinstance(command, RegisterNode) for command in router.proposed)
    router.tell("e2", RegisterRequest(1, NodeEntry("e2", "edge", 2, "h:2"), ended_incarnation=1), incarnation=2)
    assert [command.entry.node for command in router.proposed if isinstance(command, RegisterNode)] == ["e2"]
    router.proposed.clear()
    router.now = 2.2
    router.handle()
    admitted = [command.entry for command in router.proposed if isinstance(command, RegisterNode)]
    assert [(entry.node, entry.incarnation) for entry in admitted] == [("e1", 2)]


def test_registration_at_a_follower_names_the_leader() -> None:
    router = Router("r2", leads=False)
    router.handle(RoleChanged(False, "r2"))
    (answer,) = router.tell("e1", RegisterRequest(3, NodeEntry("e1", "edge", 1, "h:2")))
    assert isinstance(answer, RequestRefused)
    assert (answer.request, answer.code, answer.leader_hint) == (3, "not_leader", "r2")
    (beat,) = router.tell("e1", Heartbeat("e1", 1, 0.0, 0))
    assert isinstance(beat, HeartbeatReply) and (beat.lease_s, beat.leader) == (0.0, "r2")


def test_shards_of_an_unreachable_router_move_before_its_lease_expires() -> None:
    """A new owner does not depend on the old lease: SUBSCRIBE works again well within two seconds."""
    router = Router("r2")
    peer = PeerKey("r2", "router", 1)
    router.handle(LinkUp(peer))
    assert any(shard.owner == "r2" for shard in router.core.machine.map.shards)
    router.now = 0.5
    router.handle(LinkDown(peer))
    router.now = 1.1
    router.handle()
    router.commit_proposals()
    assert all(shard.owner == "r1" for shard in router.core.machine.map.shards)
    assert router.core.machine.map.nodes["r2"].alive


def test_gossip_suspicion_does_not_end_a_lease() -> None:
    """The leader checks the lease, which is valid."""
    router = Router("r2", "e1")
    router.handle(Suspected("e1"), Suspected("r2"))
    assert router.proposed == []


def test_d1_node_unreachable_for_others_loses_its_lease() -> None:
    """E1's heartbeats reach the leader, but no node reaches E1: only its lease is stopped."""
    router = Router("e1", "e2", "e3")
    for step in range(30):
        router.now = 0.3 * step
        for edge in ("e1", "e2", "e3"):
            unreachable = {"e1": ["e2", "e3"]}.get(edge, ["e1"])
            router.tell(edge, heartbeat(router, edge, router.now, unreachable))
        router.beat()
    dead = [command for command in router.proposed if isinstance(command, DeclareDead)]
    assert dead == [DeclareDead("e1", 1)]


def test_routes_added_is_answered_after_collection() -> None:
    """The whole sequence: report, registration, its barrier, AddRoutes."""
    router = Router("e1")
    router.commit(PlaceShards({0: "r1"}))
    router.ready_shard(0, ["e1"])
    assert router.tell("e1", AddRoutes(5, 0, router.epoch(0), -1, 1, 1, [RouteEntry("t")])) == []
    answers = router.tell("e1", Resolve(6, 0, router.epoch(0), [], True))
    (order,) = [answer for answer in answers if isinstance(answer, Invalidate)]
    answers = router.tell("e1", Invalidated(order.number, 0, order.shard_epoch))
    assert [type(answer) for answer in answers] == [RoutesAdded]
