"""A Raft group in one process on virtual time: peers, disks and network; simulation.py adds load and faults.

Cores under a heap of (time, sequence, call); a network that loses, delays, duplicates and cuts; disks that lose
unsynced writes; crashes at state changes. ``Invariants`` checks every step.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from router.raft.core import RaftCore
from router.raft.events import (
    Event,
    Persisted,
    RaftConfig,
    RaftInvariantBroken,
    RaftReady,
    RaftRole,
    RaftTick,
    Receive,
    Snapshot,
    SnapshotTaken,
)
from router.raft.messages import AppendEntries, RaftMessage, RequestVoteReply
from tests.router.raft.invariants import Invariants, Violation
from tests.router.raft.knobs import Knobs
from tests.router.raft.model_disk import ModelDisk

__all__ = ["SimPeer", "SimulatedGroup", "Violation"]

EVENTS_MAX = 400_000  # of one run; more is a livelock


class SimPeer:
    """One peer: a disk that outlives its cores, and the shell's queues."""

    def __init__(self, name: str, disk: ModelDisk) -> None:
        self.name = name
        self.disk = disk
        self.core: RaftCore | None = None
        self.life = 0
        self.applied_index = 0
        self.state = 0
        self.snapshot_index = 0
        self.queue: list[RaftReady] = []
        self.syncing: list[RaftReady] = []
        self.deadline = float("inf")
        self.timer = float("inf")  # the earliest pending wake-up
        self.mine: dict[int, int] = {}  # index -> term of the proposals of this life
        self.reads: dict[int, int] = {}  # context -> highest index acknowledged before


