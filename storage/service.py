"""The storage node's process: links, store, group commit and the core joined in one loop. It makes no decisions."""

import gc
import logging
import math
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from access.identity.peer_lists import read_peer_lists
from access.operators.audit_service import AuditService
from access.operators.audited_commands import AuditedVerbs
from access.operators.commands import operator_of
from conf.defaults import shared_values
from conf.errors import UserError
from conf.events import say
from conf.settings import NodeConfig, StorageConfig
from membership.node_gossip import NodeGossip
from storage.core import FrameArrived, LinkDown, LinkUp, StorageCore
from storage.event_queue import COPIES_MAX, StorageEventQueue
from storage.export.exporter import Exporter
from storage.hosting.live_copies import LiveCopies
from storage.partition_families import expose_partitions
from storage.progress_log import ProgressLog
from storage.quantum import take_goes
from storage.queries.query_rows import QueryRows
from storage.ready import BatchSynced, Event, StorageReady
from storage.state.ledger import PartitionLedger
from storage.state.settings import PartitionSettings
from storage.store.created_marker import CreatedMarker
from storage.store.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreIncomplete,
    damage_in,
)
from storage.store.group_committer import GroupCommitter
from storage.store.log_syncs import LogSyncs
from storage.store.quarantine import quarantine
from storage.store.quarantined_stores import QuarantinedStores
from storage.store.settings import GroupCommitSettings, StoreSettings
from storage.store.wal_store import WalStore
from wire.clock import boot_time
from wire.links.hub import LinkHub
from wire.links.roster import Roster
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE, LinkError, PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered
from wire.messages.queries import Query
from wire.node.node_queries import show_process
from wire.node.ordered import Ordered
from wire.node.process import NodeProcess, run_process
from wire.sstable.ledger import FileLedger, LedgerSink

__all__ = ["StorageService", "main"]

logger = logging.getLogger(__name__)

TICK_MAX_S = 0.25  # minimum loop interval while partitions load or the disk is full
IDLE_TICK_MAX_S = 1.0  # otherwise: the core returns every deadline, and a wakeup with cold caches costs as much as work
LAST_SYNC_S = 1.0  # timeout of the last sync at an orderly end; acknowledged operations are on disk before it
SPACE_CHECK_S = 0.1  # interval of the free space check
ACKS_DELAY_S = 0.05  # maximum delay of subscribers' PUBACKs without other events while no window is full
TIME_BUDGET_S = 0.001  # time budget of one call: other tasks of this process run after it
# Time that the loop may wait for the interpreter lock behind another computing thread, such as an export.
SLOW_SYNC_S = 64e-6 * 2**11  # 0.13 s, a bound of the histogram
SWITCH_S = 0.0005


