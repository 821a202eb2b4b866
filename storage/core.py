"""The storage node's core: frames, map changes and syncs in; writes to commit and frames to send out.

Sans-IO. ``handle(now, events)`` takes all events of one iteration of the shell's loop and returns one batch of writes.
``BatchSynced`` reports that a batch is on disk; only then the outputs that depend on it leave. ``storage/incoming``
routes a frame to its partition. The modules that ``HostedPartition`` joins decide for one partition. The core orders
an iteration: events, map, timers, slices, then one operation for each partition that changed.
"""

from collections.abc import Callable, Sequence
from functools import partial

from storage.hosting.activation import ADVANCE_STEPS, PartitionActivation
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.map_changes import MapChanges
from storage.hosting.partition_timers import SWEEP_S, PartitionTimers
from storage.hosting.partition_work import PartitionWork
from storage.hosting.partitions import Partitions
from storage.hosting.pending_until_map import PendingUntilMap
from storage.hosting.pending_until_serving import Waiting, WaitingAck, WaitingMessage, WaitingRequest
from storage.hosting.placements import Placements
from storage.hosting.retained_scans import RetainedScans
from storage.hosting.route_reports import REPORT_SPACE_BYTES, RouteReports
from storage.hosting.storage_metrics import StorageMetrics
from storage.hosting.write_batches import WriteBatches
from storage.incoming.connects import Connects
from storage.incoming.control import ControlMessages
from storage.incoming.dead_senders import DeadSenders
from storage.incoming.frames import Frames
from storage.incoming.publishing import StoragePublishing
from storage.incoming.requests import Requests
from storage.queries.operators import StorageOperators
from storage.queries.sources import storage_sources
from storage.ready import BatchSynced, Event, StorageReady
from storage.state.ledger import PartitionLedger
from storage.state.partition import Reads
from storage.state.settings import PartitionSettings
from wire.links.joined_frames import joined_frames
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.replication import encode_replica_message
from wire.messages.retained import RetainedNone
from wire.node.events import FrameArrived, LinkDown, LinkUp, NodeTick
from wire.node.lease_holder import LeaseHolder
from wire.node.orderly_stop import OrderlyStop
from wire.node.unreached import Unreached

__all__ = ["BatchSynced", "FrameArrived", "LinkDown", "LinkUp", "NodeTick", "StorageCore", "StorageReady"]

SLICE_STEPS = 50  # of about ten microseconds: latency that a slice adds to messages
SLICE_EVERY_S = 0.004  # minimum interval between two slices while other events arrive
SYNC_PAUSE_S = (
    0.001  # pause after a slice during a sync: a loop that never sleeps starves the sync thread of the interpreter lock
)
STOP_S = 3.5  # from the stop order to the end if no other node takes over
CROWDED_S = 1.0  # after a full window was seen: acknowledgements are urgent
CHECK_S = 0.5  # interval of the check for unreachable nodes and of partition sizes


