"""Router state outside Raft: map machine, leases, owned shards, map stream, operators' requests.

Sans-IO. The shell passes committed commands as ``Applied`` and executes ``proposals`` and ``rounds`` of each Ready.
Messages of this node to itself use the same path as messages of a link.
"""

import logging
from collections.abc import Callable, Sequence
from typing import cast

from conf.events import say
from membership.node_gossip import BelievedState
from router.answering import RequestHandler
from router.events import Applied, Event, OrderDone, ProposalFailed, RoleChanged, RoundEnded, RouterReady
from router.frame_gate import FrameGate
from router.heartbeats import Heartbeats
from router.map.commands import Bootstrap, Command, DeclareDead, PlaceShards, StopNodes
from router.map.group_members import Group, find_non_members, is_in_group
from router.map.late_storage import LateStorage
from router.map.leases import LeaseTable, live_incarnations
from router.map.machine import MapMachine
from router.map.map_stream import MapStream
from router.map.placement_requests import PlacementRequests
from router.map.rebalance_run import RebalanceRunner
from router.map.registrations import Registrations
from router.map.stop_requests import StopRequests
from router.operators.node_orders import NodeOrders, Orders
from router.operators.ring_commands import PendingMoves
from router.outbox import RouterOutbox
from router.placement.reachability import Reachability
from router.placement.successor import Successor
from router.policy import router_snapshot
from router.policy.log_entry import read_entry
from router.policy.policy_service import PolicyQuestion, PolicyService
from router.policy.pruning import PruneSchedule
from router.proposing import Proposer
from router.relaying import MessageRelay
from router.routes.owned_shards import OwnedShards
from router.routes.shard import RouteShard
from router.routes.shard_work import BatchValidator, ShardMessage
from router.settings import RouterLimits
from wire.decoding import Unreadable
from wire.links.allowed import TIER
from wire.links.refusals import Refusals
from wire.links.roster import Roster
from wire.messages.cluster_map import MapDelta, NodeEntry
from wire.messages.control import Control
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import (
    DrainNode,
    FollowMap,
    Heartbeat,
    Leave,
    RegisterRequest,
    Relay,
    RequestChange,
    RequestRefused,
)
from wire.messages.operators import Admin
from wire.messages.queries import Query
from wire.node.events import FrameArrived, LinkDown, LinkUp
from wire.node.lease_holder import LeaseHolder
from wire.node.orderly_stop import OrderlyStop

__all__ = ["RouterCore"]

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2.0  # time limit of an orderly stop while other routers have not taken over
CHECK_S = 0.25  # interval of checks for unanswered messages
NEVER = float("inf")


