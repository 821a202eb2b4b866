"""A router process of the simulation: RouterCore and RaftCore on a model disk, joined as ``router/service.py`` and
``router/raft/node.py`` join them."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from router.core import RouterCore
from router.events import Applied, Event, ProposalFailed, RoleChanged, RoundEnded, RouterReady
from router.policy.router_snapshot import snapshot_fault
from router.raft.core import RaftCore
from router.raft.events import Event as RaftEvent
from router.raft.events import (
    Persisted,
    ProposeBatch,
    RaftConfig,
    RaftReady,
    RaftRole,
    RaftTick,
    ReadIndexEvent,
    Receive,
    Snapshot,
    SnapshotTaken,
    TransferLeadership,
)
from router.raft.messages import NORMAL, RaftMessage, check_sender, decode_message, encode_message
from router.raft.segment import encode_record
from router.settings import RouterLimits
from tests.router.raft.model_disk import ModelDisk
from tests.simulation.link_process import LinkProcess
from tests.simulation.process import World
from wire.links.joined_frames import joined_frames
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick

__all__ = ["EPOCH_S", "RaftKnobs", "RouterProcess"]

EPOCH_S = 1.8e9  # UTC at simulated time 0


@dataclass(frozen=True)
class RaftKnobs:
    """Constants of Raft for one seed."""

    election_timeout_s: float = 0.3
    heartbeat_s: float = 0.06
    entries_per_append: int = 512
    snapshot_every: int = 10_000
    sync_s: float = 0.0005


class RouterProcess(LinkProcess):
    """One router over its lives."""

    tier = TIER_ROUTER

    def __init__(
        self,
        world: World,
        node: str,
        members: dict[str, str],
        settings: RouterLimits,
        knobs: RaftKnobs,
        storage_id: int,
        clock_offset_s: float,
    ) -> None:
        super().__init__(world, node, [], clock_offset_s)
        self.members = members
        self.settings = settings
        self.knobs = knobs
        self.disk = ModelDisk(storage_id)
        self._disk_rng = random.Random(f"{storage_id}")
        self.on_message: Callable[[PeerKey, Control], None] | None = (
            None  # called with messages that pass the table of permissions
        )

    # -- lives

    def start(self, incarnation: int, ended_incarnation: int, seed: str) -> None:
        """Begin a life from the disk."""
        rng = random.Random(seed)
        self._events: list[Event] = []
        self._connected: dict[str, None] = {}
        self._inbox: deque[RaftMessage] = deque()
        self._queue: list[RaftReady] = []
        self._syncing: list[RaftReady] = []
        self._proposals: dict[int, tuple[int, int]] = {}  # index -> term, proposal
        self._reads: dict[int, tuple[float, int]] = {}  # context -> until, round
        self._confirmed: list[tuple[int, int]] = []  # read index, round
        self._contexts = 0
        self._seen: tuple[RaftRole, str | None] = (RaftRole.FOLLOWER, None)
        self._raft_deadline = float("-inf")
        self._peers: dict[str, tuple[str, str, int]] = {}
        self._followed = -1  # epoch of the map that the peers are from
        stored = self.disk.load()
        self.core = RouterCore(
            NodeEntry(self.node, TIER_ROUTER, incarnation, self.address),
            self.settings,
            ended_incarnation=ended_incarnation,
            group=lambda: self.raft.configuration.peers(),
            utc=lambda: EPOCH_S + self.world.scheduler.now,
        )
        self.watch_messages()
        config = RaftConfig(
            id=self.node,
            voters=tuple(self.members),
            election_timeout_s=self.knobs.election_timeout_s,
            heartbeat_s=self.knobs.heartbeat_s,
            max_entries_per_append=self.knobs.entries_per_append,
        )
        self.raft = RaftCore(config, stored, rng, incarnation, snapshot_fault)
        self.applied_index = self._snapshot_index = stored.snapshot.index if stored.snapshot else 0
        if stored.snapshot is not None:
            self.core.restore(stored.snapshot.data)
        self.begin_links(incarnation, rng)
        self.set_peers({name: (TIER_ROUTER, address, 0) for name, address in self.members.items()})

    def watch_messages(self) -> None:
        """Call ``on_message``, in this life, with each message for the core."""
        on_message = self.on_message
        if on_message is None:
            return
        gate = vars(self.core)["_gate"]
        read, registered = gate.read, gate.registered

        def watched_read(now: float, event: FrameArrived) -> Iterator[Control]:
            for message in read(now, event):
                on_message(event.peer, message)
                yield message

        def watched_registered(now: float) -> Iterator[tuple[PeerKey, Control]]:
            for peer, message in registered(now):
                on_message(peer, message)
                yield peer, message

        gate.read, gate.registered = watched_read, watched_registered

    def kill(self, *, power: bool = False) -> None:
        """End the life; a prefix of the running write survives."""
        if self.up:
            self.end(power=power)
            if power:
                self.disk.crash(self._disk_rng)
            else:
                self.disk.finish()  # the kernel writes its page cache

    # -- links

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if kind == FrameKind.RAFT:
            message = decode_message(payload)
            check_sender(peer, message)
            self._inbox.append(message)
        else:
            self._events.append(FrameArrived(peer, kind, payload))

    def on_up(self, peer: PeerKey) -> None:
        self._connected[peer.node] = None
        self._events.append(LinkUp(peer))

    def on_down(self, peer: PeerKey) -> None:
        self._connected.pop(peer.node, None)
        self._events.append(LinkDown(peer))

    # -- the loop

    def turn(self) -> None:
        """One iteration: links, Raft, the core."""
        self.read_links()
        while self._inbox:
            self._raft(Receive(self._inbox.popleft()))
        if self.clock() >= self._raft_deadline:
            self._raft(RaftTick())
        self._expire_reads()
        events, self._events = self._events, []
        ready = self.core.handle(self.clock(), events or [NodeTick()])
        self._carry_out(ready)
        self.flush_links()
        if ready.stopped:
            self.world.scheduler.note(f"{self.node} has stopped")
            self.stopped()
            return
        if ready.ended:
            self.world.scheduler.note(f"{self.node} is ended by the map")
            self.ended()
            return
        if self._events:
            self.poke()
        self.wake_by(min(ready.next_deadline, self._raft_deadline))

    def stop(self) -> None:
        """SIGTERM."""
        self.core.stop.begin(self.clock())
        self.poke()

    def stopped(self) -> None:
        """End the process after the orderly stop."""

    def ended(self) -> None:
        """Have the cluster start another incarnation after the map ended this one."""

    def _carry_out(self, ready: RouterReady) -> None:
        self._follow_map()
        if ready.transfer:
            self._raft(TransferLeadership(ready.transfer))
        for proposal in ready.proposals:
            term = self.raft.term
            answer = self._raft(ProposeBatch((proposal.data,)))
            if answer.refused is not None:
                hint = self.raft.leader_hint if answer.refused == "not_leader" else None
                self._events.append(ProposalFailed(proposal.number, hint or ""))
            elif answer.proposed is not None and answer.proposed > self.applied_index:
                self._proposals[answer.proposed] = term, proposal.number
        for context in ready.rounds:
            self._contexts += 1
            self._reads[self._contexts] = self.clock() + 4 * self.knobs.election_timeout_s, context
            self._raft(ReadIndexEvent(self._contexts))
        for peer, why in ready.violations:
            self.table.condemn(peer, why)
        self.table.send_all(joined_frames(ready.sends, self.core.machine.map.nodes))

    def _follow_map(self) -> None:
        cluster_map = self.core.machine.map
        if cluster_map.epoch == self._followed:
            return
        self._followed = cluster_map.epoch
        nodes = cluster_map.nodes
        peers = {name: (entry.tier, entry.address, entry.incarnation) for name, entry in nodes.items() if entry.alive}
        for name, address in self.members.items():
            peers.setdefault(name, (TIER_ROUTER, address, 0))
        self.set_names(nodes)
        if peers != self._peers:
            self._peers = peers
            self.set_peers(peers)

    # -- Raft

    def _raft(self, event: RaftEvent) -> RaftReady:
        ready = self.raft.handle(self.clock(), event)
        self._send_raft(ready.early_messages)
        if ready.must_persist or (ready.messages and (self._queue or self._syncing)):
            self._queue.append(ready)
            self._sync()
        else:
            self._send_raft(ready.messages)
        self._apply(ready)
        for read in ready.read_states:
            _, number = self._reads.pop(int(read.context), (0.0, -1))
            if number < 0:
                continue
            if read.index < 0:
                self._events.append(RoundEnded(number, False))
            elif read.index <= self.applied_index:
                self._events.append(RoundEnded(number, True))
            else:
                self._confirmed.append((read.index, number))
        self._raft_deadline = ready.next_deadline
        self._watch_role()
        if self._events:
            self.poke()
        return ready

    def _send_raft(self, messages: tuple[RaftMessage, ...]) -> None:
        for message in messages:
            if message.to in self._connected:  # Raft repeats messages
                self.table.send(message.to, FrameKind.RAFT, encode_message(message))

    def _apply(self, ready: RaftReady) -> None:
        for entry in ready.committed:
            self.applied_index = entry.index
            if entry.kind == NORMAL:
                self._carry_out(self.core.handle(self.clock(), [Applied(entry.data)]))
            waiting = self._proposals.pop(entry.index, None)
            if waiting is not None and waiting[0] != entry.term:
                self._events.append(ProposalFailed(waiting[1], ""))
        if ready.committed:
            self._release_reads()
            if self.applied_index - self._snapshot_index >= self.knobs.snapshot_every:
                last = ready.committed[-1]
                self._snapshot_index = last.index
                data = self.core.capture()()
                self.world.scheduler.trace(f"{self.node} snapshot {last.index}", data)
                self.disk.save_snapshot(Snapshot(last.index, last.term, self.raft.configuration_at(last.index), data))
                self._raft(SnapshotTaken(last.index, data))

    def _release_reads(self) -> None:
        for index, number in self._confirmed:
            if index <= self.applied_index:
                self._events.append(RoundEnded(number, True))
        self._confirmed = [waiting for waiting in self._confirmed if waiting[0] > self.applied_index]

    def _expire_reads(self) -> None:
        for context in [context for context, (until, _) in self._reads.items() if until <= self.clock()]:
            self._events.append(RoundEnded(self._reads.pop(context)[1], False))

    def _watch_role(self) -> None:
        seen = (self.raft.role, self.raft.leader_hint)
        if seen == self._seen:
            return
        if self._seen[0] is RaftRole.LEADER and seen[0] is not RaftRole.LEADER:
            for _, number in self._proposals.values():
                self._events.append(ProposalFailed(number, ""))
            self._proposals.clear()
        self._seen = seen
        self.world.scheduler.note(f"{self.node} is {seen[0].value} of {seen[1]} in term {self.raft.term}")
        self._events.append(RoleChanged(seen[0] is RaftRole.LEADER, seen[1] or ""))

    # -- disk

    def _sync(self) -> None:
        if self._syncing or not self._queue:
            return
        self._syncing, self._queue = self._queue, []
        self.disk.begin(self._syncing)
        self._trace_writes(self._syncing)
        self.later(self.knobs.sync_s * (0.5 + self._disk_rng.random()), self._synced)

    def _trace_writes(self, batch: list[RaftReady]) -> None:
        for ready in batch:
            if ready.hard_state is not None:
                self.world.scheduler.trace(f"{self.node} hard state", msgspec.msgpack.encode(ready.hard_state))
            if ready.snapshot is not None:
                self.world.scheduler.trace(f"{self.node} installs", msgspec.msgpack.encode(ready.snapshot))
            for entry in ready.entries:
                self.world.scheduler.trace(f"{self.node} log", encode_record(entry, 0)[0])

    def _synced(self) -> None:
        self.disk.finish()
        batch, self._syncing = self._syncing, []
        for ready in batch:
            if ready.snapshot is not None:
                self.core.restore(ready.snapshot.data)
                self.applied_index = self._snapshot_index = ready.snapshot.index
                self._release_reads()
            self._send_raft(ready.messages)
        self._raft(Persisted(batch[-1].number))
        self._sync()
        self.poke()
