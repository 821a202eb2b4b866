"""The storage node's core: frames, map changes and syncs in; writes to commit and frames to send out.

Sans-IO. ``handle(now, events)`` takes all events of one round of the shell's loop and answers with one batch of writes;
``BatchSynced`` says that a batch is on disk, and only then what waited for it leaves. Which partition does what is
decided in the modules that ``HostedPartition`` joins; this one routes, follows the map and gates.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from mqtt.reasons import ReasonCode
from mqtt.topics import has_wildcard
from storage.hosting.deadlines import Deadlines
from storage.hosting.early_requests import EarlyRequests
from storage.hosting.hosted_partition import HostedPartition, Tally
from storage.hosting.partition_work import PartitionWork
from storage.hosting.placements import Placements
from storage.hosting.retained_scans import RetainedScan, RetainedScans
from storage.hosting.route_reports import REPORT_ROOM_BYTES, RouteReports
from storage.hosting.waiting import (
    PartitionRequest,
    Waiting,
    WaitingAck,
    WaitingMessage,
    WaitingRequest,
    WaitingScan,
)
from storage.joined_frames import joined_frames
from storage.sessions.subscriptions import Subscriptions
from storage.state.ledger import PartitionLedger
from storage.state.partition import Output, Overlay, Reads
from storage.state.settings import PartitionSettings
from wire.decoding import Unreadable
from wire.links.allowed import RELAYED, TIER, fault_of, kinds_from
from wire.links.refusals import Refusals
from wire.messages.batches import (
    PublishMessage,
    PublishRun,
    PushAck,
    decode_publish,
    decode_push_acks,
    encode_message,
    encode_publish_ack,
)
from wire.messages.cluster_map import ClusterMap, NodeEntry, ShardEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import Moved, Relayed
from wire.messages.redispatch import HandedOn
from wire.messages.replication import AppendAck, decode_replica_message, encode_replica_message
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedNone
from wire.messages.routes import RoutesAdded
from wire.messages.sessions import (
    Claims,
    CloseSession,
    OpenSession,
    RecordInbound,
    ReleaseInbound,
    SessionKicked,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.messages.wills import WillFired
from wire.node.events import FrameArrived, LinkDown, LinkUp, Tick
from wire.node.lease_holder import LeaseHolder
from wire.node.orderly_stop import OrderlyStop
from wire.node.unreached import Unreached

__all__ = ["BatchSynced", "FrameArrived", "LinkDown", "LinkUp", "Ready", "StorageCore", "Tick"]

SWEEP_S = 0.02  # between two looks at the partitions whose time has come: what timers may be late by
DUE_PER_ROUND = 500  # of those: all others have their turn in the next looks
ADVANCED_PER_ROUND = 200  # partitions that go a step towards serving, of some thirty microseconds
ADVANCE_AGAIN_S = 0.1  # between two looks at those that wait for others
COUNTED_PER_LOOK = 50_000  # sessions
SLICE_STEPS = 50  # of about ten microseconds: what every message waits for that comes while a slice is done
SLICE_EVERY_S = 0.004  # at most between two slices, though other events come in every round
SYNC_REST_S = 0.001  # after one while something is synced: that thread gets no lock from a loop that never sleeps
STOP_S = 3.5  # from the order to stop to the end, when others do not take over
NOBODY = -1  # an owner_epoch that no connection has
LOOK_S = 0.5  # between two looks at who is not reached, and at what partitions hold


@dataclass(frozen=True, slots=True)
class BatchSynced:
    """Every batch up to this number is on disk."""

    commit: int


Event = FrameArrived | LinkUp | LinkDown | BatchSynced | Tick


@dataclass(slots=True)
class Ready:
    """Work for the shell: commit and sync the writes as batch ``commit``; send now what ``sends`` holds."""

    commit: int = 0  # 0: nothing to write
    writes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    sends: list[Output] = field(default_factory=list)
    next_deadline: float = float("inf")
    condemned: list[tuple[PeerKey, str]] = field(default_factory=list)  # broke the protocol, and how: end their links
    ended: bool = False  # this incarnation is dead in the map: start anew
    stopped: bool = False  # the orderly stop is over: end the process


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
        ledger: Callable[[int], PartitionLedger | None] = lambda _: None,
        room: Callable[[str], int] = lambda _: REPORT_ROOM_BYTES,
    ) -> None:
        self.node = entry.node
        self.settings = settings
        self.lease = LeaseHolder(
            entry, self._to_router, self._map_moved, whole=whole, ended_incarnation=ended_incarnation
        )
        self.stop = OrderlyStop(self.lease, STOP_S)
        self._store = store
        self._now = now
        self._overlay: Overlay = {}
        self._written: deque[tuple[int, list[tuple[bytes, bytes | None]]]] = deque()  # commit, what it put there
        self._commit = 0
        self._synced_commit = 0
        self._unsynced: deque[tuple[int, int, int, int]] = deque()  # commit, partition, partition_epoch, op_index
        self._early = EarlyRequests()
        self._left: dict[int, int] = {}  # partitions that moved from here -> the map epoch that said so
        self._fenced = True  # in this round
        self._followed = False  # the map that lists this node was looked at
        self._sweeps = True  # this round looks at partitions whose time has come, though nothing happened to them
        self._next_sweep = float("-inf")
        self._settling: dict[int, None] = {}  # partitions that do not serve yet
        self._to_advance: dict[int, None] = {}  # those of them that may be able to go on
        self._advanced_for = (-1, -1)  # the map's epoch and the settled one when all were looked at
        self._next_advance = float("-inf")
        self._timers = Deadlines()  # when a timer of a partition is due, or its served clock is to be saved
        self._moved: list[int] = []  # partitions that came here, or to another epoch, with the event at hand
        self._answers: deque[tuple[int, str, bytes]] = deque()  # commit, node, REPLICATE_ACK
        self.placements = Placements(entry.node, settings, store, self._overlay, lambda: self.lease.map, ledger)
        self._active: dict[int, HostedPartition] = {}  # touched in this round
        self._held: dict[int, HostedPartition] = {}  # touched in rounds without a lease: nothing left since
        self._scans = RetainedScans(self._is_hosted, partial(self._touch, changed=False))
        self._work = PartitionWork(self._is_hosted, self._touch, self._take_up)
        self._slice_at = float("-inf")
        self._sends: list[Output] = []
        self._condemned: dict[PeerKey, str] = {}  # in this round
        self._shards: list[ShardEntry] = []
        self._unreached = Unreached(entry.node)
        self._next_look = float("-inf")
        self._reports = RouteReports(self.placements.hosted, lambda: self.lease.map, room)
        self._edges: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self._refusals = Refusals(self._count)
        self._kinds = kinds_from(TIER_STORAGE)  # of frames, by the tier that sends them
        self.full = False  # said by the shell: the disk is below its floor, new messages are refused

    @property
    def map(self) -> ClusterMap:
        """The map as this node has it."""
        return self.lease.map

    @property
    def partitions(self) -> dict[int, HostedPartition]:
        """The partitions whose primary is this node."""
        return self.placements.hosted

    # --- figures

    @property
    def serving(self) -> bool:
        """True once every partition that the map gives to this node serves, and the map is known."""
        return self.lease.active and self._followed and not (self._settling or self.placements.loading)

    @property
    def loading(self) -> bool:
        """True while partitions are being read from the store."""
        return self.placements.loading

    def session_counts(self) -> dict[str, int]:
        """Return durable sessions by state."""
        tallies = self._tallies()
        online = sum(tally.online for tally in tallies)
        return {
            "connected": online,
            "absent": sum(len(item.core.sessions) for item in self.partitions.values()) - online,
        }

    def queued(self) -> int:
        """Return unconsumed entries of all sessions."""
        return sum(tally.queued for tally in self._tallies())

    def _tallies(self) -> list[Tally]:
        """Count anew where something happened, up to a number of sessions: a million would keep the loop."""
        left = COUNTED_PER_LOOK
        for hosted in self.partitions.values():
            if left > 0 and hosted.changed:
                hosted.count()
                left -= len(hosted.core.sessions)
        return [hosted.tally for hosted in self.partitions.values()]

    def retained(self) -> int:
        """Return retained registers."""
        return sum(len(hosted.retained) for hosted in self.partitions.values())

    def event_counts(self) -> dict[str, int]:
        """Return counts of this node and of its partitions together."""
        counts = self.counts | {"retained_scans_refused": self._scans.refused, "retained_scans_cut": self._scans.cut}
        for hosted in self.partitions.values():
            for what, amount in hosted.core.counts.items():
                counts[what] = counts.get(what, 0) + amount
        return counts

    # --- the one entry

    def handle(self, now: float, events: Sequence[Event]) -> Ready:
        """Take the events of one round."""
        fenced = not self.lease.has_lease(now)
        if fenced != self._fenced:
            self._tick()  # served clocks went on, or stood, until the round before
            self._fenced = fenced
            if not fenced:
                self._active = self._held | self._active
                self._held = {}
        self._now = now
        self._sweeps = not fenced and now >= self._next_sweep and now >= self._due_at()
        if self._sweeps:
            self._next_sweep = now + SWEEP_S
        for event in events:
            if isinstance(event, FrameArrived):
                self._frame(event.peer, event.kind, event.payload)
            elif isinstance(event, BatchSynced):
                self._synced(event.commit)
            elif isinstance(event, LinkUp):
                self._link(event.peer, now, up=True)
            elif isinstance(event, LinkDown):
                self._link(event.peer, now, up=False)
            while self._moved:  # at once: what comes next in this round may not overtake what waited
                number = self._moved.pop(0)
                self._here(number)
                self._take_up_early(number)
        calm = not (events or self._sweeps)
        if now >= self._next_look:
            calm = False
            self._next_look = now + LOOK_S
            self.lease.unreachable = self._unreached.nodes(now, self.map)
            self.lease.sizes = self.placements.sizes()
            if not self._fenced:
                self.placements.discard(now)
        self.stop.step(now)
        self.lease.beat(now)
        if calm and self._rests(now):
            return Ready(next_deadline=self._deadline(now), ended=self._over, stopped=self.stop.ended)
        self._advance()
        self._go_on(idle=all(isinstance(event, Tick) for event in events))
        if len(self._reports):
            self._sends.extend(self._reports.send(now, loading=self.loading))
        return self._ready(now)

    @property
    def _over(self) -> bool:
        """Whether the map ended this life, and not at its own word."""
        return self.lease.ended and not self.stop.begun

    def _rests(self, now: float) -> bool:
        """Whether a round without events has nothing to do either."""
        left = self._active or self._sends or self._condemned or len(self._reports) or self._settling or self._slices
        return not left and now < self.placements.window.deadline and not self.placements.loading

    def _due_at(self) -> float:
        """Return when some partition has something to do of itself."""
        return min(self._timers.next, self.placements.next_look, self._reports.next_again)

    def _tick(self) -> None:
        for hosted in self.partitions.values():
            hosted.core.tick(self._now, running=hosted.serving and not self._fenced)

    def served_ms(self, number: int) -> int:
        """Return the served clock of a partition of this node now: one that is idle is not told the time."""
        hosted = self.partitions[number]
        hosted.core.tick(self._now, running=hosted.serving and not self._fenced)
        return hosted.core.served_ms

    def _touch(self, number: int, hosted: HostedPartition, *, changed: bool = True) -> None:
        """Something happens to a partition in this round."""
        hosted.changed = hosted.changed or changed
        hosted.core.tick(self._now, running=hosted.serving and not self._fenced)
        self._active[number] = hosted

    def _link(self, peer: PeerKey, now: float, *, up: bool) -> None:
        if up:
            self._unreached.link_up(peer)
        else:
            self._unreached.link_down(peer)
        if peer.tier == TIER_ROUTER:
            if up:
                self.lease.router_up(peer.node, now)
            else:
                self.lease.router_down(peer.node)
        elif peer.tier == TIER_STORAGE:
            if up:
                self.placements.link_up(peer.node, now)
            else:
                self.placements.link_down(peer.node, now)

    def _advance(self) -> None:
        for hosted in self.placements.promote_some(self._now, self._commit + 1):
            self._came(hosted)
        for hosted in self.placements.read_promoted(self._synced_commit, self._now):
            self._touch(hosted.core.number, hosted)
        if self._settling:
            self._settle()
        if not self._sweeps:
            return
        for number in self._timers.take(self._now, DUE_PER_ROUND):
            if number in self.partitions and self.partitions[number].serving:
                self._run_due(number, self.partitions[number])
        self._reports.repeat(self._now)

    def _run_due(self, number: int, hosted: HostedPartition) -> None:
        """Run a partition's timers, or save its served clock; neither is due yet where the clock has stood."""
        core = hosted.core
        core.tick(self._now, running=not self._fenced)
        if core.next_due_s() == 0.0:
            hosted.run_timers()
            self._touch(number, hosted)
        elif core.clock_due:
            self._touch(number, hosted, changed=False)
        else:
            self._note_timer(number, hosted)

    def _settle(self) -> None:
        """Let some partitions go on towards serving: those that something happened to, and at times all."""
        advanced_for = (self.map.epoch, self.lease.settled_epoch)
        if advanced_for != self._advanced_for or self._now >= self._next_advance:
            self._advanced_for = advanced_for
            self._next_advance = self._now + ADVANCE_AGAIN_S
            self._to_advance = dict.fromkeys(self._settling)
        else:
            self._to_advance.update((number, None) for number in self._active if number in self._settling)
        left = ADVANCED_PER_ROUND
        while self._to_advance and left > 0:
            number = next(iter(self._to_advance))
            del self._to_advance[number]
            if number not in self.partitions or not self.placements.loaded(number):
                continue
            hosted = self.partitions[number]
            if hosted.may_advance(self._now, self.lease.settled_epoch):
                self._touch(number, hosted)
                hosted.advance(self._now, self.lease.settled_epoch)
                left -= 1
        began = [hosted for number, hosted in self._active.items() if hosted.serving and number in self._settling]
        for hosted in began:
            del self._settling[hosted.core.number]
        if began:
            self._reports.add(began, range(len(self.map.shards)))

    def _came(self, hosted: HostedPartition) -> None:
        """A partition is here from now on: what waited for that goes before what comes next."""
        number = hosted.core.number
        self._settling[number] = None
        self._touch(number, hosted)
        self._take_up_early(number)

    def _take_up_early(self, number: int) -> None:
        """Go on with what waited for this node's map."""
        for waiting in self._early.take(number):
            if isinstance(waiting, WaitingMessage):
                self._publish_waited(waiting)
            elif isinstance(waiting, WaitingRequest):
                self._request(waiting.peer, waiting.request)

    def _take_up(self, hosted: HostedPartition, waiting: Waiting) -> None:
        """Go on with what waited until a partition serves."""
        if isinstance(waiting, WaitingMessage):
            if waiting.peer.tier == TIER_STORAGE:
                self._take(hosted, waiting.record, waiting.peer)
            elif not self._is_of_dead(waiting.peer):
                self._publish_at(waiting, its_turn=True)
        elif isinstance(waiting, WaitingRequest):
            self._carry_out(hosted, waiting.request, waiting.peer)
        elif isinstance(waiting, WaitingAck):
            self._push_acked(hosted, waiting.peer, waiting.ack)
        else:
            self._scan_one(hosted, waiting.request, waiting.peer.node)

    def _here(self, number: int) -> HostedPartition | None:
        """Return a partition whose primary is this node; one that is to come comes now, for somebody asks for it."""
        if number in self.placements.coming:
            self._came(self.placements.promote(number, self._now, self._commit + 1))
        return self.partitions.get(number)

    def _ready(self, now: float) -> Ready:
        ready = Ready(ended=self._over, stopped=self.stop.ended, condemned=list(self._condemned.items()))
        self._condemned.clear()
        fenced = not self.lease.has_lease(now)
        self._work.catch_up(self._active)
        touched = sorted(self._active)
        for number in touched:
            hosted = self._active[number]
            core = hosted.core
            if not self.placements.loaded(number):
                continue
            hosted.subscriptions.tell_counts()
            self._work.look(number, hosted)
            if core.dirty or core.clock_due:
                writes = core.close_operation()
                if writes:
                    ready.writes.extend(writes)
                    self._unsynced.append((self._commit + 1, number, core.epoch, core.meta.op_index))
            if not fenced:
                self._sends.extend(core.committed_outputs())
        ready.writes.extend(self.placements.take_writes())
        if fenced:
            self._held |= self._active
        self._active = {}
        if ready.writes:
            self._commit += 1
            ready.commit = self._commit
            for key, value in ready.writes:
                self._overlay[key] = (self._commit, value)
            self._written.append((self._commit, ready.writes))
        self._replicate(now, touched, fenced=fenced)
        ready.sends = joined_frames(self._sends)
        self._sends = []
        self._note_timers(touched)
        ready.next_deadline = self._deadline(now)
        return ready

    def _deadline(self, now: float) -> float:
        reports = self._reports.next_send if len(self._reports) else float("inf")
        if not self._fenced:
            if self._slices:
                return now + SYNC_REST_S if self._synced_commit < self._commit else now
            reports = min(reports, max(min(self.placements.window.deadline, self._due_at()), self._next_sweep))
        due = reports
        if self._settling:
            due = min(due, now if self._to_advance else self._next_advance)
        return min(self.lease.next_deadline(), self.stop.next_deadline(), self.placements.deadline(now), due)

    def _note_timers(self, touched: list[int]) -> None:
        for number in touched:
            hosted = self.partitions.get(number)
            if hosted is not None and hosted.serving:
                self._note_timer(number, hosted)

    def _note_timer(self, number: int, hosted: HostedPartition) -> None:
        """Keep when a partition has something to do by its served clock; that may come later, for the clock stands."""
        when = hosted.core.clock_deadline
        if when == float("inf"):
            return  # no timer either
        due_s = hosted.core.next_due_s()
        if due_s is not None:
            when = min(when, self._now + due_s)
        self._timers.set(number, max(when, self._now + SWEEP_S) if when <= self._now else when)

    def _replicate(self, now: float, touched: list[int], *, fenced: bool) -> None:
        """Answer primaries once this round is on disk; stream to backups."""
        for node, answer in self.placements.answers:
            self._answers.append((self._commit, node, encode_replica_message(answer)))
        self.placements.answers.clear()
        while self._answers and self._answers[0][0] <= self._synced_commit:
            _, node, payload = self._answers.popleft()
            self._sends.append((node, FrameKind.REPLICATE_ACK, payload))
        if fenced:
            return
        self._sends.extend(self.placements.stream(now, touched, sweeps=self._sweeps))
        if self.stop.begun:  # whose copies others look after from now on, and which backup stops too is theirs to see
            return
        for request in self.placements.wanted(now) if self._sweeps else ():
            if self.lease.leader:
                self._to_router(self.lease.leader, request)

    def _synced(self, commit: int) -> None:
        self._synced_commit = max(self._synced_commit, commit)
        while self._unsynced and self._unsynced[0][0] <= commit:
            _, number, epoch, op_index = self._unsynced.popleft()
            hosted = self.partitions.get(number)
            if hosted is not None and self.placements.loaded(number) and epoch <= hosted.core.epoch:
                hosted.core.note_synced("", op_index)
                self._touch(number, hosted)
        self._overlay_trim(commit)

    def _overlay_trim(self, commit: int) -> None:
        """Forget writes that stand in the store; a key that was written again since stays."""
        overlay, written = self._overlay, self._written
        while written and written[0][0] <= commit:
            for key, _ in written.popleft()[1]:
                known = overlay.get(key)
                if known is not None and known[0] <= commit:
                    del overlay[key]

    # --- frames

    def _frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if self._is_of_dead(peer) or peer in self._condemned:
            return  # what a peer sends behind a broken frame is void
        try:
            self._decoded(peer, kind, payload)
        except Unreadable as error:
            self._count("frames_unreadable")
            self._condemned[peer] = str(error)

    def _is_of_dead(self, peer: PeerKey) -> bool:
        """Whether the map says that this life of a node is over; what it sent is counted and dropped."""
        cluster_map = self.lease.map
        if peer.tier == TIER_ROUTER or not cluster_map.epoch or cluster_map.is_alive(peer.node, peer.incarnation):
            return False
        entry = cluster_map.nodes.get(peer.node)
        if entry is None or entry.incarnation < peer.incarnation:
            return False
        self._count("frames_of_dead")
        return True

    def _decoded(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        if kind not in self._kinds.get(peer.tier, ()):
            self._condemn(peer, f"frame kind {kind}", TIER)
        elif kind == FrameKind.CONTROL:
            self._control(peer, decode_control(payload))
        elif kind == FrameKind.PUBLISH:
            self._publish(peer, decode_publish(payload))
        elif kind == FrameKind.PUSH_ACK:
            self._push_acks(peer, decode_push_acks(payload))
        else:
            self._replica_message(peer, kind, payload)

    def _replica_message(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        message = decode_replica_message(payload)
        if isinstance(message, AppendAck) != (kind == FrameKind.REPLICATE_ACK):
            self._condemn(peer, f"{name_of(message)} in frame kind {kind}", TIER)
            return
        hosted, refused = self.placements.take(peer.node, message, self._now)
        if refused:
            self._refusals.refuse(self._now, peer, name_of(message), "placement")
        if hosted is not None:
            self._touch(hosted.core.number, hosted)

    def _condemn(self, peer: PeerKey, what: str, fault: str) -> None:
        """Refuse a message that no honest node sends, and close its link."""
        self._refusals.refuse(self._now, peer, what, fault)
        self._condemned[peer] = f"a {peer.tier} may not send this {what} ({fault})"

    def _publish(self, peer: PeerKey, records: list[PublishRun | PublishMessage]) -> None:
        for record in records:
            if isinstance(record, PublishRun):
                self._count("runs_refused")  # runs are for edges
                continue
            if peer.tier == TIER_STORAGE and (record.tag or record.qos):
                self._condemn(peer, "message above QoS 0", TIER)  # a former primary passes on QoS 0 only
                return
            for number, epoch in zip(record.partitions, record.epochs, strict=True):
                if self._here(number) is not None or not self._pass_on(number, record, peer):
                    self._publish_at(WaitingMessage(self._now, peer, number, epoch, record))

    def _publish_at(self, message: WaitingMessage, *, its_turn: bool = False) -> None:
        """Take a message for the present time of this node as primary; for a later one it waits for the map.

        What was meant for an earlier time may have been answered by another primary meanwhile, even refused: its edge
        sends again what is not answered when its map moves.
        """
        number = message.partition
        hosted = self._here(number)
        if hosted is None or message.epoch > hosted.core.epoch:
            if not self._early.keep(number, message):
                self._refuse(message.record, number, message.peer)
        elif message.epoch < hosted.core.since:
            self._count("publishes_of_former_times")
        else:
            self._publish_to(hosted, message, its_turn=its_turn)

    def _pass_on(self, number: int, record: PublishMessage, peer: PeerKey) -> bool:
        """Send QoS 0 for a partition that has just moved from here on to where it is: its edge does not send it again.

        Until the map epoch of the move is settled: after that every edge knows. QoS 1 and 2 are sent again.
        """
        if record.tag or number not in self._left or peer.tier != TIER_EDGE or self._fenced:
            return False
        primary = self.map.partitions[number].primary
        if not primary or self.lease.settled_epoch >= self._left[number]:
            return False
        self._count("passed_on")
        moved = replace(record, partitions=(number,), epochs=(self.map.partitions[number].epoch,))
        self._sends.append((primary, FrameKind.PUBLISH, encode_message(moved)))
        return True

    def _publish_waited(self, message: WaitingMessage) -> None:
        """Take what waited for the map, or until its partition serves, unless its edge has died meanwhile.

        What that had sent is forgotten by then. Its client may have gone on elsewhere: what it sent again there stands
        already, and newer messages behind it.
        """
        if not self._is_of_dead(message.peer):
            self._publish_at(message)

    def _publish_to(self, hosted: HostedPartition, message: WaitingMessage, *, its_turn: bool) -> None:
        number, peer, record = message.partition, message.peer, message.record
        self._touch(number, hosted)
        if peer.tier == TIER_STORAGE:  # passed on: older than all that its edge sent here
            if hosted.serving or not hosted.waiting.keep_passed_on(message):
                self._count("passed_on_late")
        elif its_turn or hosted.takes:
            self._take(hosted, record, peer)
        elif not hosted.wait_to_serve(message):
            # What an older connection of its publisher sent, and waits here, is not taken any more; what follows on
            # this one neither, for the message may come again behind it.
            hosted.publishers.is_superseded(record.session, record.owner_epoch, self._now, self.map.lease_s)
            if record.qos:
                hosted.publishers.refused(record.session, record.owner_epoch, self._now)
            self._refuse(record, number, peer)

    def _take(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey) -> None:
        """Hand a message to its partition, unless the disk is full; one that stands already is acknowledged again."""
        if (self.full or hosted.publishers.refusing) and self._has_no_room(hosted, record, peer):
            self._refuse(record, hosted.core.number, peer, "refused_store_full")
        else:
            hosted.publish(record, peer)

    def _has_no_room(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey) -> bool:
        publishers, session, owner_epoch, now = hosted.publishers, record.session, record.owner_epoch, self._now
        if hosted.delivery.origins.is_repeat(record, peer.node, peer.incarnation):
            return False
        if publishers.is_superseded(session, owner_epoch, now, self.map.lease_s):
            return False  # the partition says so
        if not self.full:
            return record.qos > 0 and publishers.is_behind_refused(session, owner_epoch, now, self.map.lease_s)
        if record.qos:
            publishers.refused(session, owner_epoch, now)
        return True

    def _refuse(self, record: PublishMessage, number: int, peer: PeerKey, reason: str = "refused_not_serving") -> None:
        """No room for a message: say so, for one that was dropped in silence would be taken for a repeat."""
        self._count(reason)
        if record.tag:
            refusal = encode_publish_ack(record.tag, number, ReasonCode.SERVER_BUSY)
            self._sends.append((peer.node, FrameKind.PUBLISH_ACK, refusal))

    def _push_acks(self, peer: PeerKey, acks: list[PushAck]) -> None:
        for ack in acks:
            number = ack.session >> 48
            hosted = self._here(number)
            if hosted is None:
                self._count("not_primary")
                continue
            self._touch(number, hosted)
            if hosted.takes:
                self._push_acked(hosted, peer, ack)
            else:
                hosted.wait_to_serve(WaitingAck(self._now, peer, ack))

    def _push_acked(self, hosted: HostedPartition, peer: PeerKey, ack: PushAck) -> None:
        if hosted.owns_session(ack.session, peer):
            hosted.delivery.outbound.acknowledged(ack)
        else:
            self._count("acks_of_others")

    def _control(self, peer: PeerKey, message: Control) -> None:
        fault = fault_of(peer, TIER_STORAGE, message)
        if fault:
            self._condemn(peer, name_of(message), fault)
            return
        if peer.tier == TIER_ROUTER and self.lease.handle(self._now, message):
            self._early.forget_before(self.lease.newest_at)
            return
        if isinstance(message, PartitionRequest):
            self._request(peer, message)
        elif isinstance(message, ReadRetainedAll):
            self._read_all(peer, message)
        elif isinstance(message, SessionKicked):
            self._kicked(message, peer.node, peer.incarnation)
        elif isinstance(message, Relayed):
            self._relayed(peer, message)
        elif isinstance(message, Claims):
            hosted = self._hosted(message.partition)
            if hosted is not None and hosted.core.epoch == message.partition_epoch:
                hosted.claims_answered(message, peer.node, peer.incarnation)
        elif isinstance(message, WillFired):
            hosted = self._hosted(message.partition)
            if hosted is not None:
                hosted.claims.will_fired(message, peer.node)
        elif isinstance(message, HandedOn):
            hosted = self._hosted(message.partition)
            if hosted is not None and hosted.serving:
                hosted.delivery.handing_on.answered(message, peer.node)
        elif isinstance(message, RoutesAdded):
            hosted = self._hosted(message.request >> 32)
            if hosted is not None:
                hosted.subscriptions.routes_added(message)
        elif isinstance(message, Moved):
            self._count("moved")  # asked again when the map or the timer says so
            if message.request:
                self._routes_moved(message.request)
            elif 0 <= message.number < len(self.map.shards):
                self._reports.not_taken(message.number, self._now)
        else:
            self._count("messages_unknown")

    def _kicked(self, answer: SessionKicked, edge: str, incarnation: int) -> None:
        hosted = self._hosted(answer.request)
        if hosted is not None:
            hosted.claims.kicked(answer, edge, incarnation)

    def _routes_moved(self, request: int) -> None:
        """A shard's owner has another map than this node: ask it again soon."""
        hosted = self._hosted(request >> 32)
        if hosted is not None and hosted.serving:
            hosted.subscriptions.ask_soon(request)

    def _relayed(self, router: PeerKey, relayed: Relayed) -> None:
        """An edge's answer came by a router: its direct link to this node is down."""
        message = decode_control(relayed.message)
        entry = self.map.nodes.get(relayed.node)
        if entry is None or not self.map.is_alive(relayed.node, relayed.incarnation):
            self._count("relays_refused")
            return
        sender = PeerKey(relayed.node, entry.tier, relayed.incarnation)
        if not isinstance(message, RELAYED) or fault_of(sender, TIER_STORAGE, message):
            self._refusals.refuse(self._now, router, "Relayed", TIER)
        elif isinstance(message, SessionKicked):
            self._kicked(message, relayed.node, relayed.incarnation)

    def _read_all(self, peer: PeerKey, request: ReadRetainedAll) -> None:
        """Look into every partition here; into one that does not serve yet when it does."""
        serving = []
        for number in list(self.placements.coming):
            self._here(number)
        for number, hosted in self.partitions.items():
            if hosted.serving:
                serving.append((number, hosted))
                continue
            filters = (request.topic_filter, "", request.limit, request.waits_s)
            one = ReadRetained(request.request, number, hosted.core.epoch, *filters)
            hosted.wait_to_serve(WaitingScan(self._now, peer, one))
        if serving:
            self._scans.add(RetainedScan(peer.node, request, serving), self._now)

    def _scan_one(self, hosted: HostedPartition, request: ReadRetained, edge: str) -> None:
        self._scans.add(RetainedScan(edge, request, [(hosted.core.number, hosted)]), self._now)

    @property
    def _slices(self) -> bool:
        """Whether the next round has something to go on with."""
        return bool(len(self._scans) or len(self._work))

    def _go_on(self, *, idle: bool) -> None:
        """Do a slice of what may take long; what came in this round is answered before, mostly."""
        if self._fenced:
            return
        self.placements.window.go_on(self._now, self._routes_of)
        if not self._slices or not (idle or self._now >= self._slice_at):
            return
        self._slice_at = self._now + SLICE_EVERY_S
        done = self._work.go_on(SLICE_STEPS // 2 if len(self._scans) else SLICE_STEPS)
        for scan, none in self._scans.go_on(self._now, SLICE_STEPS - done):
            answer = RetainedNone(scan.request.request, none)
            self._sends.append((scan.edge, FrameKind.CONTROL, encode_control(answer)))

    def _routes_of(self, number: int) -> Subscriptions:
        hosted = self.partitions[number]
        self._touch(number, hosted)
        return hosted.subscriptions

    def _is_hosted(self, number: int, hosted: HostedPartition) -> bool:
        return self.partitions.get(number) is hosted

    def _hosted(self, number: int) -> HostedPartition | None:
        hosted = self._here(number)
        if hosted is not None:
            self._touch(number, hosted)
        return hosted

    def _request(self, peer: PeerKey, request: PartitionRequest) -> None:
        hosted = self._hosted(request.partition)
        placements = self.lease.map.partitions
        known = placements[request.partition].epoch if request.partition < len(placements) else 0
        if request.partition_epoch > known:  # the edge's map is ahead of this one
            if not self._early.keep(request.partition, WaitingRequest(self._now, peer, request)):
                self._count("requests_dropped_early")
            return
        # A life that this node's map does not have yet asks again: its CONNECT would pass for a dead edge's.
        known_life = self.lease.map.is_alive(peer.node, peer.incarnation)
        if hosted is None or request.partition_epoch != hosted.core.epoch or not known_life:
            epoch = hosted.core.epoch if hosted is not None else 0
            moved = Moved(request.request, "partition", request.partition, epoch, self.map.epoch)
            self._sends.append((peer.node, FrameKind.CONTROL, encode_control(moved)))
            return
        if hosted.takes:
            self._carry_out(hosted, request, peer)
            return
        serves = hosted.serving
        kept = hosted.wait_to_serve(WaitingRequest(self._now, peer, request))
        if kept and not serves and isinstance(request, CloseSession):
            hosted.claims.will_close(request)

    def _carry_out(self, hosted: HostedPartition, request: PartitionRequest, peer: PeerKey) -> None:
        edge = peer.node
        if not hosted.may_ask(request, peer):
            self._count("requests_of_others")
            request = replace(request, owner_epoch=NOBODY)  # answered as one of a connection that is over
        if isinstance(request, OpenSession):
            hosted.claims.open(request, edge, peer.incarnation)
        elif isinstance(request, CloseSession):
            hosted.claims.close(request, edge)
        elif isinstance(request, SubscribeSession):
            hosted.subscriptions.subscribe(request, edge)
        elif isinstance(request, UnsubscribeSession):
            hosted.subscriptions.unsubscribe(request, edge)
        elif isinstance(request, RecordInbound):
            hosted.inbound.record(request, edge)
        elif isinstance(request, ReleaseInbound):
            hosted.inbound.release(request, edge)
        elif isinstance(request, ReadRetained):
            if has_wildcard(request.topic_filter):
                self._scan_one(hosted, request, edge)
            else:
                hosted.retained.read(request, edge)
        else:
            hosted.retained.deliver(request, edge)

    # --- the map

    def _to_router(self, router: str, message: Control) -> bool:
        self._sends.append((router, FrameKind.CONTROL, encode_control(message)))
        return True

    def _map_moved(self, cluster_map: ClusterMap) -> None:
        if not self.lease.active:
            return
        before = dict(self.partitions)
        self._followed = True
        for hosted in self.placements.map_moved(cluster_map, self._now):
            self._touch(hosted.core.number, hosted)
            self._moved.append(hosted.core.number)
        for number, hosted in before.items():
            if self.partitions.get(number) is not hosted and (
                unserved := hosted.waiting.unserved(self.lease.newest_at)
            ):
                self._early.put_back(number, unserved)
        # Somebody asks for these already, and soon it would be forgotten: whoever asked knew this map, or an older one.
        self._moved += [number for number in self._early.partitions() if number in self.placements.coming]
        for table in (self._active, self._held, self._settling):
            for number in [number for number in table if number not in self.partitions]:
                del table[number]
        left = before.keys() - self.partitions.keys() - set(self.placements.coming)
        self._left = {number: epoch for number, epoch in self._left.items() if number not in self.partitions}
        self._left |= dict.fromkeys(sorted(left), cluster_map.epoch)
        changed = {
            number
            for number, shard in enumerate(cluster_map.shards)
            if number >= len(self._shards) or self._shards[number] != shard
        }
        self._shards = list(cluster_map.shards)
        edges = {entry.node: entry.incarnation for entry in cluster_map.live(TIER_EDGE)}
        gone = [(edge, life) for edge, life in self._edges.items() if edges.get(edge) != life]
        self._edges = edges
        if changed:
            self._reports.add([hosted for hosted in self.partitions.values() if hosted.serving], changed)
        if not (changed or gone):
            return
        for number, hosted in self.partitions.items():
            if not hosted.serving:
                continue
            self._touch(number, hosted)
            if changed:
                hosted.subscriptions.placement_changed(changed)
            for edge, life in gone:
                hosted.claims.edge_dead(edge, life)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