class StorageCore:
    """All partitions of this node, as primary or as backup."""

    def __init__(
        self,
        entry: NodeEntry,
        settings: PartitionSettings,
        store: Reads,
        *,
        now: float,
        whole: bool = True,
        ended_incarnation: int = 0,
        cluster_id: str = "",
        ledger: Callable[[int], PartitionLedger | None] = lambda _: None,
        room: Callable[[str], int] = lambda _: REPORT_SPACE_BYTES,
    ) -> None:
        self.node = entry.node
        self._iteration = iteration = Iteration(now)
        self.lease = lease = LeaseHolder(
            entry, iteration.send_control, self._map_moved, whole=whole, ended_incarnation=ended_incarnation,
            count=iteration.count, cluster_id=cluster_id,
        )  # fmt: skip
        self.stop = OrderlyStop(lease, STOP_S)
        self._batches = WriteBatches()
        self.crowded_until = 0.0  # the windows of subscribers are full, or were lately
        self.placements = Placements(entry.node, settings, store, self._batches.overlay, lambda: lease.map, ledger)
        self.partition_metrics = StorageMetrics(self.placements.hosted, self.placements.left_counts)
        self._early = PendingUntilMap()
        self._settling = PartitionActivation()
        self._partitions = Partitions(
            self.placements, iteration, self._batches, self._settling, self._process_pending_until_map
        )
        self._scans = RetainedScans(self._partitions.is_hosted, partial(self._partitions.touch, changed=False))
        self._work = PartitionWork(self._partitions.is_hosted, self._partitions.touch, self._take_up)
        self._reports = RouteReports(self.placements.hosted, lambda: lease.map, room)
        dead = DeadSenders(iteration, lambda: lease.map)
        self._publishing = StoragePublishing(iteration, lease, self._partitions, self._early, dead)
        self._requests = Requests(iteration, lease, self._partitions, self._early, self._scans)
        self._connects = Connects(iteration, lease, self._partitions, self._requests)
        shown = storage_sources(self.node, self.placements, lambda: lease.map, self.served_ms, self.event_counts)
        tracer, journal = self.placements.tracing.desk, self.placements.journal
        self.operators = StorageOperators(self.node, iteration, shown, tracer, journal, lambda: lease.map.epoch)
        self._control = ControlMessages(
            iteration, lease, self._partitions, self._early, self._requests, self._reports, self.operators
        )
        parts = (self._control, self._connects, self._publishing, self._requests)
        self._frames = Frames(iteration, self.placements, self._partitions, dead, *parts)
        self._timers = PartitionTimers(iteration, self._partitions)
        self._changes = MapChanges()
        self._unreached = Unreached(entry.node)
        self._moved: list[int] = []  # partitions that the current event brought here or to another epoch
        self._followed = False  # the core has applied a map that lists this node
        self._sweeps = True  # this iteration runs the timers of idle partitions
        self._next_sweep = float("-inf")
        self._next_check = float("-inf")
        self._slice_at = float("-inf")
        self._goes_on = False  # the current iteration has more events
        self._ends = False  # no event was left in the middle of a message's fan-out: the iteration ends after it
        self._steps = 0  # that partitions used in this iteration on their way to serving
        self._sweep_at = float("-inf")  # when the timers of idle partitions run next
        self._others_at = float("-inf")  # when work other than messages is due
        self._others_due = float("-inf")  # the same, without work that can wait for the next full iteration
        self.frames_lost: set[str] = set()  # nodes that did not receive some frames, reported by the shell
        self.copies_max = 1 << 60  # of messages in one quantum; the remaining events are returned

    @property
    def map(self) -> ClusterMap:
        """The cluster map that this node has applied."""
        return self.lease.map

    @property
    def partitions(self) -> dict[int, HostedPartition]:
        """The partitions with this node as primary."""
        return self.placements.hosted

    @property
    def full(self) -> bool:
        """Whether free disk space is below its floor: new messages are refused. The shell sets it."""
        return self._publishing.full

    @full.setter
    def full(self, full: bool) -> None:
        self._publishing.full = full

    @property
    def serving(self) -> bool:
        """True once every partition that the map gives to this node serves, and the map is known."""
        return self.lease.active and self._followed and not (self._settling or self.placements.loading)

    @property
    def loading(self) -> bool:
        """True while partitions are being read from the store."""
        return self.placements.loading

    @property
    def counts(self) -> dict[str, int]:
        """Event counts of this node by name, without those of its partitions."""
        return self._iteration.counts

    def event_counts(self) -> dict[str, int]:
        """Return counts of this node and of its partitions together."""
        scans = {"retained_scans_refused": self._scans.refused, "retained_scans_cut": self._scans.cut}
        return self.partition_metrics.event_counts(self._iteration.counts | scans)

    def served_ms(self, number: int) -> int:
        """Return the served clock of a partition of this node now."""
        hosted = self.partitions[number]
        self._partitions.tick(hosted)
        return hosted.partition.served_ms

    # --- the one entry point

    def handle(self, now: float, events: Sequence[Event], *, goes_on: bool = False) -> StorageReady:
        """Process the events of one iteration; return the work for the shell.

        With ``goes_on`` more events follow in this iteration: no work is returned yet.
        """
        begun, ends = self._goes_on, self._ends
        calm = not begun and self._begin(now) and not events
        self._iteration.now = now
        self._publishing.fanout_budget = self.copies_max
        self._publishing.resume()
        if ends:
            self._publishing.fanout_budget = (
                0  # no peer's event is taken: the iteration ends after the message whose fan-out is in progress
            )
        left = self._take_some(events, now)
        self._ends = self._publishing.in_progress and (ends or not goes_on)
        self._goes_on = self._publishing.in_progress or (goes_on and not ends)
        if self._goes_on:
            return StorageReady(next_deadline=now, left=left, goes_on=True)
        if self.has_only_messages(now):
            return self._ready(now, left, short=True)
        if now >= self._next_check:
            calm = False
            self._check_nodes(now)
        self.stop.step(now)
        self.partition_metrics.count_some(now)
        self.lease.beat(now)
        if calm and self._rests(now):
            return StorageReady(next_deadline=self._deadline(now), ended=self._is_ended, stopped=self.stop.ended)
        self._advance()
        self._resume(idle=all(isinstance(event, NodeTick) for event in events))
        if len(self._reports):
            self._iteration.sends.extend(self._reports.send(now, loading=self.loading))
        self.operators.end_iteration(now)
        self.placements.users.send_due(self._iteration)
        return self._ready(now, left, short=False)

    def _take_some(self, events: Sequence[Event], now: float) -> list[Event]:
        """Process events until the fan-out budget is used; return the unprocessed events of peers."""
        left: list[Event] = []
        for place, event in enumerate(events):
            if self._publishing.fanout_budget <= 0 and isinstance(event, FrameArrived | LinkUp | LinkDown):
                return [*left, *events[place:]]
            left += self._take(event, now)
            while self._moved:  # at once: later events of this iteration must not overtake pending requests
                number = self._moved.pop(0)
                self._partitions.here(number)
                self._process_pending_until_map(number)
        return left

    def _begin(self, now: float) -> bool:
        """Begin an iteration; return whether it skips the partitions' timers."""
        iteration = self._iteration
        fenced = not self.lease.has_lease(now)
        if fenced != iteration.fenced:
            self._partitions.tick_all()  # served clocks ran, or were stopped, until the previous iteration
            iteration.fenced = fenced
            if not fenced:
                self._partitions.lease_came()
        self._sweeps = not fenced and now >= self._sweep_at
        if self._sweeps:
            self._next_sweep = now + SWEEP_S
        self._frames.of_partitions = True
        return not self._sweeps

    def has_only_messages(self, now: float) -> bool:
        """Return whether an iteration has only messages to process: no other work is due or in progress.

        Then the other parts are skipped. Their deadlines from the last full iteration still hold, because only control
        messages, links and time change them.
        """
        if not self._frames.of_partitions or now >= self._others_at or self._sweeps:
            return False
        iteration, placements = self._iteration, self.placements
        if iteration.fenced or iteration.condemned or self.stop.begun or self._slices:
            return False
        return not (placements.users.stale or placements.tracing.desk.stale)

    def _take(self, event: Event, now: float) -> Sequence[Event]:
        """Process an event; return the rest of a frame of messages if the fan-out budget was used."""
        if isinstance(event, FrameArrived):
            return self._frames.take(event.peer, event.kind, event.payload, event.begin)
        if isinstance(event, BatchSynced):
            self._synced(event.batch)
            return []
        self._frames.of_partitions = False
        if isinstance(event, LinkUp):
            self._link(event.peer, now, up=True)
        elif isinstance(event, LinkDown):
            self._link(event.peer, now, up=False)
        return []

    def _check_nodes(self, now: float) -> None:
        self._next_check = now + CHECK_S
        self.lease.unreachable = self._unreached.nodes(now, self.map)
        self.lease.sizes = self.placements.sizes()
        if not self._iteration.fenced:
            overdue = self._early.take_overdue(now)
            self._publishing.refuse_overdue(overdue)
            self._requests.refuse_overdue(overdue)
            self.placements.discard(now)
            for node in [node for node in self.frames_lost if self._unreached.is_linked(node)]:
                self.frames_lost.discard(node)
                self._partitions.order_again(node)

    @property
    def _is_ended(self) -> bool:
        """Whether the map ended this incarnation, and not by its own request."""
        return self.lease.ended and not self.stop.begun

    def _rests(self, now: float) -> bool:
        """Return whether an iteration without events has no other work either."""
        iteration = self._iteration
        left = (
            iteration.sends
            or iteration.condemned
            or iteration.orders
            or self._partitions.active
            or self._settling
            or self._slices
        )
        left = left or now >= min(self.operators.next_deadline(), self.placements.users.next_deadline())
        return not left and not self._reports and now < self.placements.window.deadline and not self.placements.loading

    def _due_at(self) -> float:
        """Return when a partition next has work without an event."""
        return min(self._timers.next, self.placements.next_check, self._reports.next_again)

    def _link(self, peer: PeerKey, now: float, *, up: bool) -> None:
        if up:
            self._unreached.link_up(peer)
        else:
            self._unreached.link_down(peer)
            self.operators.gone(peer)
        if peer.tier == TIER_ROUTER:
            if up:
                self.lease.router_up(peer.node, now, peer.incarnation)
            else:
                self.lease.router_down(peer.node)
        elif peer.tier == TIER_STORAGE:
            if up:
                self.placements.link_up(peer.node, now)
            else:
                self.placements.link_down(peer.node, now)

    # --- pending requests

    def _process_pending_until_map(self, number: int) -> None:
        """Process the messages and requests that were pending until this node's map."""
        for waiting in self._early.take(number):
            if isinstance(waiting, WaitingMessage):
                self._publishing.waited_for_map(waiting)
            elif isinstance(waiting, WaitingRequest):
                self._requests.ask(waiting.peer, waiting.request)

    def _take_up(self, hosted: HostedPartition, waiting: Waiting) -> None:
        """Process a message or request that was pending until its partition serves."""
        if isinstance(waiting, WaitingMessage):
            self._publishing.waited_to_serve(hosted, waiting)
        elif isinstance(waiting, WaitingRequest):
            self._requests.carry_out(hosted, waiting.request, waiting.peer)
        elif isinstance(waiting, WaitingAck):
            self._requests.push_acked(hosted, waiting.peer, waiting.ack)
        else:
            self._requests.scan(hosted, waiting.request, waiting.peer.node)

    # --- work without requests

    def _advance(self) -> None:
        now = self._iteration.now
        self._steps = 0
        for hosted in self.placements.promote_some(now, self._batches.next):
            self._partitions.arrive(hosted)
        for hosted in self.placements.read_promoted(self._batches.synced, now):
            self._partitions.touch(hosted.partition.number, hosted)
        if self._settling:
            self._settle(now)
        if not self._sweeps:
            return
        self._timers.run_due()
        self._reports.repeat(now)

    def _settle(self, now: float) -> None:
        """Advance partitions towards serving: those with new events, and periodically all."""
        settled_epoch, active = self.lease.settled_epoch, self._partitions.active
        self._settling.select(now, (self.map.epoch, settled_epoch), active)
        left = ADVANCE_STEPS
        while left > 0 and (number := self._settling.take()) is not None:
            hosted = self.partitions.get(number)
            if hosted is not None and hosted.may_advance(now, settled_epoch):
                self._partitions.touch(number, hosted)
                left -= hosted.advance(now, settled_epoch, left)
                if hosted.goes_on:
                    self._settling.select_again(number)
        self._steps = ADVANCE_STEPS - left
        began = [hosted for number, hosted in active.items() if hosted.serving and number in self._settling]
        for hosted in began:
            self._settling.forget(hosted.partition.number)
        if began:
            self._reports.add(began, range(len(self.map.shards)))

    @property
    def _slices(self) -> bool:
        """Whether the next iteration has work to resume."""
        return bool(len(self._scans) or len(self._work))

    def _resume(self, *, idle: bool) -> None:
        """Run one slice of long work, usually after this iteration's replies."""
        iteration = self._iteration
        if iteration.fenced:
            return
        self.placements.window.resume(iteration.now, self._partitions.routes_of)
        if not self._slices or not (idle or iteration.now >= self._slice_at):
            return
        self._slice_at = iteration.now + SLICE_EVERY_S
        done = self._work.resume(SLICE_STEPS // 2 if len(self._scans) else SLICE_STEPS)
        for scan, none in self._scans.resume(iteration.now, SLICE_STEPS - done):
            iteration.send_control(scan.edge, RetainedNone(scan.request.request, none))

    # --- the end of an iteration

    def _ready(self, now: float, left: list[Event], *, short: bool) -> StorageReady:
        iteration, batches = self._iteration, self._batches
        ready = StorageReady(left=left)
        fenced = iteration.fenced
        if not short:
            ready.ended, ready.stopped = self._is_ended, self.stop.ended
            ready.condemned, ready.orders = iteration.take_condemned(), iteration.take_orders()
            fenced = not self.lease.has_lease(now)
            iteration.sends.extend(self._connects.answers(fenced=fenced))
        active = self._partitions.active
        self._work.catch_up(active, 0 if short else self._steps)
        touched = sorted(active)
        for number in touched:
            hosted = active[number]
            partition = hosted.partition
            if not self.placements.loaded(number):
                continue
            if partition.crowded:
                partition.crowded, self.crowded_until = False, now + CROWDED_S
            hosted.subscriptions.report_member_counts()
            if partition.work:
                self._work.add(number, hosted)
            if partition.dirty or partition.clock_due:
                writes = hosted.close_operation()
                if writes:
                    ready.writes.extend(writes)
                    batches.note_operation(number, partition.epoch, partition.meta.op_index)
            if not fenced:
                iteration.sends.extend(partition.committed_outputs())
        ready.writes.extend(self.placements.take_writes())
        self._partitions.end_turn(fenced=fenced)
        ready.batch = batches.close(ready.writes)
        self._replicate(now, touched, fenced=fenced)
        ready.sends = joined_frames(iteration.take_sends(), self.map.nodes)
        self._timers.note(touched)
        ready.next_deadline = self._short_deadline(now) if short else self._deadline(now)
        return ready

    def _replicate(self, now: float, touched: list[int], *, fenced: bool) -> None:
        """Reply to primaries once this iteration is on disk; stream to backups."""
        iteration, batches = self._iteration, self._batches
        for node, answer in self.placements.answers:
            batches.note_answer(node, encode_replica_message(answer))
        self.placements.answers.clear()
        for node, payload in batches.take_answers():
            iteration.sends.append((node, FrameKind.REPLICATE_ACK, payload))
        if fenced:
            return
        iteration.sends.extend(self.placements.stream(now, touched, sweeps=self._sweeps))
        if self.stop.begun:  # other nodes take over its copies, and they detect backups that stop too
            return
        for request in self.placements.wanted(now) if self._sweeps else ():
            if self.lease.leader:
                iteration.send_control(self.lease.leader, request)

    def _synced(self, batch: int) -> None:
        for _, number, epoch, op_index in self._batches.note_synced(batch):
            hosted = self.partitions.get(number)
            if hosted is not None and self.placements.loaded(number) and epoch <= hosted.partition.epoch:
                hosted.partition.note_synced("", op_index)
                self._partitions.touch(number, hosted)

    def _deadline(self, now: float) -> float:
        placements, busy = self.placements, len(self._reports) or len(self._settling) or self.placements.loading
        due = self._reports.next_send if len(self._reports) else float("inf")
        if not self._iteration.fenced:
            due = min(due, max(placements.window.deadline, self._next_sweep))
        due = min(due, self._settling.deadline(now), self.partition_metrics.deadline, placements.deadline(now))
        due = min(due, self.operators.next_deadline(), placements.users.next_deadline())
        self._others_due = due = min(due, self.lease.next_deadline(), self.stop.next_deadline())
        self._others_at = min(due, self._next_check, self.partition_metrics.next_count) if not busy else float("-inf")
        return self._short_deadline(now)

    def _short_deadline(self, now: float) -> float:
        """Return when the next iteration is due if only messages arrived since the last full computation."""
        self._sweep_at = max(self._due_at(), self._next_sweep)
        if self._iteration.fenced:
            return self._others_due
        if self._slices:
            return now + SYNC_PAUSE_S if self._batches.synced < self._batches.newest else now
        return min(self._others_due, self._sweep_at)

    # --- the map

    def _map_moved(self, cluster_map: ClusterMap) -> None:
        if not self.lease.active:
            return
        before = dict(self.partitions)
        self._followed = True
        for hosted in self.placements.map_moved(cluster_map, self._iteration.now):
            self._partitions.touch(hosted.partition.number, hosted)
            self._moved.append(hosted.partition.number)
        for number, hosted in before.items():
            if not self._partitions.is_hosted(number, hosted):
                unserved = hosted.waiting.leave(self.lease.newest_at)
                if unserved:
                    self._early.requeue(number, unserved)
        # Some node requests these already, and the requests would expire soon. The sender had this map or an older
        # one.
        self._moved += [number for number in self._early.partitions() if number in self.placements.coming]
        left = before.keys() - self.partitions.keys()
        self._partitions.forget_left()
        self._publishing.note_left(left - set(self.placements.coming), cluster_map.epoch)
        self._notify_partitions(cluster_map)

    def _notify_partitions(self, cluster_map: ClusterMap) -> None:
        """Pass changed shard owners and dead edges to the serving partitions."""
        changed, gone, came = self._changes.follow(cluster_map)
        if changed:
            self._reports.add([hosted for hosted in self.partitions.values() if hosted.serving], changed)
        if not (changed or gone or came):
            return
        for number, hosted in self.partitions.items():
            if not hosted.serving:
                continue
            if changed or gone or hosted.orders.lack_edge:
                self._partitions.touch(number, hosted)
            if changed:
                hosted.subscriptions.placement_changed(changed)
            if came:
                hosted.orders.edge_started()
            for edge, incarnation in gone:
                hosted.owners.edge_dead(edge, incarnation)
