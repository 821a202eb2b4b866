"""The router's process: links, Raft and the core joined in one loop. It makes no decision on routes or placement."""

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from secrets import randbelow, token_hex

import trio

from access.identity.peer_lists import read_peer_lists
from access.operators.audit_service import AuditService
from access.operators.audited_commands import AuditedVerbs
from access.operators.orders import order_record
from conf.defaults import shared_values
from conf.errors import UserError
from conf.events import say
from conf.settings import NodeConfig, RouterConfig
from membership.node_gossip import NodeGossip
from router.core import RouterCore
from router.event_queue import RouterEventQueue
from router.events import (
    Applied,
    Event,
    OrderDone,
    Proposal,
    ProposalFailed,
    RoleChanged,
    RoundEnded,
    RouterReady,
    Suspected,
)
from router.operators.group_commands import GroupCommands
from router.policy.router_snapshot import snapshot_fault
from router.queries.consensus import consensus_source
from router.raft.events import ChangeMembership, RaftConfig, RaftRole
from router.raft.log import RaftLog, create_log
from router.raft.messages import LogEntry, RaftMessage, encode_message
from router.raft.node import NotLeader, RaftNode, Unavailable
from router.raft.storage import LogDamaged
from router.router_metrics import register_router_metrics
from router.settings import RouterLimits
from wire.clock import boot_time
from wire.decoding import Unreadable
from wire.links.hub import LinkHub
from wire.links.joined_frames import joined_frames
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick
from wire.node.known_cluster import KnownCluster
from wire.node.node_queries import show_process
from wire.node.ordered import Ordered
from wire.node.process import EXIT_DAMAGED, NodeProcess, run_process
from wire.node.startup_log import MapGaps, WaitingLog

__all__ = ["RouterService", "main"]

logger = logging.getLogger(__name__)

TICK_MAX_S = 0.25  # longest wait of the loop, which bounds the delay of deadlines that other events move

IDLE_TICK_MAX_S = 1.0  # of a router without other group members
REPAIR_EVERY_S = 0.25  # interval of checks for a member that lost its disk or caught up