class SimulatedGroup:
    """All events follow from the seed, the knobs and the core's class."""

    def __init__(
        self,
        rng: random.Random,
        knobs: Knobs,
        core_class: type[RaftCore] = RaftCore,
        disk_class: type[ModelDisk] = ModelDisk,
    ) -> None:
        self.rng = rng
        self.knobs = knobs
        self.core_class = core_class
        self.now = 0.0
        self.events = 0
        self.invariants = Invariants()
        self.down_links: set[tuple[str, str]] = set()
        self.dead: set[str] = set()  # never restarted
        self.stuck: set[str] = set()  # with disks whose sync never returns
        self.calm = False  # liveness mode: transient faults have ended
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        names = [f"n{at}" for at in range(self.knobs.peers)]
        spares = [f"s{at}" for at in range(self.knobs.spares)]
        self.voters = tuple(names)
        self.peers = {name: SimPeer(name, disk_class(self.new_storage_id())) for name in (*names, *spares)}
        self.storage_ids = {name: self.peers[name].disk.storage_id for name in names} if self.knobs.bound else {}

    # Machinery

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, call, arguments))

    def every(self, mean_s: float, call: Callable[[], None]) -> None:
        """Repeat a call at random times; never if the mean is 0."""
        if not mean_s:
            return

        def again() -> None:
            call()
            self.at(self.now + self.rng.expovariate(1 / mean_s), again)

        self.at(self.rng.expovariate(1 / mean_s), again)

    def run_until(self, time: float) -> None:
        """Run the heap's calls up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, call, arguments = heapq.heappop(heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation("livelock: too many events")
            call(*arguments)
        self.now = time

    # Peers

    def new_storage_id(self) -> int:
        return self.rng.getrandbits(40) + 1

    def start(self, peer: SimPeer) -> None:
        """Start a life of the peer from its disk."""
        if peer.core is not None or peer.name in self.dead:
            return
        peer.life += 1
        knobs = self.knobs
        stored = peer.disk.load()
        config = RaftConfig(
            id=peer.name,
            voters=self.voters if peer.name in self.voters else (),
            storage_ids=self.storage_ids,
            election_timeout_s=knobs.election_timeout_s,
            heartbeat_s=knobs.heartbeat_s,
            max_entries_per_append=knobs.max_entries_per_append,
            max_inflight_appends=knobs.max_inflight_appends,
            trailing_entries=knobs.trailing_entries,
            snapshot_chunk_bytes=knobs.chunk_bytes,
            disk_stall_s=5 * knobs.election_timeout_s,
            promote_lag_entries=20,
        )
        core = self.core_class(config, stored, random.Random(self.rng.getrandbits(64)), peer.life)
        peer.applied_index, peer.state, peer.snapshot_index = 0, 0, 0
        if stored.snapshot is not None:
            self._restore(peer, stored.snapshot)
        peer.queue, peer.syncing, peer.timer = [], [], float("inf")
        peer.mine, peer.reads = {}, {}
        peer.core = core
        self.step(peer, RaftTick())

    def crash(self, peer: SimPeer, down_s: float | None = None) -> None:
        """Lose power; restart later."""
        if peer.core is None:
            return
        peer.core = None
        peer.disk.crash(self.rng)
        down = self.rng.expovariate(1 / self.knobs.down_s) if down_s is None else down_s
        self.at(self.now + down, self.start, peer)

    def step(self, peer: SimPeer, event: Event) -> RaftReady | None:
        """Pass one event to the core and execute its Ready in the shell's order."""
        core = peer.core
        if core is None:
            return None
        try:
            ready = core.handle(self.now, event)
        except RaftInvariantBroken as error:
            raise Violation(str(error)) from error
        if core.role is RaftRole.LEADER and core.log.durable_index >= core.first_index_of_term:
            self.invariants.leading(core, peer.life)
        if ready.role is RaftRole.LEADER and not self.calm and self.rng.random() < self.knobs.crash_on_election:
            self.at(self.now + self.rng.random() * self.knobs.election_timeout_s, self.crash_life, peer, peer.life)
        self._send_all(peer, ready.early_messages)
        if ready.must_persist or peer.queue or peer.syncing:
            if ready.must_persist or ready.messages:
                peer.queue.append(ready)
                self._sync(peer)
        else:
            self._send_all(peer, ready.messages)
        self._apply(peer, ready)
        for read in ready.read_states:
            acked = peer.reads.pop(int(read.context), 0)
            if read.index >= 0:
                self.invariants.read(peer.name, acked, read.index)
        peer.deadline = ready.next_deadline
        if peer.deadline < peer.timer:
            self._set_timer(peer)
        return ready

    def _set_timer(self, peer: SimPeer) -> None:
        peer.timer = max(peer.deadline, self.now)
        self.at(peer.timer, self._timer, peer, peer.life, peer.timer)

    def _timer(self, peer: SimPeer, life: int, time: float) -> None:
        """Wake up, unless a newer wake-up was set; the deadline may have moved meanwhile."""
        if peer.life != life or peer.core is None or peer.timer != time:
            return
        peer.timer = float("inf")
        if peer.deadline <= self.now:
            self.step(peer, RaftTick())
        elif peer.deadline < float("inf"):
            self._set_timer(peer)

    def crash_life(self, peer: SimPeer, life: int) -> None:
        """Crash, unless the peer has restarted."""
        if peer.life == life:
            self.crash(peer)

    # Disk

    def _sync(self, peer: SimPeer) -> None:
        if peer.syncing or not peer.queue:
            return
        peer.syncing, peer.queue = peer.queue, []
        peer.disk.begin(peer.syncing)
        if peer.name in self.stuck:
            return
        took = self.rng.expovariate(1 / self.knobs.sync_s) if any(r.must_persist for r in peer.syncing) else 0.0
        if took and not self.calm and self.rng.random() < self.knobs.crash_in_sync:
            self.at(self.now + took * self.rng.random(), self.crash_life, peer, peer.life)
        self.at(self.now + took, self._synced, peer, peer.life)

    def _synced(self, peer: SimPeer, life: int) -> None:
        if peer.life != life or peer.core is None:
            return
        peer.disk.finish()
        batch, peer.syncing = peer.syncing, []
        if not self.calm and self.rng.random() < self.knobs.crash_after_sync:
            self.crash(peer)  # durable, but not reported
            return
        for ready in batch:
            if ready.entries:
                self.invariants.written_or_sent(peer.name, ready.entries)
            if ready.snapshot is not None:
                self._restore(peer, ready.snapshot)
            self._send_all(peer, ready.messages)
        if peer.core is not None:
            self.step(peer, Persisted(batch[-1].number))
            self._sync(peer)

    def _restore(self, peer: SimPeer, snapshot: Snapshot) -> None:
        peer.state = int.from_bytes(snapshot.data, "little")
        peer.applied_index = peer.snapshot_index = snapshot.index
        self.invariants.restored(peer.name, snapshot.index, peer.state)

    def _apply(self, peer: SimPeer, ready: RaftReady) -> None:
        core = peer.core
        if not ready.committed or core is None:
            return
        for entry in ready.committed:
            if entry.index != peer.applied_index + 1:
                raise Violation(f"{peer.name} applies {entry.index} after {peer.applied_index}")
            peer.state = self.invariants.apply(peer.name, entry, peer.state)
            peer.applied_index = entry.index
            if peer.mine.pop(entry.index, None) == entry.term:
                self.invariants.acked(entry.index)
                self.acknowledged()
        if peer.applied_index - peer.snapshot_index >= self.knobs.snapshot_every:
            peer.snapshot_index = peer.applied_index
            data = peer.state.to_bytes(8, "little")
            last = ready.committed[-1]
            peer.disk.save_snapshot(Snapshot(last.index, last.term, core.configuration_at(last.index), data))
            self.step(peer, SnapshotTaken(last.index, data))

    def acknowledged(self) -> None:
        """Record an answer to a client; modes that check progress override this."""

    # Network

    def _send_all(self, peer: SimPeer, messages: tuple[RaftMessage, ...]) -> None:
        for message in messages:
            if peer.core is None:
                return  # crashed between two messages
            self.send(message)
            if not self.calm:
                self._crash_at_message(peer, message)

    def _crash_at_message(self, peer: SimPeer, message: RaftMessage) -> None:
        """Cause targeted crashes: after a vote, or after a leader's copy of an entry of an older term."""
        knobs = self.knobs
        if type(message) is RequestVoteReply:
            if message.granted and self.rng.random() < knobs.crash_on_vote:
                self.crash(peer, 0.05 * knobs.election_timeout_s)
        elif type(message) is AppendEntries and message.entries:
            older = message.entries[0].term < message.term
            if older and self.rng.random() < 0.1 * knobs.crash_on_append:
                self.crash(peer)

    def send(self, message: RaftMessage) -> None:
        """Lose, duplicate or delay a message."""
        if type(message) is AppendEntries and message.entries:
            self.invariants.written_or_sent(message.sender, message.entries, message.prev_log_term)
        if (message.sender, message.to) in self.down_links:
            return
        rng, knobs = self.rng, self.knobs
        if not self.calm and knobs.loss and rng.random() < knobs.loss:
            return
        delay = knobs.delay_s * (0.5 + rng.random())
        if not self.calm:
            if knobs.late and rng.random() < knobs.late:
                delay += knobs.election_timeout_s * 3 * rng.random()
            if knobs.duplicate and rng.random() < knobs.duplicate:
                again = delay + rng.choice((delay, knobs.election_timeout_s)) * 2 * rng.random()
                self.at(self.now + again, self._deliver, message)
        self.at(self.now + delay, self._deliver, message)

    def _deliver(self, message: RaftMessage) -> None:
        peer = self.peers.get(message.to)
        if peer is not None and peer.core is not None and (message.sender, message.to) not in self.down_links:
            self.step(peer, Receive(message))
