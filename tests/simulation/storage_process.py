"""A storage process of the simulation: StorageCore and GroupCommit over a model disk, as ``storage/service.py`` joins
them."""

import random
from dataclasses import dataclass

from storage.core import FrameArrived, LinkDown, LinkUp, StorageCore
from storage.event_queue import StorageEventQueue
from storage.quantum import take_goes
from storage.ready import BatchSynced, StorageReady
from storage.state.settings import PartitionSettings
from storage.store.errors import StoreDamaged, StoreIncomplete, SyncFailed
from storage.store.group_commit import Committed, CommitWaited, GroupCommit, GroupCommitReady, LogSynced, Submitted
from storage.store.settings import GroupCommitSettings, StoreSettings
from tests.simulation.link_process import CLUSTER, LinkProcess
from tests.simulation.model_store import ModelDisk, ModelStore, ModelSync
from tests.simulation.process import World
from wire.links.roster import Roster
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import decode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.nodes import MapPage, MapStep

__all__ = ["DiskKnobs", "StorageProcess"]

STORE_SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
CLOCK_STEP_S = 1e-6  # smallest timer: a clock with an offset rounds, and a sooner timer would repeat forever


@dataclass(frozen=True)
class DiskKnobs:
    """How a disk and its group commit behave in one seed."""

    sync_s: float = 0.001
    delay_s: float = 0.002
    batch_ops: int = 512
    small_batch_ops: int = 16