def main(config: NodeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run a storage node until it is stopped; return the exit code."""
    assert isinstance(config, StorageConfig)

    async def service(process: NodeProcess) -> None:
        sys.setswitchinterval(SWITCH_S)
        await StorageService(process, config).run()

    return run_process(config, TIER_STORAGE, ready, service, read_peer_lists)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _tend_garbage(*, loading: bool) -> None:
    """Disable garbage collection while partitions load, then freeze their objects: many, long-lived, and no garbage.

    The collector would traverse them repeatedly. That takes over half of the time of reading 6 000 sessions, and
    pauses the loop later.
    """
    if loading and gc.isenabled():
        gc.disable()
    elif not loading and not gc.isenabled():
        gc.freeze()
        gc.enable()


class StorageService:
    """One storage process."""

    def __init__(self, process: NodeProcess, config: StorageConfig) -> None:
        self._process = process
        self._config = config
        self._wake = trio.Event()
        self._wakes_at = math.inf  # when the loop wakes up by itself
        self._deadline = 0.0  # of the core
        self._iterated_at = 0.0
        self._serves = self._stops = False
        self._cluster_map = ClusterMap("")  # as this node has applied it
        self._hub = LinkHub(
            process.identity,
            process.contexts,
            on_frame=self._on_frame,
            on_up=lambda peer: self._push(LinkUp(peer)),
            on_down=lambda peer: self._push(LinkDown(peer)),
            on_reset=self._on_reset,
            rng=random.Random(process.folder.incarnation),
            on_read=self._iterate_at_once,
            early=process.turns.note,
            give_way=process.give_way,
            roster=Roster(lambda: self._cluster_map),
        )
        self._events = StorageEventQueue(self._hub)
        self._frames_lost: set[str] = set()  # nodes that did not receive some frames, until the core processes it
        self._audit = AuditService(config.node, process.folder.path)
        self._verbs = AuditedVerbs(TIER_STORAGE, self._audit, self._hub.whence)
        self._peers: dict[str, tuple[str, str, int]] = {}
        self._followed = -1  # map epoch of ``_peers``
        self._reported_ready, self._submitted = False, 0
        self._space_check_at = 0.0
        self._created = CreatedMarker(self._process.folder.path)
        self._path = self._process.folder.path / "store"

    def _open_store(self) -> WalStore:
        """Open or create the store.

        ``_whole`` is False if the store may lack operations that this node acknowledged: when it was created just now,
        and in later incarnations until the map records the loss.

        Raises:
            StoreDamaged, StoreIncomplete: The caller quarantines the store.
        """
        if not self._path.exists():
            self._created.write()
        try:
            store = self._connect()
        except (StoreIncomplete, StoreDamaged):
            raise
        except StoreError as error:
            raise UserError(str(error)) from error
        self._whole = not self._created.stands
        return store

    def _connect(self) -> WalStore:
        node, settings = self._config.node, self._config.storage
        return WalStore.open(
            self._path,
            node.cluster,
            node.id,
            StoreSettings(
                free_space_floor_bytes=settings.free_space_floor_bytes,
                free_space_floor_percent=settings.free_space_floor_percent,
            ),
        )

    def _open_ledger(self) -> LedgerSink:
        node, folder = self._config.node.id, self._config.storage.ledger
        if not folder:
            return LedgerSink()
        incarnation = self._process.folder.incarnation
        try:
            return FileLedger(Path(folder) / node, node, incarnation, TIER_STORAGE, _wall_ms())
        except OSError as error:
            raise UserError(f"storage.ledger {folder}: {error.strerror or error}") from None

    def _partition_ledger(self, number: int) -> PartitionLedger | None:
        return PartitionLedger(number, self._ledger, _wall_ms) if self._ledger.enabled else None

    async def run(self) -> None:
        """Serve until cancelled, until the map ends this incarnation, or until the store is found incomplete.

        A store that lost acknowledged commits or has a damaged page is quarantined. Most pages are read long after the
        store was opened. The next incarnation starts with an empty store, because the library cannot open a second
        file of that name in this process.
        """
        try:
            self._store = self._open_store()
            await self._serve()
        except (StoreError, BaseExceptionGroup) as error:
            damage = damage_in(error)
            if damage is None:
                raise
            self._created.write()
            try:
                aside = quarantine(self._path)
            except StoreError as refused:
                raise UserError(f"{damage}; the store was not quarantined: {refused}") from None
            say(logger, "store.put_aside", problem=damage, path=aside)
            self._process.put_aside = True

    async def _serve(self) -> None:
        self._ledger = self._open_ledger()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._audit.run)
                self._ordered = Ordered(self._process.reload_now, self._order_done, nursery.start_soon)
                self._process.reloaded = self._audit.reloaded
                bound = await nursery.start(self._hub.run, self._process.link_address)
                self._bound = bound
                self._hub.set_seeds(self._config.node.seeds)
                self._syncs = LogSyncs(self._hub.reads)
                self._committer = GroupCommitter(
                    self._store,
                    self._on_durable,
                    self._commit_settings(),
                    self._syncs,
                    self._iterate_at_once,
                    LogSyncs(self._hub.reads, wait_s=0.0),
                )
                nursery.start_soon(self._committer.run)
                self.core = StorageCore(
                    self._process.entry(bound),
                    self._partition_settings(),
                    self._store,
                    now=boot_time(),
                    whole=self._whole,
                    ended_incarnation=self._process.folder.ended_incarnation,
                    cluster_id=self._process.folder.cluster_id,
                    ledger=self._partition_ledger,
                    room=self._room,
                )
                self.core.copies_max = COPIES_MAX
                self.core.operators.audit = self._audit.note
                self._progress = ProgressLog(
                    self.core.lease,
                    self.core.placements,
                    self.core.partition_metrics,
                    self._config.node.seeds,
                    lambda: self._hub.router_fault,
                )
                self._process.lease = self.core.lease
                show_process(self.core.operators.query_server, self._process, self.core.placements.journal)
                self._process.links = lambda: [peer.node for peer in self._hub.connected()]
                nursery.start_soon(self._wait_for_stop)
                self._exporter = self._make_exporter(nursery)
                self._register_metrics()
                nursery.start_soon(NodeGossip(self._process, self._config.membership).run, bound)
                await self._loop()
                nursery.cancel_scope.cancel()
        finally:
            try:
                self._store.close()
            except StoreError as error:
                say(logger, "store.not_closed", why=error)
            self._ledger.close(_wall_ms())

    def _make_exporter(self, nursery: trio.Nursery) -> Exporter:
        core = self.core

        def count_quarantined(stores: int) -> None:
            core.lease.stores_aside = stores

        copies = LiveCopies(core.node, core.placements, lambda: core.map, core.served_ms)
        aside = QuarantinedStores(self._path)
        return Exporter(copies, self._store, nursery.start_soon, self._export_dir(), aside, count_quarantined)

    def _export_dir(self) -> Path:
        """Return the folder for exports: as configured, else beside the store."""
        return self._config.storage.export_dir or self._process.folder.path / "exports"

    def _commit_settings(self) -> GroupCommitSettings:
        return GroupCommitSettings(delay_s=self._config.storage.group_commit_ms / 1000)

    def _partition_settings(self) -> PartitionSettings:
        return PartitionSettings(**shared_values(self._config.storage, PartitionSettings))

    # --- events

    def _push(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def _on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if peer.tier == TIER_OPERATOR:
            question = decode_control(payload)
            if isinstance(question, Query):
                self._push(FrameArrived(peer, kind, payload))
                return
            if not isinstance(question, Admin):
                raise LinkError("an operator's link carries queries only")
            reply = self._verbs.asked(peer, question) or self._exporter.ask(question, operator_of(peer))
            self._verbs.replied(peer.node, reply, partial(self._reply, peer.node))
            return
        self._events.append(FrameArrived(peer, kind, payload))  # ``_iterate_at_once`` follows

    def _on_reset(self, peer: PeerKey) -> None:
        self._frames_lost.add(peer.node)
        self._push(LinkDown(peer))

    def _reply(self, node: str, reply: AdminReply) -> None:
        self._hub.send(node, FrameKind.CONTROL, encode_control(reply))

    def _order_done(self, router: str, answer: NodeOrdered) -> None:
        self._hub.send(router, FrameKind.CONTROL, encode_control(answer))

    def _on_durable(self, commit: int) -> None:
        self._events.append(BatchSynced(commit))  # ``_iterate_at_once`` follows

    def _room(self, node: str) -> int:
        """Return how many bytes the link to a node accepts now."""
        link = self._hub.link(node)
        return 0 if link is None else link.room()

    # --- the loop

    async def _loop(self) -> None:
        """Run an iteration at each deadline and whenever events are left, until this node stops."""
        self._serves = True
        while not self._stops:
            steady = self.core.serving and not self.core.full and not self._progress.catches_up
            tick_at = self._iterated_at + (IDLE_TICK_MAX_S if steady else TICK_MAX_S)
            self._wakes_at = min(self._deadline, tick_at)
            with trio.move_on_after(max(0.0, self._wakes_at - boot_time())):
                await self._wake.wait()
            self._wake = trio.Event()
            if self._has_urgent_events or boot_time() >= min(self._deadline, self._wakes_at):
                self._iterate()
                if self._has_urgent_events:  # previous writes are synced already
                    self._wake.set()
            self._process.check_cluster(self.core.lease.cluster, self._hub.table)
        self._serves = False
        if self._process.restart:
            say(logger, "node.incarnation_ended")
        else:
            await self._end_in_order()

    @property
    def _has_urgent_events(self) -> bool:
        """Whether an event needs processing now.

        While the disk is congested, only events of routers and of this node count.
        Leases are renewed then. Events of edges stay queued, and links with long queues are paused.
        """
        return self._events.own if self._committer.congested else self._events.pressing

    def _iterate_at_once(self) -> None:
        """Run an iteration in the task that read a frame or finished a sync.

        The loop's own task would cost one more wakeup.
        """
        if self._events.goes_on or self._committer.congested:
            self._wake.set()
        elif self._events and self._serves:
            if self._events.pressing or boot_time() < self.core.crowded_until:
                self._iterate()
                if self._events.pressing and not self._events.goes_on:
                    self._iterate()  # previous writes are synced already
            else:  # no window is full: PUBACKs are processed with the next events
                self._deadline = min(self._deadline, boot_time() + ACKS_DELAY_S)
            if self._events.pressing or self._deadline < self._wakes_at:
                self._wake.set()

    def _iterate(self) -> None:
        self._process.give_way()
        self._check_free_space()
        _tend_garbage(loading=self.core.loading)
        self.core.frames_lost |= self._frames_lost
        self._frames_lost.clear()
        ready = self._take_some()
        if not self._whole and self.core.lease.active:
            self._created.remove()
            self._whole = True
        self._process_ready(ready)
        self._deadline, self._iterated_at = ready.next_deadline, boot_time()
        if ready.stopped or ready.ended:
            self._stops, self._serves, self._process.restart = True, False, not ready.stopped
            self._wake.set()

    def _take_some(self) -> StorageReady:
        """Process events for about a millisecond, as several quanta of one iteration."""
        own = self._committer.congested
        ready = take_goes(self.core, self._events, boot_time, boot_time() + TIME_BUDGET_S, own=own)
        if self._events.own or (self._events and not self._committer.congested):
            self._wake.set()
        return ready

    async def _wait_for_stop(self) -> None:
        await self._process.stopping.wait()
        self.core.stop.begin(boot_time())
        self._deadline = 0.0
        self._wake.set()

    async def _end_in_order(self) -> None:
        """Write and send the committed work; no new decision is made."""
        kept = len(self.core.partitions)
        say(logger, "node.stopped", waits=f"; {f'{kept} partitions wait' if kept else 'nothing waits'} for this node")
        with trio.move_on_after(LAST_SYNC_S):
            await self._committer.wait_durable(self._submitted)
        await self._hub.drain()

    def _check_free_space(self) -> None:
        """Refuse new messages when the disk is full, before they get an operation: operations are always written."""
        if boot_time() < self._space_check_at:
            return
        self._space_check_at = boot_time() + SPACE_CHECK_S
        full = False
        try:
            self._store.require_room()
        except StoreFull as error:
            full = True
            if not self.core.full:
                say(logger, "store.full", problem=error)
        if self.core.full and not full:
            say(logger, "store.has_room")
        self.core.full = full

    def _process_ready(self, ready: StorageReady) -> None:
        self._process.give_way()
        self._ledger.flush(_wall_ms())  # an operation is committed only after its ledger records
        self._follow_map()  # first: the sends belong to the incarnations of the current map
        for peer, why in ready.condemned:
            self._hub.condemn(peer, why)
        for router, order in ready.orders:
            self._ordered.take(router, order)
        self._frames_lost |= self._hub.send_all(ready.sends)
        self._process.give_way()
        if ready.batch:  # last: backups write while this node does
            self._submitted = self._committer.submit(ready.writes, more=bool(self._events))
            assert self._submitted == ready.batch  # one batch per Ready with writes

    def _follow_map(self) -> None:
        if self.core.map.epoch != self._followed:
            self._followed, self._cluster_map = self.core.map.epoch, self.core.map
            peers = {
                name: (entry.tier, entry.address, entry.incarnation)
                for name, entry in self.core.map.nodes.items()
                if entry.alive and entry.tier in (TIER_ROUTER, TIER_STORAGE)
            }
            self._hub.set_names(self.core.map.nodes)
            if peers and peers != self._peers:
                self._peers = peers
                self._hub.set_peers(peers)
        self._progress.log_progress(boot_time())
        if not self._reported_ready and self.core.lease.has_lease(boot_time()) and self.core.serving:
            self._reported_ready = True
            self._process.ready({"link": self._bound})

    def _register_metrics(self) -> None:
        metrics, core = self._process.metrics, self.core
        self._audit.register(metrics)
        metrics.gauge("partitions_primary", "Partitions served here.", lambda: float(len(core.partitions)))
        metrics.gauge(
            "partitions_catching_up",
            "Copies of partitions that are being rebuilt here.",
            lambda: float(core.placements.catching_up()[0]),
        )
        shown = QueryRows(core.node, core.placements.hosted, lambda: core.map, core.served_ms, _wall_ms)
        budget_bytes = self._config.storage.retained_bytes_max
        expose_partitions(metrics, shown, core.partition_metrics, core.event_counts, budget_bytes)
        metrics.show(
            "store_wal_fsync_seconds",
            "Duration of the syncs of the store's write-ahead log.",
            lambda: self._syncs.lengths,
        )
        metrics.counter("store_syncs_total", "Syncs of the write-ahead log.", lambda: float(self._committer.syncs))
        metrics.counter(
            "store_slow_syncs_total",
            f"Syncs of the write-ahead log that took more than {SLOW_SYNC_S:.2f} s.",
            lambda: float(self._syncs.lengths.above(SLOW_SYNC_S)),
        )
        metrics.counter("store_rows_total", "Rows written to the store.", lambda: float(self._committer.rows))
        metrics.gauge(
            "store_compaction_pending_bytes",
            "Bytes of the write-ahead log that are not in the data file yet.",
            lambda: float(self._store.unmoved_bytes),
        )
        metrics.gauge(
            "links_waiting_bytes", "Bytes of received frames in the event queue.", lambda: float(self._events.octets)
        )
        metrics.counter(
            "links_paused_total",
            "Times that reading of an edge's link was paused until its queued events were processed.",
            lambda: float(self._events.pauses),
        )
        metrics.gauge("store_full", "1 while messages are refused for lack of disk space.", lambda: float(core.full))
        metrics.explain(lambda: self._progress.waits_for(boot_time()))
        metrics.pool("node_links", lambda: self._hub.handshakes.counts)
        metrics.counter(
            "links_refused_total",
            "Refused connections to the link port and incarnations closed for protocol violations, by reason.",
            self._hub.refused_by_reason,
            ("reason",),
        )
        metrics.check("lease", lambda: core.lease.has_lease(boot_time()), depends=True)
        metrics.check("serving", lambda: core.serving, depends=True)
