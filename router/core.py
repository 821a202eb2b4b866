"""The router's core beside Raft: map machine, leases, the shards it owns, the map stream, operators' questions.

Sans-IO. Raft is next to it, not inside: the shell gives committed commands as ``Applied``, and carries out
``proposals`` and ``rounds`` of every Ready. A message to this very node goes through the same queue as one from a link.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conf.router_settings import RouterSettings as OperatorSettings
from router.events import Applied, Event, Proposal, ProposalFailed, Ready, RoleChanged, RoundEnded
from router.map.command_bounds import COMMAND_BYTES_MAX, out_of_range
from router.map.commands import (
    Bootstrap,
    Command,
    DeclareDead,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    StopNodes,
    decode_command,
    encode_command,
    is_readable,
)
from router.map.late_storage import LateStorage
from router.map.leases import LeaseTable, lives
from router.map.machine import MapMachine, Outcome
from router.map.proposals import Asker, Proposals
from router.map.rebalance_run import RebalanceRunner
from router.map.stop_requests import StopRequests
from router.operators.queries import Change, ForProcess, decide, not_committed, reply_to
from router.operators.ring_verbs import Due
from router.placement.changes import placement_change
from router.placement.reachability import Reachability
from router.routes.senders import Routes, RouteSenders
from router.routes.shard import RouteShard
from router.routes.shard_work import ShardMessage, ShardWork
from wire.decoding import Unreadable
from wire.links.allowed import RELAYED, TIER, fault_of
from wire.links.refusals import Refusals
from wire.messages.cluster_map import MapDelta, NodeEntry, NodeState, PartitionEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.messages.map_pages import MapShelf
from wire.messages.message import name_of
from wire.messages.nodes import (
    Changed,
    Drain,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MapStep,
    Moved,
    Refused,
    Register,
    Registered,
    Relay,
    Relayed,
    RequestChange,
)
from wire.messages.operators import Admin, AdminReply
from wire.messages.ranges import MAP_PAGE_BYTES
from wire.messages.routes import AddRoutes, Invalidated, RemoveRoutes, Resolve
from wire.node.events import FrameArrived, LinkDown, LinkUp
from wire.node.lease_holder import LeaseHolder
from wire.node.orderly_stop import OrderlyStop

__all__ = ["RouterCore", "RouterSettings"]

DEFAULT = OperatorSettings()  # one default per setting, and its description: conf/router_settings.py
logger = logging.getLogger(__name__)

STOP_S = 2.0  # from the order to stop to the end, when others do not take over
TRANSFER_AGAIN_S = 0.5  # with another router: the one asked before is behind, or not reached
LOOK_S = 0.25  # between two looks at what was waited for too long
TOO_LARGE = 1  # exit code of a question whose answer fits no frame
CHANGES_MAX = 1_024  # placements of one command: it fits a log entry, whatever their names
REGISTRATIONS_MAX = 10_000  # waiting for a former incarnation's lease to run out
STEPS_OF_ACKNOWLEDGEMENT = 5


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Bounds of the core; the operator's model is conf/router_settings.py."""

    cluster: str = "stratamq"
    partitions: int = DEFAULT.partitions
    shards: int = DEFAULT.shards
    replicas: int = DEFAULT.replicas
    min_in_sync: int = DEFAULT.min_in_sync
    lease_s: float = DEFAULT.lease_s
    lease_margin_s: float = DEFAULT.lease_margin_s
    cached_topics_max: int = DEFAULT.cached_topics_max
    map_page_bytes: int = MAP_PAGE_BYTES  # lower only where tests want many pages


@dataclass(slots=True)
class _Registration:
    peer: str
    message: Register