class StorageProcess(LinkProcess):
    """One storage node over its lives.

    Attributes:
        copies: Most messages of one fan-out step, drawn from these in each iteration: larger ones are common here.
    """

    copies: tuple[int, ...] = (1, 1, 2, 4)
    loses_map = False  # steps and pages of the map are lost

    tier = TIER_STORAGE

    def __init__(
        self,
        world: World,
        node: str,
        seeds: list[str],
        settings: PartitionSettings,
        knobs: DiskKnobs,
        seed: str,
        clock_offset_s: float,
    ) -> None:
        super().__init__(world, node, seeds, clock_offset_s)
        self.settings = settings
        self.knobs = knobs
        self.disk = ModelDisk(lambda what, data: world.scheduler.trace(f"{node} {what}", data))
        self.slow_s = 0.0  # added to every sync
        self.short = 0
        self.syncs = 0
        self.damaged = 0
        self._disk_rng = random.Random(seed)
        self._goes_rng = random.Random(f"{seed}/goes")

    # -- lives

    def start(self, incarnation: int, ended_incarnation: int, seed: str) -> None:
        """Begin a life on the disk."""
        self._events = StorageEventQueue()
        self._peers: dict[str, tuple[str, str, int]] = {}
        self._followed = -1  # epoch of the map that the peers are from
        try:
            self.store = ModelStore.open(self.disk, CLUSTER, self.node, STORE_SETTINGS)
        except StoreIncomplete:
            self.short += 1
            self.disk.wipe()
            self.store = ModelStore.open(self.disk, CLUSTER, self.node, STORE_SETTINGS)
        knobs = self.knobs
        self._group = GroupCommit(
            GroupCommitSettings(delay_s=knobs.delay_s, batch_ops=knobs.batch_ops, small_batch_ops=knobs.small_batch_ops)
        )
        self._group_deadline = float("inf")
        node = NodeEntry(self.node, TIER_STORAGE, incarnation, self.address)

        def begin() -> StorageCore:
            return StorageCore(
                node,
                self.settings,
                self.store,
                now=self.clock(),
                whole=self.disk.admitted,
                ended_incarnation=ended_incarnation,
            )

        try:
            self.core = begin()
        except StoreDamaged:
            self._put_aside()
            self.disk.kill()
            self.store = ModelStore.open(self.disk, CLUSTER, self.node, STORE_SETTINGS)
            self.core = begin()
        self.begin_links(incarnation, random.Random(seed))

    def roster(self) -> Roster:
        """Return the nodes of this node's map."""
        return Roster(lambda: self.core.map)

    def kill(self, *, power: bool = False) -> None:
        """End the life; without power the page cache is lost too."""
        if self.up:
            self.end(power=power)
            if power:
                self.disk.power_loss(self._disk_rng)
            else:
                self.disk.kill()

    def flip_bit(self) -> None:
        """Flip a bit of a random record of the disk."""
        keys = sorted(self.disk.records)
        if keys:
            self.disk.flip_bit(self._disk_rng.choice(keys), self._disk_rng.randrange(4096))

    def _put_aside(self) -> None:
        if self.holds_last_copy():
            self.world.scheduler.note(f"{self.node}: its disk holds a last copy in sync, and is spared")
            self.disk.unflip()
            return
        self.world.scheduler.note(f"{self.node}: its disk is damaged")
        self.damaged += 1
        self.disk.wipe()

    # -- links

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if self.loses_map and kind == FrameKind.CONTROL and isinstance(decode_control(payload), MapStep | MapPage):
            return
        self._events.append(FrameArrived(peer, kind, payload))

    def on_up(self, peer: PeerKey) -> None:
        self._events.append(LinkUp(peer))

    def on_down(self, peer: PeerKey) -> None:
        self._events.append(LinkDown(peer))

    def on_reset(self, peer: PeerKey) -> None:
        self.core.frames_lost.add(peer.node)
        self.on_down(peer)

    # -- the loop

    def turn(self) -> None:
        """One iteration: links, the core, its batch."""
        self.read_links()
        self.core.full = self.disk.full
        self.core.copies_max = self._goes_rng.choice(self.copies)
        # After one step, or after the iteration
        others_at = self.clock() if self._goes_rng.random() < 0.5 else float("inf")
        try:
            ready = take_goes(self.core, self._events, self.clock, others_at, own=False)
        except StoreDamaged:  # the service ends, and quarantines its store at the next start
            self._put_aside()
            self.failed()
            return
        self.disk.admitted = self.disk.admitted or self.core.lease.active
        if not self.stops_here("read", lambda: self._end_turn(ready)):
            self._end_turn(ready)

    def _end_turn(self, ready: StorageReady) -> None:
        self._carry_out(ready)
        if not self.stops_here("flush", lambda: self._flush_turn(ready)):
            self._flush_turn(ready)

    def _flush_turn(self, ready: StorageReady) -> None:
        self.flush_links()
        if ready.stopped:
            self.world.scheduler.note(f"{self.node} has stopped")
            self.stopped()
            return
        if ready.ended:
            self.world.scheduler.note(f"{self.node} is ended by the map")
            self.ended()
            return
        if not self.up:
            return
        if self._events:
            self.poke()
        self.wake_by(ready.next_deadline)

    def stop(self) -> None:
        """SIGTERM."""
        self.core.stop.begin(self.clock())
        self.poke()

    def stopped(self) -> None:
        """End the process after the orderly stop."""

    def ended(self) -> None:
        """Have the cluster start another incarnation after the map ended this one."""

    def holds_last_copy(self) -> bool:
        """Whether no other replica is in sync with a partition of this node; the cluster knows."""
        return False

    def failed(self) -> None:
        """End the process after a failed sync."""

    def _carry_out(self, ready: StorageReady) -> None:
        if ready.batch:
            self._commit(Submitted([ready.writes]))
            assert self._group.submitted == ready.batch
        self._follow_map()
        self._leave(ready)

    def _leave(self, ready: StorageReady) -> None:
        """Send an iteration's frames on its links."""
        for peer, why in ready.condemned:
            self.table.condemn(peer, why)
        self.core.frames_lost |= self.table.send_all(ready.sends)

    def _follow_map(self) -> None:
        cluster_map = self.core.map
        if cluster_map.epoch == self._followed:
            return
        self._followed = cluster_map.epoch
        peers = {
            name: (entry.tier, entry.address, entry.incarnation)
            for name, entry in cluster_map.nodes.items()
            if entry.alive and entry.tier in (TIER_ROUTER, TIER_STORAGE)
        }
        self.set_names(cluster_map.nodes)
        if peers and peers != self._peers:
            self._peers = peers
            self.set_peers(peers)

    # -- group commit

    def _commit(self, event: Submitted | Committed | LogSynced | CommitWaited) -> None:
        ready: GroupCommitReady = self._group.handle(self.clock(), event)
        if ready.durable is not None:
            self.store.acked(ready.durable_transaction_no)
            self._events.append(BatchSynced(ready.durable))
            self.poke()
        if ready.transaction is not None:
            number = self.store.write(ready.transaction, reclaiming=True)
            self._commit(Committed(number))
            return
        if ready.sync:
            seconds = self.slow_s + self.knobs.sync_s * (0.5 + self._disk_rng.random())
            self.later(seconds, self._synced, self.store.begin_sync(marker=ready.marker))
        self._group_deadline = ready.deadline
        if ready.deadline < float("inf"):
            self.later(max(CLOCK_STEP_S, ready.deadline - self.clock()), self._waited, ready.deadline)

    def _synced(self, ticket: ModelSync) -> None:
        try:
            ticket.run()
        except SyncFailed:
            self.world.scheduler.note(f"{self.node}: a sync failed")
            self.failed()
            return
        self.syncs += 1
        self._commit(LogSynced(ticket.transaction_no))

    def _waited(self, deadline: float) -> None:
        if deadline == self._group_deadline:
            self._commit(CommitWaited())