class RouterCore:
    """One router."""

    def __init__(
        self,
        entry: NodeEntry,
        settings: RouterLimits,
        *,
        ended_incarnation: int = 0,
        group: Group = None,
        believes: Callable[[], dict[str, BelievedState]] = dict,
        utc: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Initialize the core.

        Args:
            group: Returns the members of the Raft group, empty while this router joins. None: members of the map.
            believes: Returns gossip's state of each node, for operators.
            utc: Seconds since the epoch, by this machine's clock.
        """
        self.node = entry.node
        self.settings = settings
        self.machine = MapMachine()
        self.leases = LeaseTable(settings.lease_s, settings.lease_margin_s)
        self.leads = False
        self.leader = ""
        self.counts: dict[str, int] = {}
        self.holder = LeaseHolder(
            entry, self._to_router, lambda _: None, follows=False, ended_incarnation=ended_incarnation,
            count=self.count, group=group,
        )  # fmt: skip
        refusals = Refusals(self.count)
        self._gate = FrameGate(self.count, refusals, Roster(lambda: self.machine.map, group, at_router=True))
        self._outbox = RouterOutbox(self.node, self.count)
        self.send_message = self._outbox.send_message
        self._relay = MessageRelay(self.send_message, self.count)
        self._owned = OwnedShards(self.node, settings.cached_topics_max, self.send_message, self.count, refusals)
        self.is_behind = self._owned.is_behind
        self.believes = believes
        self._now = 0.0
        self._stream = MapStream(settings.map_page_bytes)
        self._registrations = Registrations()
        self._proposer = Proposer(self.machine, lambda: self.policy.epoch, self.send_message, self._refuse, self.count)
        self.propose = self._proposer.propose
        pruning = PruneSchedule(utc, settings.prune_late_s)
        self.policy = PolicyService(
            self.send_message,
            self._outbox.send,
            self._proposer.propose_policy,
            self.count,
            utc,
            settings.map_page_bytes,
            pruning,
        )
        self._heartbeats = Heartbeats(
            self.node, self.leases, self.policy, self.send_message, settings.lease_s, self.count
        )
        self.contradictions = self._heartbeats.contradictions
        self._orders = NodeOrders(self.send_message)
        self._group = group
        self._requests = RequestHandler(
            self, self.policy, self._orders, self.propose, self.send_message, self.count, utc
        )
        self.looks, self.journal = self._requests.operators.queries, self._requests.operators.journal
        self._placement_requests = PlacementRequests()
        self._rounds: list[int] = []
        self._bootstrapping = False
        self._next_check = -NEVER
        self._has_peers = False  # the map has other live routers
        self._changed = True  # by an event other than a shard message: leases and deadlines are checked
        self._deadline = self._next_time = -NEVER  # of all parts but the shards; next unconditional lease check
        self.reach = Reachability(entry.node)
        self.stop = OrderlyStop(self.holder, STOP_TIMEOUT_S, idle=lambda: not (self.leads or self.shards))
        self._stops = StopRequests()
        self._successor = Successor()
        self.rebalancer = RebalanceRunner(self.machine, self.leases, self.propose)
        self._due = PendingMoves()
        self._late_storage = LateStorage(self.machine, self.leases, self.propose)

    # --- the one entry

    def handle(self, now: float, events: Sequence[Event]) -> RouterReady:
        """Process the events of one iteration; return the work for the shell."""
        self._now = now
        for event in events:
            if isinstance(event, FrameArrived):
                self._frame(event)
                continue
            self._changed = True
            if isinstance(event, Applied):
                self._applied(event.data)
            elif isinstance(event, RoundEnded):
                self._round_ended(event)
            elif isinstance(event, RoleChanged):
                self._role_changed(event)
            elif isinstance(event, ProposalFailed):
                self._proposal_failed(event)
            elif isinstance(event, LinkUp):
                self.reach.link_up(event.peer)
                if event.peer.tier == TIER_ROUTER:
                    self.holder.router_up(event.peer.node, now, event.peer.incarnation)
            elif isinstance(event, LinkDown):
                self._link_down(event.peer)
            elif isinstance(event, OrderDone):
                self.send_message(event.router, event.answer)
        for peer, message in self._gate.registered(now):
            self._control_of(peer, message)
        if self._owned.has_work and not _only_raft(events):
            leased = self.holder.has_lease(now) if self.machine.map.lease_s else True
            self._owned.run_iteration(BatchValidator(now, self.machine.map, leased))
        if self._changed or now >= self._next_time or not events or self.stop.begun:
            self._process_timers(now)  # also after Suspected: checks leases and links by their own rules
        self.looks.turn(now)
        return self._ready()

    def _ready(self) -> RouterReady:
        self._owned.send()
        late = self._take_own()
        ready = RouterReady(
            self._proposer.take(),
            self._rounds,
            self._outbox.take_sends(),
            self._next_deadline(),
            self._requests.take_for_process(),
            self._orders.take_for_process(),
            self._gate.take_violations(),
            ended=self.holder.ended and not self.stop.begun,
            stopped=self.stop.ended,
        )
        self._rounds = []
        self._changed = late
        if self.leads and self.stop.settled:  # only then: a new leader lacks the acknowledged epochs
            ready.transfer = self._successor.take_next(self._now, self.machine.map)
        return ready

    def _next_deadline(self) -> float:
        if self._changed:
            self._deadline = self._parts_deadline()
            self._next_time = min(self._deadline, self._next_check)
        if self._owned.has_work or self.looks.next_deadline() <= self._now:
            return min(self._now, self._deadline)
        # Unanswered messages and silent routers are checked at this time, even without a heartbeat.
        return min(self._next_time if self.leads and self._owned.waits else self._deadline, self.looks.next_deadline())

    def _parts_deadline(self) -> float:
        deadline = min(self.holder.next_deadline(), self.stop.next_deadline(), self._orders.next_deadline())
        if not self.leads:
            return deadline
        has_checks = self._has_peers or self.leases.ending
        deadline = min(deadline, self.leases.next_deadline(), self._stops.next_deadline(), self.policy.next_deadline())
        return min(deadline, self._next_check) if has_checks else deadline

    def _process_timers(self, now: float) -> None:
        self._changed = True
        self.stop.step(now)
        if is_in_group(self._group, self.node):  # the leader refuses heartbeats of other routers
            self.holder.beat(now)
        self._take_own()
        if now >= self._next_check:
            self._next_check = now + CHECK_S
            self._check_peers(now)
        self.policy.step(now)
        self._orders.step(now)
        if not self.leads:
            return
        for placements, requesters in self._placement_requests.take():
            self.propose(placements, changes=requesters)
        self.rebalancer.tick(now)
        for node, incarnation in self.leases.expired(now, self.machine.map):
            self.propose(DeclareDead(node, incarnation))
        if stopping := self._stops.take(now):
            self.propose(StopNodes(stopping))
        self._admit_due()
        context = self.leases.next_round()
        if context is not None:
            self._rounds.append(context)

    def _check_peers(self, now: float) -> None:
        """Repeat unacknowledged messages; find unreachable peers and shards of silent routers."""
        cluster_map = self.machine.map
        unanswered = self._owned.repeat(now, cluster_map)
        self.holder.unreachable = self.reach.unreachable(now, cluster_map, unanswered)
        self._owned.note_sizes(self.holder.sizes)
        if not self.leads:
            return
        self._late_storage.check(now)
        if (stop_command := find_non_members(self._group, cluster_map)) is not None:
            self.propose(stop_command)
        owners = self.reach.reassign_shards(now, cluster_map, self.leases.silent_s)
        if owners:
            self.count("shards_rescued", len(owners))
            self.propose(PlaceShards(owners, {number: cluster_map.shards[number].epoch for number in owners}))
        node = self.reach.worst_connected(now, cluster_map, self.leases.complaints(cluster_map))
        stopped = (node, cluster_map.nodes[node].incarnation) if node else None
        if stopped is None and not self.leases.ending:
            stopped = self.policy.waits.find_overdue(now)
        if stopped is not None:
            self.count("leases_stopped")
            self.leases.stop(stopped)

    def _take_own(self) -> bool:
        """Process this router's messages to itself; return whether there were any."""
        any_message = False
        while (message := self._outbox.take_own()) is not None:
            any_message = True
            self._control(self.node, None, message)
        return any_message

    # --- the operators' view

    @property
    def now(self) -> float:
        """Time of the iteration."""
        return self._now

    @property
    def shards(self) -> dict[int, RouteShard]:
        """Shards owned here."""
        return self._owned.shards

    # --- sending and proposing

    def _to_router(self, router: str, message: Control) -> bool:
        self.send_message(router, message)
        return True

    def rebalance_due(self) -> int:
        """Return the number of partitions that are not at their node of the ring."""
        return self._due.of(self.machine.map)

    def rebalance_status(self) -> dict[str, object]:
        """Return the state of the current or last rebalance."""
        return self.rebalancer.status(self._now)

    def _proposal_failed(self, event: ProposalFailed) -> None:
        proposed = self._proposer.failed(event.number, event.leader_hint)
        command = proposed.command if proposed is not None else None
        if isinstance(command, DeclareDead):
            self.leases.proposal_failed((command.node, command.incarnation))
        if isinstance(command, Bootstrap):
            self._bootstrapping = False

    def _refuse(self, peer: str, request: int, code: str, detail: str) -> None:
        self.send_message(peer, RequestRefused(request, code, detail, self.leader))

    # --- Raft

    def restore(self, data: bytes) -> None:
        """Replace the map and the policy with those of a Raft snapshot."""
        router_snapshot.restore(data, self.machine, self.policy.machine)
        self._map_replaced()
        self.policy.replaced(self._now)

    def capture(self) -> Callable[[], bytes]:
        """Return a function that encodes the current map and policy, in any thread."""
        return router_snapshot.capture(self.machine, self.policy.machine)

    def _role_changed(self, event: RoleChanged) -> None:
        led = self.leads
        self.leads, self.leader = event.leads, event.leader
        self.holder.leader = event.leader
        if event.leads and not led:
            self.leases.begin(self._now, self.machine.map)
            self.policy.start_leading(self._now, self.machine.map)
            self.holder.router_up(self.node, self._now)
            if not self.machine.map.cluster and not self._bootstrapping:
                self._bootstrapping = True
                self.propose(self.settings.bootstrap())
        if not event.leads and led:
            self.holder.router_down(self.node)
            self._registrations.clear()
            self.contradictions.clear()
            self._placement_requests.clear()
            self._stops.clear()
            self.policy.waits.end()

    def _applied(self, data: bytes) -> None:
        try:
            command = read_entry(data)
        except Unreadable as error:  # committed by another version; every router skips it
            self.count("commands_unreadable")
            say(logger, "raft.no_command", why=error)
            return
        proposed = self._proposer.take_committed(data)
        if not isinstance(command, Command):
            self.policy.applied(self._now, command, proposed, self.machine.map)
            return
        before = dict(live_incarnations(self.machine.map))
        outcome = self.machine.apply(command)
        if isinstance(command, Bootstrap):
            self._map_replaced()
        if outcome.delta is not None:
            self._apply_step(outcome.delta, before)
        if proposed is not None:
            self._proposer.committed(proposed, command, outcome)

    def _apply_step(self, delta: MapDelta, before: dict[str, int]) -> None:
        cluster_map = self.machine.map
        self.contradictions.map_digests.note(cluster_map.epoch, cluster_map.digest)
        self._owned.apply_step(delta)
        self.policy.waits.apply_step(self._now, delta, before, self.policy.epoch)
        if self.leads:
            for entry in delta.nodes:
                if entry.alive and before.get(entry.node) != entry.incarnation:
                    self.leases.admitted(self._now, (entry.node, entry.incarnation))
            self.leases.retain_live(cluster_map)
            self.contradictions.retain_live(cluster_map)
        for node, data in self._stream.step(delta, cluster_map):
            self._outbox.send(node, data)
        self._follow_own_map()
        for entry in delta.nodes:
            former = before.get(entry.node)
            if entry.tier == TIER_EDGE and former is not None and (entry.incarnation != former or not entry.alive):
                self._owned.remove_edge(self._now, entry.node)
        self._owned.follow(self._now, cluster_map, active=self.holder.active)

    def _map_replaced(self) -> None:
        cluster_map = self.machine.map
        self.contradictions.map_digests.begin(cluster_map.epoch, cluster_map.digest)
        self._owned.replaced(cluster_map)
        for node, page in self._stream.replaced(cluster_map):
            self.send_message(node, page)
        self.policy.waits.replaced(cluster_map)
        if self.leads:
            self.leases.begin(self._now, cluster_map)
        self._follow_own_map()
        self._owned.follow(self._now, cluster_map, active=self.holder.active)

    def _follow_own_map(self) -> None:
        cluster_map = self.machine.map
        self._changed = True
        self._has_peers = any(entry.node != self.node for entry in cluster_map.live(TIER_ROUTER))
        self.holder.take_own(self._now, cluster_map)

    # --- messages

    def _frame(self, event: FrameArrived) -> None:
        for message in self._gate.read(self._now, event):
            self._control_of(event.peer, message)

    def _control_of(self, peer: PeerKey, message: Control) -> None:
        try:
            self._control(peer.node, peer, message)
        except Unreadable as error:  # of the message inside a Relay
            self._gate.unreadable(peer, error)

    def _control(self, node: str, peer: PeerKey | None, message: Control) -> None:
        if isinstance(message, ShardMessage):
            if peer is None or not self._owned.add(peer, message):
                self.count("shard_messages_dropped")
            return
        self._changed = True
        if isinstance(message, Heartbeat):
            if self.leads:
                self._heartbeats.add_heartbeat(self._now, node, message)
            else:
                self._heartbeats.answer_with_leader(node, message, self.leader)
        elif isinstance(message, RegisterRequest | RequestChange) and not self.leads:
            self._refuse(node, message.request, "not_leader", "this router does not lead")
        elif isinstance(message, RegisterRequest):
            self._register(node, message)
        elif isinstance(message, FollowMap):
            self._follow(node, peer, message)
        elif isinstance(message, RequestChange):
            self._request_change(node, message)
        elif isinstance(message, DrainNode | Leave):
            self._stop(node, peer, message)
        elif isinstance(message, PolicyQuestion):
            if peer is not None:
                self.policy.handle(self._now, node, peer, message)
        elif isinstance(message, Relay):
            if not self._relay.take(peer, message, self.machine.map):
                self._gate.reject(self._now, cast(PeerKey, peer), name_of(message), TIER)
        elif isinstance(message, Admin | Query):
            self._requests.process_request(node, peer, message)
        elif isinstance(message, Orders):
            self._orders.take(node, message)
        elif not self.holder.handle(self._now, node, message):
            self.count("messages_unknown")

    def _round_ended(self, event: RoundEnded) -> None:
        if not event.confirmed or not self.leads:
            self.leases.round_failed(event.context)
            return
        self._heartbeats.confirmed(self._now, event.context, self.machine.map)

    def _register(self, node: str, message: RegisterRequest) -> None:
        former = self.machine.map.nodes.get(node)
        if former is not None and former.incarnation <= message.ended_incarnation:
            self.policy.waits.record_proof((node, former.incarnation))
        self._registrations.add(node, message)
        self._admit_due()

    def _admit_due(self) -> None:
        for command, requester in self._registrations.take_due(self._now, self.machine.map, self.leases):
            self.propose(command, requester)

    def _follow(self, node: str, peer: PeerKey | None, message: FollowMap) -> None:
        incarnation = peer.incarnation if peer is not None else 0
        self.send_message(node, self._stream.follow(node, incarnation, message, self.machine.map))

    def _link_down(self, peer: PeerKey) -> None:
        self.reach.link_down(peer, self._now)
        self._stream.link_down(peer)
        self.policy.link_down(peer)
        self.looks.gone(peer.node)
        if peer.tier == TIER_ROUTER:
            self.holder.router_down(peer.node)

    def _request_change(self, node: str, message: RequestChange) -> None:
        refusal = self._placement_requests.add(self.machine.map, node, message)
        if refusal is not None:
            self._refuse(node, message.request, "invalid", refusal)

    def _stop(self, node: str, peer: PeerKey | None, message: DrainNode | Leave) -> None:
        """Process the stop request of an incarnation; it applies to the link's incarnation only."""
        if not self.leads:
            self._refuse(node, 0, "not_leader", "this router does not lead")
            return
        incarnation = peer.incarnation if peer is not None else self.holder.entry.incarnation
        if not self.machine.map.is_alive(node, incarnation):
            self.count("stops_of_others")
        elif isinstance(message, DrainNode):
            self._stops.add(self._now, node, incarnation)
        elif self.leases.record_end((node, incarnation)):
            self.policy.waits.record_proof((node, incarnation))
            self.propose(DeclareDead(node, incarnation))

    def count(self, what: str, amount: int = 1) -> None:
        """Count an event of this router."""
        self.counts[what] = self.counts.get(what, 0) + amount


def _only_raft(events: Sequence[Event]) -> bool:
    """Return whether all events come from Raft: those arrive singly, several between two iterations."""
    return bool(events) and all(isinstance(event, Applied | RoundEnded) for event in events)