class RouterCore:
    """One router."""

    def __init__(self, entry: NodeEntry, settings: RouterSettings, *, ended_incarnation: int = 0) -> None:
        self.node = entry.node
        self.settings = settings
        self.machine = MapMachine()
        self.leases = LeaseTable(settings.lease_s, settings.lease_margin_s)
        self.leads = False
        self.leader = ""
        self.shards: dict[int, RouteShard] = {}
        self.holder = LeaseHolder(
            entry, self._to_router, lambda _: None, follows=False, ended_incarnation=ended_incarnation
        )
        self.counts: dict[str, int] = {}
        self._refusals = Refusals(self.count)
        self._senders = RouteSenders()
        self.questions: list[tuple[str, Admin]] = []
        self.believes: Callable[[], dict[str, str]] = dict  # node -> its state as gossip sees it
        self._now = 0.0
        self._followers: dict[str, int] = {}  # node -> incarnation that follows our map
        self._shelf = MapShelf(settings.map_page_bytes)
        self._registrations: dict[str, _Registration] = {}
        self._condemned: dict[PeerKey, str] = {}  # in this round
        self._own: list[Control] = []  # messages of this node to itself
        self._proposals: list[Proposal] = []
        self._proposed = Proposals()
        self._changes: dict[int, PartitionEntry] = {}  # asked for in this round
        self._askers: list[tuple[str, RequestChange]] = []
        self._rounds: list[int] = []
        self._sends: list[tuple[str, int, bytes]] = []
        self._bootstrapping = False
        self._owned: dict[int, int] = {}  # shard -> epoch of self.shards
        self._touched: set[int] = set()  # shards that may have something to send
        self._waiting: set[int] = set()  # shards that wait for somebody
        self._work = ShardWork()
        self._resized: set[int] = set()  # shards that were touched since the last look
        self._next_look = float("-inf")
        self.reach = Reachability(entry.node)
        self.stop = OrderlyStop(self.holder, STOP_S, idle=lambda: not (self.leads or self.shards))
        self._stops = StopRequests()
        self._transfers = 0
        self._next_transfer = float("-inf")
        self.rebalancer = RebalanceRunner(self.machine, self.leases, self.propose)
        self._due = Due()
        self._late_storage = LateStorage(self.machine, self.leases, self.propose)

    # --- the one entry

    def handle(self, now: float, events: Sequence[Event]) -> Ready:
        """Take the events of one round."""
        self._now = now
        for event in events:
            if isinstance(event, FrameArrived):
                self._frame(event)
            elif isinstance(event, Applied):
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
                    self.holder.router_up(event.peer.node, now)
            elif isinstance(event, LinkDown):
                self._link_down(event.peer)
        if not events or not all(isinstance(event, Applied | RoundEnded) for event in events):
            # Those are handed in one by one, many between two turns of the loop.
            self._touched |= self._work.turn(now, self.shards, self._shard_message)
        self._time(now)  # also what a Suspected asks for: leases and links are looked at, by their own rules
        return self._ready()

    def _ready(self) -> Ready:
        for number in sorted(self._touched):
            shard = self.shards.get(number)
            for node, message in shard.take_sends() if shard is not None else ():
                self.tell(node, message)
            if shard is not None and shard.sweeps:
                self._work.goes_on(number)
            if shard is not None and shard.waits:
                self._waiting.add(number)
            else:
                self._waiting.discard(number)
        self._resized |= self._touched
        self._touched.clear()
        while self._own:
            self._control(self.node, None, self._own.pop(0))
        ready = Ready(self._proposals, self._rounds, self._sends, questions=self.questions)
        self._proposals, self._rounds, self._sends, self.questions = [], [], [], []
        ready.condemned.extend(self._condemned.items())
        self._condemned.clear()
        ready.next_deadline = min(self.holder.next_deadline(), self.stop.next_deadline())
        if self._work:
            ready.next_deadline = min(ready.next_deadline, self._now)
        ready.ended = self.holder.ended and not self.stop.begun
        ready.stopped = self.stop.ended
        if self.leads:
            ready.transfer = self._successor()
            deadline = min(self.leases.next_deadline(), self._stops.next_deadline())
            ready.next_deadline = min(ready.next_deadline, deadline)
            if self._waits():
                ready.next_deadline = min(ready.next_deadline, self._next_look)
        return ready

    def _successor(self) -> str:
        """Return who should lead in this router's place, once it is relieved of its shards; each in turn, or "".

        Not sooner: a new leader has yet to hear what each node has acknowledged.
        """
        if not self.stop.settled or self._now < self._next_transfer:
            return ""
        self._next_transfer = self._now + TRANSFER_AGAIN_S
        staying = [entry.node for entry in self.machine.map.live(TIER_ROUTER) if not entry.stops]
        self._transfers += 1
        return staying[self._transfers % len(staying)] if staying else ""

    def _waits(self) -> bool:
        """Whether a look must not wait for the next heartbeat: somebody has not answered, or may fall silent."""
        return (
            self.leases.ending
            or bool(self._waiting or self._touched)
            or any(
                entry.tier == TIER_ROUTER and entry.alive and node != self.node
                for node, entry in self.machine.map.nodes.items()
            )
        )

    def _time(self, now: float) -> None:
        self.stop.step(now)
        self.holder.beat(now)
        while self._own:
            self._control(self.node, None, self._own.pop(0))
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._look(now)
        if not self.leads:
            return
        self._propose_changes()
        self.rebalancer.tick(now)
        for node, incarnation in self.leases.expired(now, self.machine.map):
            self.propose(DeclareDead(node, incarnation))
        stopping = self._stops.take(now)
        if stopping:
            self.propose(StopNodes(stopping))
        self._admit_waiting()
        context = self.leases.next_round()
        if context is not None:
            self._rounds.append(context)

    def _look(self, now: float) -> None:
        """Repeat what was not acknowledged, and see who does not answer: peers of ours, shards of silent routers."""
        cluster_map = self.machine.map
        patience = 2 * cluster_map.lease_s
        waited: set[str] = set()
        for number in sorted(self._waiting | self._touched):
            shard = self.shards.get(number)
            if shard is None or not shard.waits:
                continue
            shard.tick(now)
            self._touched.add(number)
            edges, partitions = shard.waited_for(now, patience)
            waited |= edges | {cluster_map.partitions[partition].primary for partition in partitions}
        self.holder.unreachable = self.reach.unreachable(now, cluster_map, waited)
        for number in sorted(self._resized | self._touched):
            shard = self.shards.get(number)
            if shard is None:
                self.holder.sizes.pop(number, None)
            else:
                self.holder.sizes[number] = (shard.routes, shard.bytes)
        self._resized.clear()
        if not self.leads:
            return
        self._late_storage.look(now)
        owners = self.reach.rescue(now, cluster_map, self.leases.silent_s)
        if owners:
            self.count("shards_rescued", len(owners))
            self.propose(PlaceShards(owners, {number: cluster_map.shards[number].epoch for number in owners}))
        node = self.reach.worst_connected(now, cluster_map, self.leases.complaints(cluster_map))
        if node:
            self.count("leases_stopped")
            self.leases.stop((node, cluster_map.nodes[node].incarnation))

    @property
    def now(self) -> float:
        """Time of the round, for the status page."""
        return self._now

    # --- sending and proposing

    def tell(self, node: str, message: Control) -> None:
        """Send a control message to a node, this one included."""
        if node == self.node:
            self._own.append(message)
        elif node:
            data = encode_control(message)
            if len(data) > FRAME_BYTES_MAX:  # an operator's question about all of a very large map
                self.count("answers_too_large")
                if not isinstance(message, AdminReply):
                    return
                text = f"the answer is {len(data)} bytes, more than one message holds: ask about less"
                data = encode_control(AdminReply(message.request, False, None, text, TOO_LARGE))
            self._sends.append((node, FrameKind.CONTROL, data))

    def _to_router(self, router: str, message: Control) -> bool:
        self.tell(router, message)
        return True

    def rebalance_due(self) -> int:
        """Return how many partitions the ring wants elsewhere than they are."""
        return self._due.of(self.machine.map)

    def rebalance_status(self) -> dict[str, object]:
        """Return the state of the present rebalance, or of the last one."""
        return self.rebalancer.status(self._now)

    def propose(
        self, command: Command, asker: Asker | None = None, changes: tuple[tuple[str, RequestChange], ...] = ()
    ) -> None:
        """Give a command to Raft, unless it is refused; the asker is told what became of it.

        A command that somebody asks for is carried out on a copy first: a refused one costs no entry of the log.

        Args:
            changes: Requests of storage nodes that it joins; each is answered when the command is committed.
        """
        outcome = self.machine.suppose(command) if asker else Outcome(refusal=out_of_range(command, self.machine.map))
        data = encode_command(command) if not outcome.refusal else b""
        if len(data) > COMMAND_BYTES_MAX:
            outcome = Outcome(refusal=f"{name_of(command)} of {len(data)} bytes: a log entry holds less")
        elif data and not is_readable(data):
            outcome = Outcome(refusal=f"{name_of(command)} with a part that is out of range")
        if outcome.refusal:
            self.count("commands_refused")
            if asker is None:
                logger.error("not proposed: %s", outcome.refusal)
            else:
                self._answer(asker, command, outcome)
            return
        proposed = self._proposed.add(command, data, asker, changes)
        self._proposals.append(Proposal(proposed.number, command))

    def _proposal_failed(self, event: ProposalFailed) -> None:
        proposed = self._proposed.failed(event.number)
        if proposed is None:
            return
        command, asker = proposed.command, proposed.asker
        if isinstance(command, DeclareDead):
            self.leases.proposal_failed((command.node, command.incarnation))
        if isinstance(command, Bootstrap):
            self._bootstrapping = False
        for node, change in proposed.changes:
            self._refuse(node, change.request, "unavailable", "not committed")
        if asker is not None and asker.question is not None:
            self.tell(asker.node, not_committed(asker.question, event.leader_hint))
        elif asker is not None:
            code = "not_leader" if event.leader_hint else "unavailable"
            self._refuse(asker.node, asker.request, code, "not committed")

    def _refuse(self, peer: str, request: int, code: str, detail: str) -> None:
        leader = self.machine.map.nodes.get(self.leader)
        self.tell(peer, Refused(request, code, detail, self.leader, leader.address if leader is not None else ""))

    # --- Raft

    def restore(self, data: bytes) -> None:
        """A Raft snapshot replaces the map."""
        self.machine.restore(data)
        self._map_replaced()

    def _role_changed(self, event: RoleChanged) -> None:
        led = self.leads
        self.leads = event.leads
        self.leader = event.leader
        self.holder.leader = event.leader
        if event.leads and not led:
            self.leases.begin(self._now, self.machine.map)
            self.holder.router_up(self.node, self._now)
            if not self.machine.map.cluster and not self._bootstrapping:
                self._bootstrapping = True
                settings = self.settings
                self.propose(
                    Bootstrap(
                        settings.cluster,
                        settings.partitions,
                        settings.shards,
                        settings.replicas,
                        settings.min_in_sync,
                        settings.lease_s,
                    )
                )
        if not event.leads and led:
            self.holder.router_down(self.node)
            self._registrations.clear()
            self._changes, self._askers = {}, []
            self._stops.clear()

    def _applied(self, data: bytes) -> None:
        try:
            command = decode_command(data)
        except Unreadable as error:  # committed by an older router: every router passes it by
            self.count("commands_unreadable")
            logger.error("an entry of the log is no command, and is passed by: %s", error)
            return
        before = {life[0]: life[1] for life in lives(self.machine.map)}
        outcome = self.machine.apply(command)
        if isinstance(command, Bootstrap):
            self._map_replaced()
        if outcome.delta is not None:
            self._stepped(outcome.delta, before)
        proposed = self._proposed.committed(data)
        if proposed is None:
            return
        for node, change in proposed.changes:
            self._answer_change(node, change, proposed.command)
        if proposed.asker is not None:
            self._answer(proposed.asker, proposed.command, outcome)

    def _answer(self, asker: Asker, command: Command, outcome: Outcome) -> None:
        """Tell the node that asked for a command what became of it."""
        if asker.question is not None:
            self.tell(asker.node, reply_to(asker.question, outcome, self.machine))
        elif outcome.refusal:
            self._refuse(asker.node, asker.request, "invalid", outcome.refusal)
        elif isinstance(command, RegisterNode):
            registered = Registered(asker.request, command.entry.incarnation, self.machine.map.epoch)
            self.tell(asker.node, registered)
        else:
            self.tell(asker.node, Changed(asker.request, self.machine.map.epoch))

    def _asked(self, node: str, question: Admin) -> None:
        """Answer an operator's question, propose what it asks for, or leave it to the process."""
        decision = decide(question, self)
        if isinstance(decision, Change):
            self.propose(decision.command, Asker(node, question.request, question))
        elif isinstance(decision, ForProcess):
            self.questions.append((node, question))
        else:
            self.tell(node, decision)

    def _answer_change(self, asker: str, change: RequestChange, command: Command) -> None:
        assert isinstance(command, PlacePartitions)
        placement = self.machine.map.partitions[change.partition]
        if placement == command.entries[change.partition]:
            self.tell(asker, Changed(change.request, self.machine.map.epoch))
        else:
            self._refuse(asker, change.request, "invalid", f"partition {change.partition} is at {placement.epoch}")

    def _stepped(self, delta: MapDelta, before: dict[str, int]) -> None:
        cluster_map = self.machine.map
        self._senders.stepped(delta)
        if self.leads:
            for entry in delta.nodes:
                if entry.alive and before.get(entry.node) != entry.incarnation:
                    self.leases.admitted(self._now, (entry.node, entry.incarnation))
            self.leases.forget_others(cluster_map)
        self._tell_step(delta)
        self._follow_own_map()
        for entry in delta.nodes:
            former = before.get(entry.node)
            if entry.tier == TIER_EDGE and former is not None and (entry.incarnation != former or not entry.alive):
                for number in sorted(self.shards):
                    self.shards[number].now = self._now
                    self.shards[number].edge_dead(entry.node)
                    self._touched.add(number)
        self._own_shards()

    def _tell_step(self, delta: MapDelta) -> None:
        """Send a step to the nodes that follow; one that is too long is a whole map, whose pages they ask for."""
        data = encode_control(MapStep(delta)) if self._followers else b""
        if len(data) > self.settings.map_page_bytes:
            data = encode_control(self._shelf.first(self.machine.map))
        self._sends += [(node, FrameKind.CONTROL, data) for node in sorted(self._followers)]

    def _map_replaced(self) -> None:
        self._shelf.clear()
        self._senders.replaced(self.machine.map)
        for node in sorted(self._followers):
            self.tell(node, self._shelf.first(self.machine.map))
        if self.leads:
            self.leases.begin(self._now, self.machine.map)
        self._follow_own_map()
        self._own_shards()

    def _follow_own_map(self) -> None:
        self.holder.take_own(self._now, self.machine.map)

    def _own_shards(self) -> None:
        """Begin to own what the map gives to this very incarnation, end what it takes away."""
        cluster_map = self.machine.map
        active = self.holder.active
        for number, placement in enumerate(cluster_map.shards):
            if not active or placement.owner != self.node:
                if self.shards.pop(number, None) is not None:
                    self._touched.add(number)
                self._owned.pop(number, None)
            elif self._owned.get(number) != placement.epoch:
                edges = [entry.node for entry in cluster_map.live(TIER_EDGE)]
                partitions = [at for at, partition in enumerate(cluster_map.partitions) if partition.epoch]
                self.shards[number] = RouteShard(
                    number, placement.epoch, edges, partitions, self.settings.cached_topics_max, self._now
                )
                self._owned[number] = placement.epoch
                self._touched.add(number)

    # --- messages

    def _frame(self, event: FrameArrived) -> None:
        if event.peer in self._condemned:
            return  # what it sent behind that is void
        try:
            if event.kind != FrameKind.CONTROL:
                self._condemn(event.peer, f"frame kind {event.kind}", TIER)
            else:
                self._judged(event.peer, decode_control(event.payload))
        except Unreadable as error:  # the frame, or the message that it wants handed on
            self.count("frames_unreadable")
            self._condemned[event.peer] = str(error)

    def _judged(self, peer: PeerKey, message: Control) -> None:
        fault = fault_of(peer, TIER_ROUTER, message)
        if fault:
            self._condemn(peer, name_of(message), fault)
        else:
            self._control(peer.node, peer, message)

    def _condemn(self, peer: PeerKey, what: str, fault: str) -> None:
        """Refuse a message that no honest node sends, and close its link."""
        self._refusals.refuse(self._now, peer, what, fault)
        self._condemned[peer] = f"a {peer.tier} may not send this {what} ({fault})"

    def _control(self, node: str, peer: PeerKey | None, message: Control) -> None:
        if isinstance(message, Heartbeat):
            self._heartbeat(node, message)
        elif isinstance(message, Register):
            self._register(node, message)
        elif isinstance(message, FollowMap):
            self._follow(node, peer, message)
        elif isinstance(message, ShardMessage):
            if peer is None or not self._work.add(peer, message):
                self.count("shard_messages_dropped")
        elif isinstance(message, RequestChange):
            self._request_change(node, message)
        elif isinstance(message, Drain | Leave):
            self._stop(node, peer, message)
        elif isinstance(message, Relay):
            self._relay(peer, message)
        elif isinstance(message, Admin):
            self._asked(node, message)
        elif not self.holder.handle(self._now, message):
            self.count("messages_unknown")

    def _heartbeat(self, node: str, message: Heartbeat) -> None:
        if self.leads:
            self.leases.arrived(node, message, self._now)
            return
        leader = self.machine.map.nodes.get(self.leader)
        self.tell(
            node,
            HeartbeatReply(
                message.incarnation,
                message.sent_at,
                0.0,
                0,
                self.leader,
                leader.address if leader is not None else "",
            ),
        )

    def _round_ended(self, event: RoundEnded) -> None:
        if not event.confirmed or not self.leads:
            self.leases.round_failed(event.context)
            return
        cluster_map = self.machine.map
        settled = self.leases.settled_epoch(cluster_map)
        for peer, beat, granted in self.leases.round_done(self._now, event.context, cluster_map):
            lease_s = self.settings.lease_s if granted else 0.0
            self.tell(
                peer,
                HeartbeatReply(
                    beat.incarnation, beat.sent_at, lease_s, settled, self.node, map_epoch=cluster_map.epoch
                ),
            )

    def _register(self, node: str, message: Register) -> None:
        if not self.leads:
            self._refuse(node, message.request, "not_leader", "this router does not lead")
            return
        if len(self._registrations) < REGISTRATIONS_MAX:
            self._registrations[node] = _Registration(node, message)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Propose registrations whose former incarnation is dead in the map, ended by proof, or surely out of lease."""
        cluster_map = self.machine.map
        if not cluster_map.cluster:
            return
        for node in sorted(self._registrations):
            entry = self._registrations[node].message.entry
            former = cluster_map.nodes.get(node)
            if (
                former is None
                or not former.alive
                or former.incarnation == entry.incarnation
                or self._registrations[node].message.ended_incarnation >= former.incarnation
                or self.leases.surely_over(self._now, (node, former.incarnation))
            ):
                registration = self._registrations.pop(node)
                asker = Asker(registration.peer, registration.message.request)
                self.propose(RegisterNode(entry, registration.message.whole), asker)

    def _follow(self, node: str, peer: PeerKey | None, message: FollowMap) -> None:
        self._followers[node] = peer.incarnation if peer is not None else 0
        cluster_map = self.machine.map
        if message.page_of < 0:
            self.tell(node, self._shelf.first(cluster_map))
        else:
            self.tell(node, self._shelf.page(cluster_map, message.page_of, message.offset))

    def _link_down(self, peer: PeerKey) -> None:
        self.reach.link_down(peer, self._now)
        if self._followers.get(peer.node) == peer.incarnation:
            del self._followers[peer.node]
        if peer.tier == TIER_ROUTER:
            self.holder.router_down(peer.node)

    def _shard_message(self, peer: PeerKey, message: ShardMessage) -> int:
        """Hand a message to its shard; return the steps that it took."""
        if isinstance(message, Invalidated):
            return self._invalidated(peer, message)
        if self._is_over(peer):
            self.count("frames_of_dead")
            return 1
        shard = self.shards.get(message.shard)
        current = self.holder.has_lease(self._now) if self.machine.map.lease_s else True
        if peer.tier == TIER_EDGE:
            # The step that ends an edge's former life takes from the shards what the edge said: not before that.
            current = current and self.machine.map.is_alive(peer.node, peer.incarnation)
        request = message.request if isinstance(message, Resolve | AddRoutes) else 0
        if shard is None or shard.epoch != message.shard_epoch or not current:
            epoch = shard.epoch if shard is not None else 0
            self.tell(peer.node, Moved(request, "shard", message.shard, epoch, self.machine.map.epoch))
            return 1
        shard.now = self._now
        began = shard.steps
        if isinstance(message, Resolve):
            shard.resolve(peer.node, message)
        else:
            self._routes(shard, peer, message)
        self._touched.add(message.shard)
        return 1 + shard.steps - began

    def _routes(self, shard: RouteShard, peer: PeerKey, message: Routes) -> None:
        judged = self._senders.judge(self.machine.map, peer, message)
        if judged.repeat:
            request = message.request if isinstance(message, AddRoutes) else 0
            self.tell(peer.node, Moved(request, "shard", message.shard, shard.epoch, self.machine.map.epoch))
        if judged.refused:
            self._refusals.refuse(self._now, peer, name_of(message), "placement")
        if isinstance(judged.message, AddRoutes):
            shard.add(peer.node, judged.message)
        elif isinstance(judged.message, RemoveRoutes):
            shard.remove(peer.node, judged.message)
        elif judged.message is not None:
            shard.report(peer.node, judged.message)

    def _invalidated(self, peer: PeerKey, message: Invalidated) -> int:
        """An edge has dropped what it was told to: the life that the map has, not the one that follows it."""
        shard = self.shards.get(message.shard)
        if shard is None or shard.epoch != message.shard_epoch:
            return 1
        if not self.machine.map.is_alive(peer.node, peer.incarnation):
            self.count("invalidated_by_others")
            return 1
        shard.now = self._now
        began = shard.steps
        shard.invalidated(peer.node, message)
        self._touched.add(message.shard)
        return STEPS_OF_ACKNOWLEDGEMENT + shard.steps - began

    def _relay(self, peer: PeerKey | None, message: Relay) -> None:
        """Hand a message on from one life to another, where both live; the sender repeats what gets no answer.

        It is read here: the one who wrote it is to blame for it, not the router that the other side hears it from.
        """
        inner = decode_control(message.message)
        alive = self.machine.map.is_alive
        if peer is None or not alive(peer.node, peer.incarnation) or not alive(message.node, message.incarnation):
            self.count("relays_of_dead")
            return
        receiver = self.machine.map.nodes[message.node].tier
        if not isinstance(inner, RELAYED) or fault_of(peer, receiver, inner):
            self._condemn(peer, name_of(message), TIER)
            return
        self.tell(message.node, Relayed(peer.node, peer.incarnation, message.message))
        self.count("relayed")

    def _is_over(self, peer: PeerKey) -> bool:
        entry = self.machine.map.nodes.get(peer.node)
        if entry is None or entry.incarnation < peer.incarnation:
            return False
        return entry.incarnation > peer.incarnation or entry.state == NodeState.DEAD

    def _request_change(self, node: str, message: RequestChange) -> None:
        if not self.leads:
            self._refuse(node, message.request, "not_leader", "this router does not lead")
            return
        entry, refusal = placement_change(self.machine.map, node, message)
        if entry is not None:
            refusal = out_of_range(PlacePartitions({message.partition: entry}), self.machine.map)
        if entry is None or refusal:
            self._refuse(node, message.request, "invalid", refusal)
        elif message.partition not in self._changes:
            self._changes[message.partition] = entry
            self._askers.append((node, message))

    def _stop(self, node: str, peer: PeerKey | None, message: Drain | Leave) -> None:
        """A life stops, or is over: that of the link, and no other."""
        if not self.leads:
            self._refuse(node, 0, "not_leader", "this router does not lead")
            return
        incarnation = peer.incarnation if peer is not None else self.holder.entry.incarnation
        if not self.machine.map.is_alive(node, incarnation):
            self.count("stops_of_others")
        elif isinstance(message, Drain):
            self._stops.ask(self._now, node, incarnation)
        elif self.leases.leaves((node, incarnation)):
            self.propose(DeclareDead(node, incarnation))

    def _propose_changes(self) -> None:
        """Propose what was asked for in this round as one step: a death concerns every partition that had a copy there.

        One step each would cost a commit each, and every node a walk over its partitions for each of them.
        """
        if not self._changes:
            return
        changes = list(self._changes.items())
        for at in range(0, len(changes), CHANGES_MAX):
            entries = dict(changes[at : at + CHANGES_MAX])
            askers = tuple(asker for asker in self._askers if asker[1].partition in entries)
            self.propose(PlacePartitions(entries, each=True), changes=askers)
        self._changes, self._askers = {}, []

    def count(self, what: str, amount: int = 1) -> None:
        """Count an event of this router."""
        self.counts[what] = self.counts.get(what, 0) + amount