def main(config: NodeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run a router until it is stopped; return the exit code."""
    assert isinstance(config, RouterConfig)

    async def service(process: NodeProcess) -> None:
        await RouterService(process, config).run()

    return run_process(config, TIER_ROUTER, ready, service, read_peer_lists)


def _members(config: RouterConfig) -> dict[str, str]:
    """Return the link address of each initial group member by node name; empty if none is configured."""
    members: dict[str, str] = {}
    for member in config.router.members:
        name, _, address = member.partition("@")
        members[name] = address
    if members and config.node.id not in members and not config.router.join:
        raise UserError(f"router.members names {', '.join(members)} but not this router, {config.node.id}", 2)
    return members


class RouterService:
    """One router process."""

    def __init__(self, process: NodeProcess, config: RouterConfig) -> None:
        self._process = process
        self._config = config
        self._members = _members(config)
        self._wake = trio.Event()
        self._wakes_at = float("-inf")  # when the loop's wait times out
        self._serves = self._behind = self._has_ended = False
        self._connected: set[str] = set()
        self._rng = random.Random(process.folder.incarnation)
        self._hub = LinkHub(
            process.identity,
            process.contexts,
            on_frame=self._on_frame,
            on_up=self._on_up,
            on_down=self._on_down,
            on_reset=self._on_down,
            rng=self._rng,
            on_read=self._iterate_after_read,
            early=process.turns.note,
            give_way=process.give_way,
        )
        self._events = RouterEventQueue(self._hub)
        self._audit = AuditService(config.node, process.folder.path)
        self._verbs = AuditedVerbs(TIER_ROUTER, self._audit, self._hub.whence)
        self._reported_ready = False
        self._logged_refused = False
        self._gaps, self._waiting, self._next_waiting_log = MapGaps(), WaitingLog(logger), 0.0
        self._repairing = False
        self._next_repair = 0.0
        self._deadline = float("-inf")  # of the core's next call
        self._gossip = NodeGossip(process, config.membership, on_dead=lambda node: self._push(Suspected(node)))
        self._peers: dict[str, tuple[str, str, int]] = {}
        self._followed = -1  # epoch of the map that the peers are from

    async def run(self) -> None:
        """Serve until cancelled, or until the map ends this incarnation."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._audit.run)
            self._ordered = Ordered(self._process.reload_now, self._order_done, nursery.start_soon)
            self._process.reloaded = self._audit.reloaded
            bound = await nursery.start(self._hub.run, self._process.link_address)
            self._hub.set_peers({name: (TIER_ROUTER, address, 0) for name, address in self._members.items()})
            node, settings = self._config.node, self._config.router
            if settings.join:
                self._hub.set_seeds(node.seeds)  # the running group accepts our link
            self.core = core = RouterCore(
                self._process.entry(bound),
                RouterLimits(node.cluster, **shared_values(settings, RouterLimits), cluster_id=token_hex(16)),
                ended_incarnation=self._process.folder.ended_incarnation,
                group=lambda: self._raft.configuration.peers(),
                believes=self._gossip.believes,
                utc=time.time,
            )
            self._raft = self._make_raft()
            core.holder.cluster = KnownCluster(self._process.folder.cluster_id)
            core.looks.show("raft", consensus_source(node.id, self._raft.core, core, lambda: core.machine.map))
            self._group_verbs = GroupCommands(node.id, self._raft, self._gossip)
            self._bound = bound
            self._register_metrics()
            self._process.lease = self.core.holder
            show_process(self.core.looks, self._process, self.core.journal)
            self._process.links = lambda: sorted(self._connected)
            await nursery.start(self._raft.run)
            nursery.start_soon(self._wait_for_stop)
            nursery.start_soon(self._gossip.run, bound)
            await self._loop()
            nursery.cancel_scope.cancel()

    def _make_raft(self) -> RaftNode:
        folder = self._process.folder.path / "raft"
        try:
            if not Path(folder).exists():
                create_log(folder, randbelow((1 << 63) - 1) + 1)
            return self._raft_node(folder)
        except LogDamaged as error:
            raise UserError(
                f"the Raft log is damaged ({error}): this router neither votes nor serves. Move {folder} away and "
                "restart: a majority of the other routers adds it again (a group of one needs its backup)",
                EXIT_DAMAGED,
            ) from None
        except Unreadable as error:
            raise UserError(
                f"the snapshot in {folder} is damaged or not of this version ({error}): move {folder} away and "
                "restart; a majority of the other routers adds it again (a group of one needs its backup)",
                EXIT_DAMAGED,
            ) from None
        except OSError as error:
            raise UserError(f"the Raft log in {folder} cannot be read: {error.strerror or error}") from None

    def _raft_node(self, folder: Path) -> RaftNode:
        settings = self._config.router
        voters = () if settings.join else tuple(self._members) or (self._config.node.id,)
        return RaftNode(
            RaftConfig(
                id=self._config.node.id,
                voters=voters,
                election_timeout_s=settings.election_timeout_s,
                heartbeat_s=settings.heartbeat_s,
                trailing_entries=settings.trailing_entries,
            ),
            RaftLog(folder),
            send=self._send_raft,
            apply=self._apply,
            take_snapshot=self.core.capture,
            restore=self.core.restore,
            snapshot_fault=snapshot_fault,
            rng=self._rng,
            incarnation=self._process.folder.incarnation,
            on_role=self._on_role,
            snapshot_every_entries=settings.snapshot_every_entries,
        )

    # --- events

    def _push(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def _on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if kind == FrameKind.RAFT:
            self._raft.receive_payload(peer, payload)
        elif peer.tier not in (TIER_OPERATOR, TIER_GATEWAY) or self._audit_request(peer, kind, payload):
            self._events.append(FrameArrived(peer, kind, payload))  # on_read runs the iteration after the read

    def _audit_request(self, peer: PeerKey, kind: int, payload: bytes) -> bool:
        """Write the audit record of an operator's request; return whether to pass it to the core."""
        try:
            question = decode_control(payload) if kind == FrameKind.CONTROL else None
        except Unreadable:
            return True  # the core refuses it
        refusal = self._verbs.asked(peer, question) if isinstance(question, Admin) else None
        if refusal is not None:
            self._reply(peer.node, refusal)
        return refusal is None

    def _reply(self, node: str, reply: AdminReply) -> None:
        self._hub.send(node, FrameKind.CONTROL, encode_control(reply))

    def _send_all(self, sends: list[tuple[str, int, bytes]]) -> None:
        """Send the core's frames; replies to audited commands wait until their audit record is written."""
        waiting, others = list[tuple[str, AdminReply]](), []
        for send in sends:
            reply = decode_control(send[2]) if self._verbs.waits(send[0]) else None
            if isinstance(reply, AdminReply):
                waiting.append((send[0], reply))
            else:
                others.append(send)
        self._hub.send_all(joined_frames(others, self.core.machine.map.nodes))
        for node, reply in waiting:
            self._audited(node, reply)

    def _audited(self, node: str, reply: AdminReply) -> None:
        self._verbs.replied(node, reply, partial(self._reply, node))

    def _on_up(self, peer: PeerKey) -> None:
        self._connected.add(peer.node)
        self._push(LinkUp(peer))

    def _on_down(self, peer: PeerKey) -> None:
        self._connected.discard(peer.node)
        self._push(LinkDown(peer))

    def _on_role(self, role: RaftRole, leader: str | None) -> None:
        say(logger, "raft.role", role=role.value, leader=leader or "unknown")
        self._push(RoleChanged(role is RaftRole.LEADER, leader or ""))

    def _send_raft(self, node: str, message: RaftMessage) -> None:
        if node in self._connected:  # Raft repeats messages, so queuing for a closed link has no use
            self._hub.send(node, FrameKind.RAFT, encode_message(message))

    def _apply(self, entry: LogEntry) -> None:
        # Directly, not through the queue: a snapshot after this entry must contain it.
        self._carry_out(self.core.handle(boot_time(), [Applied(entry.data)]))
        self._wake_loop()

    # --- the loop

    async def _loop(self) -> None:
        """Run an iteration at each deadline or wakeup, until this router ends."""
        self._serves = True
        while not self._has_ended:
            tick_s = TICK_MAX_S if len(self._raft.configuration.peers()) > 1 else IDLE_TICK_MAX_S
            self._wakes_at = min(self._deadline, boot_time() + tick_s)
            with trio.move_on_after(max(0.0, self._wakes_at - boot_time())):
                await self._wake.wait()
            self._wake = trio.Event()
            if self._events or boot_time() >= min(self._deadline, self._wakes_at):
                self._run_iteration()
            self._process.check_cluster(self.core.holder.cluster, self._hub.table)
        self._serves = False
        if self._process.restart:
            say(logger, "node.incarnation_ended")
        else:
            await self._hub.drain()

    def _wake_loop(self) -> None:
        """Run an iteration as soon as possible, regardless of the core's deadline."""
        self._deadline = float("-inf")
        self._wake.set()

    def _iterate_after_read(self) -> None:
        """Run an iteration within the call that read a link, which saves a wakeup of the loop.

        While a backlog exists, only the loop runs iterations, so that Raft and leases run in between.
        """
        if self._events and self._serves and not self._behind:
            self._run_iteration()
        if self._events or self._deadline < self._wakes_at:
            self._wake.set()

    def _run_iteration(self) -> None:
        events = self._events.take(self.core.is_behind)
        self._process.give_way()
        ready = self.core.handle(boot_time(), events or [NodeTick()])
        self._process.give_way()
        self._carry_out(ready)
        self._log_missing()
        self._repair_group()
        self._behind = bool(self._events) or self._deadline <= boot_time()
        if self._events:
            self._wake.set()
        if ready.stopped or ready.ended:
            self._has_ended, self._serves, self._process.restart = True, False, not ready.stopped
            self._wake.set()

    async def _wait_for_stop(self) -> None:
        await self._process.stopping.wait()
        self.core.stop.begin(boot_time())
        self._wake_loop()

    async def _transfer(self, successor: str) -> None:
        try:
            await self._raft.transfer_leadership(successor)
            say(logger, "raft.leadership_goes", peer=successor)
        except Unavailable as error:
            say(logger, "raft.leadership_stays", peer=successor, why=error)

    def _carry_out(self, ready: RouterReady) -> None:
        self._deadline = ready.next_deadline
        self._follow_map()  # first: frames are addressed to the incarnations of the new map
        if ready.transfer:
            self._nursery.start_soon(self._transfer, ready.transfer)
        for proposal in ready.proposals:
            self._nursery.start_soon(self._propose, proposal)
        for peer, question in ready.questions:
            self._nursery.start_soon(self._answer, peer, question)
        for router, order, refusal in ready.orders:
            if not order.dry_run:
                self._audit.note(order_record(order, router, refusal))
            if not refusal:
                self._ordered.take(router, order)
        for key, why in ready.violations:
            self._hub.condemn(key, why)
        self._send_all(ready.sends)
        self._process.give_way()
        if ready.rounds and self._raft.reads_now:  # otherwise three tasks and four loop iterations
            self._carry_out(self.core.handle(boot_time(), [RoundEnded(context, True) for context in ready.rounds]))
            return
        for context in ready.rounds:
            self._nursery.start_soon(self._round, context)

    async def _answer(self, peer: str, question: Admin) -> None:
        self._audited(peer, await self._group_verbs.answer(question))

    def _order_done(self, router: str, answer: NodeOrdered) -> None:
        self._push(OrderDone(router, answer))

    async def _propose(self, proposal: Proposal) -> None:
        try:
            await self._raft.propose(proposal.data)
        except NotLeader as error:
            self._push(ProposalFailed(proposal.number, error.leader_hint or ""))
        except Unavailable:
            self._push(ProposalFailed(proposal.number, ""))

    async def _round(self, context: int) -> None:
        try:
            await self._raft.read_index()
        except Unavailable:
            self._push(RoundEnded(context, False))
        else:
            self._push(RoundEnded(context, True))

    def _repair_group(self) -> None:
        """Repair the Raft group as its leader; log once that this router's identity was refused."""
        raft = self._raft.core
        if raft.identity_refused != self._logged_refused:
            self._logged_refused = raft.identity_refused
            if raft.identity_refused:
                say(logger, "raft.other_disk", peer=self._config.node.id)
        now = trio.current_time()
        if self.core.stop.begun:
            return  # the next leader repairs the group
        if self._repairing or now < self._next_repair or not self._raft.is_leader:
            return
        self._next_repair = now + REPAIR_EVERY_S
        change = raft.next_repair(self._config.router.lease_s)
        if change is not None:
            self._repairing = True
            self._nursery.start_soon(self._repair, change)

    async def _repair(self, change: ChangeMembership) -> None:
        if change.action == "replace":
            say(logger, "raft.disk_lost", peer=change.peer)
        try:
            await self._raft.change_membership(change)
            say(logger, "raft.change", action=change.action, peer=change.peer)
        except (NotLeader, Unavailable) as error:
            say(logger, "raft.change_failed", action=change.action, peer=change.peer, why=error)
        finally:
            self._repairing = False

    def _follow_map(self) -> None:
        if self.core.machine.map.epoch != self._followed:
            self._followed = self.core.machine.map.epoch
            nodes = self.core.machine.map.nodes.items()
            peers = {name: (entry.tier, entry.address, entry.incarnation) for name, entry in nodes if entry.alive}
            for name, address in self._members.items():
                peers.setdefault(name, (TIER_ROUTER, address, 0))
            self._hub.set_names(self.core.machine.map.nodes)
            if peers != self._peers:
                self._peers = peers
                self._hub.set_peers(peers)
        if not self._reported_ready and self.core.holder.has_lease(boot_time()):
            self._reported_ready = True
            self._process.ready({"link": self._bound})

    def _log_missing(self) -> None:
        if (now := boot_time()) >= self._next_waiting_log:
            self._next_waiting_log = now + 1.0
            self._waiting.look(now, self._not_ready_reason() or self._gaps.reason(self.core.machine.map))

    def _not_ready_reason(self) -> str:
        """Return one line with the reason why this router is not ready; "" if it is ready."""
        peers, node = self._raft.configuration.peers(), self._config.node.id
        others = sorted(set(peers) - self._connected - {node})
        if node not in peers:
            return f"not in the Raft group: `stratamq cluster join {node}` adds it"
        if not self.core.leader and others:
            return f"the {len(peers)} routers have no leader; no link to {', '.join(others)}"
        if not self.core.leader:
            return "the routers have no leader: an election is under way"
        if not self.core.holder.has_lease(boot_time()):
            return f"no lease from the leader, {self.core.leader}"
        return ""

    def _register_metrics(self) -> None:
        metrics, core = self._process.metrics, self.core
        metrics.gauge("raft_leader", "1 while this router leads.", lambda: float(core.leads))
        metrics.gauge("raft_term", "Raft term.", lambda: float(self._raft.core.term))
        metrics.gauge(
            "raft_commit_lag_entries",
            "Uncommitted entries of this router's log, as known to it.",
            lambda: float(self._raft.core.log.last_index - self._raft.core.commit_index),
        )
        metrics.counter(
            "raft_dropped_total",
            "Messages of other routers that Raft rejected, by reason.",
            lambda: {(reason,): float(count) for reason, count in self._raft.drops.items()},
            ("reason",),
        )
        register_router_metrics(metrics, core)
        metrics.gauge(
            "links_waiting_bytes",
            "Frames that were read and wait for their turn.",
            lambda: float(self._events.octets),
        )
        metrics.counter(
            "links_paused_total",
            "Times that a node's link was not read until this router had worked off what it sent.",
            lambda: float(self._events.pauses),
        )
        metrics.explain(self._not_ready_reason)
        self._audit.register(metrics)
        metrics.pool("node_links", lambda: self._hub.handshakes.counts)
        metrics.counter(
            "links_refused_total",
            "Connections to the port of links that were not taken, incarnations that broke the protocol, by reason.",
            self._hub.refused_by_reason,
            ("reason",),
        )
