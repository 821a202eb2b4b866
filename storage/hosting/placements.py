"""Partitions that this node serves or backs up, and the transitions between both.

Backup to primary: the whole log is applied to the state and synced, then the rows are read. The log is made durable at
every in-sync replica, and only then ``HostedPartition`` advances to serving. Primary to backup: the copy stays, with
all applied operations. A primary whose partition_epoch rises by one keeps its state, because no other node was primary
meanwhile. Rules: docs/protocol.md sections 9, 10.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from storage.hosting.deadlines import NEVER, Deadlines
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.pending_until_map import PendingUntilMap
from storage.hosting.pending_until_serving import WaitingBytes, WaitingCopy
from storage.hosting.user_usage_reports import UserUsageReports
from storage.replication.backup import PartitionBackup, Writes, check
from storage.replication.primary import CATCH_UP_ROWS, DROP_AFTER_S, CatchUp, PartitionReplication
from storage.sessions.route_window import RouteWindow
from storage.state.ledger import PartitionLedger
from storage.state.partition import Overlay, Reads
from storage.state.settings import PartitionSettings
from storage.state.tracing import Tracing
from storage.state.user_sums import UserSums
from wire.links.allowed import PrimaryStatus, standing
from wire.messages.cluster_map import ClusterMap, NodeEntry, PartitionEntry
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_STORAGE
from wire.messages.nodes import RequestChange
from wire.messages.replication import STALE, Append, AppendAck, ReplicaMessage, encode_replica_message
from wire.queries.journal import Journal

__all__ = ["Placements"]

# A large store is read in slices. Between them the lease is renewed, and loaded partitions already serve. Rows of one
# iteration, each processed about twice: some 3 ms.
LOADED_PER_ITERATION = 800
ROWS_PER_PARTITION = 40  # the cost of reading an empty one
PROMOTED_PER_ITERATION = 100  # partitions, of some 70 microseconds: the lease is renewed between two iterations
STREAMED_PER_ITERATION = 300  # of partitions without events
CHECKED_PER_ITERATION = 200
STREAM_GRID_S = 0.1  # of the clock: messages to backups of idle partitions leave together
TRANSFER_SCHEDULE_S = 0.02  # interval of the scheduling of whole copies
MOVED_COPY_S = 60.0  # how long a partition's copy stays after it has become whole elsewhere
DISCARDED_ROWS = 1_000  # of such a copy, deleted at a time
MEASURED_FRACTION = 16  # one in so many partitions is measured at each call


class _Coming(NamedTuple):
    """A partition that the map assigned to this node as primary and that is not promoted yet."""

    former: PartitionEntry | None  # the placement before
    since: int  # partition_epoch since which this node is its primary
    placed_at: int  # map epoch


class Placements:
    """Primaries and backups of one node."""

    def __init__(
        self,
        node: str,
        settings: PartitionSettings,
        store: Reads,
        overlay: Overlay,
        cluster_map: Callable[[], ClusterMap],
        ledger: Callable[[int], PartitionLedger | None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self.journal = Journal()
        self.tracing = Tracing(node, cluster_map, self._traces_changed)
        self.hosted: dict[int, HostedPartition] = {}
        self.sums = UserSums()
        self.users = UserUsageReports(node, self.sums, cluster_map)
        self.left_counts: dict[str, int] = {}  # of partitions that were served here
        self.window = RouteWindow()
        self._waiting_bytes = WaitingBytes()
        self.replication: dict[int, PartitionReplication] = {}
        self.replicas: dict[int, PartitionBackup] = {}
        self.answers: list[tuple[str, AppendAck]] = []  # of this iteration; they leave when it is synced
        self._node = node
        self._settings = settings
        self._store = store
        self._overlay = overlay
        self._map = cluster_map
        self._promoting: dict[int, int] = {}  # partition -> batch that must be synced before its rows are read
        self._early = PendingUntilMap()  # messages of primaries that this node's map does not list yet
        self._touched: set[int] = set()  # replicas that may have writes
        self._linked: set[str] = set()
        self._linked_for: dict[str, float] = {}  # time of the last link up; negative: time of the last link down
        self._known: list[PartitionEntry] = []  # of the previous map
        self._known_nodes: list[NodeEntry] = []  # live storage nodes likewise
        self.coming: dict[int, _Coming] = {}  # to be promoted, in order
        self._streams = Deadlines()  # when a partition's backups get a message without an event
        self._change_checks = Deadlines()  # when a partition may have a change to request
        self._transferring: set[int] = set()  # partitions with a range transfer to a replica
        self._schedule_at = float("-inf")
        self._more_to_read = False
        self._reading: tuple[HostedPartition, Iterator[int]] | None = None  # the one that is being read
        self._moved: dict[int, tuple[int, float]] = {}  # partitions placed elsewhere: epoch, timestamp
        self._discarding: tuple[int, bytes] = (-1, b"")  # partition, next key
        self._clear: set[int] = set()  # partitions placed elsewhere without rows here
        self._catch_up = CatchUp()
        self._request = 0
        self._sizes: dict[int, tuple[int, int]] = {}  # partition -> keys, bytes
        self._measured = 0  # number of calls so far
        self._counted = 0, (0, 0)  # map epoch, numbers of joining and of in-sync copies

    # --- links

    def link_up(self, node: str, now: float) -> None:
        """Record a new link to a storage node."""
        self._linked.add(node)
        self.sums.tell_all()
        self._linked_for[node] = now
        self._look_at_all(now)

    def link_down(self, node: str, now: float) -> None:
        """Record a lost link to a storage node."""
        self._linked.discard(node)
        self._linked_for[node] = -now
        for number, replication in self.replication.items():
            if node in replication.backups:
                self._change_checks.set(number, now + DROP_AFTER_S)

    def _look_at_all(self, now: float) -> None:
        """Schedule a check of all partitions after links or nodes have changed, in slices."""
        for number in self.replication:
            self._streams.set(number, now)
            self._change_checks.set(number, now)

    # --- the map

    def map_moved(self, cluster_map: ClusterMap, now: float) -> list[HostedPartition]:
        """Apply the map; return the partitions that are served here under a new epoch, with their state.

        New partitions are promoted in slices by ``promote_some``, or on the first request. Until then they are not
        served, as while they are read. Partitions with another primary are dropped at once.
        """
        live = cluster_map.live(TIER_STORAGE)
        for entry in live:
            self._linked_for.setdefault(entry.node, -now)
        nodes_moved = live != self._known_nodes
        if nodes_moved:
            self.sums.retain_nodes({entry.node for entry in live})
        known, self._known_nodes = self._known, live
        moved = []
        placements = cluster_map.partitions
        changed = [number for number, (old, new) in enumerate(zip(known, placements, strict=False)) if old is not new]
        changed += range(len(known), len(placements))
        if nodes_moved:
            for number, placement in enumerate(placements):
                self._note_away(number, placement, cluster_map, now)
        for number in changed:
            placement = placements[number]
            if number < len(known) and known[number] == placement:
                continue  # of a map that was read again
            self._note_away(number, placement, cluster_map, now)
            hosted = self.hosted.get(number)
            if placement.primary == self._node:
                if hosted is None or placement.epoch > hosted.partition.epoch + 1:
                    self._add_coming(number, placement, cluster_map)
                elif placement.epoch != hosted.partition.epoch:
                    replication = self.replication[number]
                    replication.configure(placement, cluster_map.min_in_sync)
                    self._change_checks.set(number, now)
                    if number not in self._promoting:
                        replication.begin(now)
                    moved.append(hosted)
                continue
            self.coming.pop(number, None)
            if hosted is not None:
                self.demote(number)
            if number in self.replicas:
                self.replicas[number].seen_epoch(placement.epoch)
        self._known = list(cluster_map.partitions)
        if nodes_moved:
            self._look_at_all(now)
        for number in self._early.partitions():
            for waiting in self._early.take(number):
                if isinstance(waiting, WaitingCopy):
                    self.take(waiting.peer, waiting.message, waiting.since)  # or keep it again
        return moved

    def _add_coming(self, number: int, placement: PartitionEntry, cluster_map: ClusterMap) -> None:
        if number in self.hosted:
            self.demote(number)
        coming = self.coming.get(number)
        if coming is not None and placement.epoch == self._known[number].epoch + 1:
            return  # no other node was primary meanwhile
        former = self._known[number] if number < len(self._known) else None
        self.coming[number] = _Coming(former, placement.epoch, cluster_map.epoch)
        if number in self.replicas:
            self.replicas[number].seen_epoch(placement.epoch)

    def promote_some(self, now: float, next_batch: int) -> list[HostedPartition]:
        """Promote some of the partitions that came here; the others follow in later iterations."""
        numbers = list(islice(self.coming, PROMOTED_PER_ITERATION))
        return [self.promote(number, now, next_batch) for number in numbers]

    def _replica(self, number: int) -> PartitionBackup:
        replica = self.replicas.get(number)
        if replica is None:
            replica = self.replicas[number] = PartitionBackup(number, self._store, self._overlay)
            replica.load()
            placements = self._map().partitions
            if number < len(placements):
                placement = placements[number]
                if self._node in placement.in_sync or self._node in placement.joining:
                    replica.seen_epoch(placement.epoch)
        return replica

    def promote(self, number: int, now: float, next_batch: int) -> HostedPartition:
        """Become the primary of a partition that came here.

        Args:
            number: One of ``coming``.
            now: Seconds.
            next_batch: Number of the batch of this iteration, if it has writes.
        """
        former, since, placed_at = self.coming.pop(number)
        cluster_map = self._map()
        placement = cluster_map.partitions[number]
        replica = self._replica(number)
        replica.seen_epoch(placement.epoch)
        if former is not None and former.epoch and self._node not in former.in_sync:
            replica.accept_loss()  # never in sync, and now the primary: an operator's decision
        replica.promote()
        self._touched.add(number)
        state = number, self._settings, self._store, self._overlay
        hosted = HostedPartition(*state, self._map, now, self.window, self._waiting_bytes)
        hosted.partition.since, hosted.placed_at = since, placed_at
        hosted.partition.ledger, hosted.partition.journal = self._ledger(number), self.journal
        hosted.partition.tracing, hosted.partition.sums = self.tracing, self.sums
        self.hosted[number] = hosted
        replication = self.replication[number] = PartitionReplication(hosted.partition, self._node)
        replication.configure(placement, cluster_map.min_in_sync, former)
        self._promoting[number] = next_batch
        return hosted

    def _traces_changed(self) -> None:
        for hosted in self.hosted.values():
            hosted.fast_path.forget_routes()

    def demote(self, number: int) -> None:
        """Stop serving a partition: this node is not its primary any more."""
        hosted = self.hosted.pop(number)
        self.sums.leave(hosted.partition.sessions_of, hosted.retained.owned)
        for what, amount in hosted.partition.counts.items():  # the counts stay: no counter may decrease
            self.left_counts[what] = self.left_counts.get(what, 0) + amount
        self.window.forget(number)
        self._sizes.pop(number, None)
        self._touched.add(number)
        del self.replication[number]
        self._streams.forget(number)
        self._change_checks.forget(number)
        self._transferring.discard(number)
        if self._promoting.pop(number, None) is not None:
            return  # its replica exists, with all operations applied
        replica = self.replicas[number] = PartitionBackup(number, self._store, self._overlay)
        replica.take_over(hosted.partition.meta, hosted.partition.local)

    def read_promoted(self, synced: int, now: float) -> list[HostedPartition]:
        """Read some rows of promoted partitions whose log is in the store; return those that are read completely."""
        read: list[HostedPartition] = []
        weight = 0
        while self._promoting:
            number, commit = next(iter(self._promoting.items()))
            if commit > synced:
                break
            hosted = self.hosted[number]
            if self._reading is None or self._reading[0] is not hosted:
                self._reading = (hosted, hosted.load())
            for rows in self._reading[1]:
                weight += rows
                if weight >= LOADED_PER_ITERATION:
                    self._more_to_read = True
                    return read
            weight += ROWS_PER_PARTITION
            self._reading = None
            del self._promoting[number]
            self.replicas.pop(number, None)
            if hosted.partition.ledger is not None:
                hosted.partition.ledger.began(hosted.partition.epoch, hosted.partition.meta.op_index)
            self.replication[number].begin(now)
            self._change_checks.set(number, now)
            read.append(hosted)
            if weight >= LOADED_PER_ITERATION:
                self._more_to_read = True
                return read
        self._more_to_read = False
        return read

    @property
    def loading(self) -> bool:
        """Whether partitions that this node serves are not completely read."""
        return bool(self._promoting or self.coming)

    def progress(self) -> tuple[int, int]:
        """Return the number of loaded partitions served here, and the number of all."""
        return len(self.hosted) - len(self._promoting), len(self.hosted) + len(self.coming)

    def loaded(self, number: int) -> bool:
        """Return whether a partition served here has read its rows."""
        return number not in self._promoting

    # --- frames

    def take(self, peer: str, message: ReplicaMessage, now: float) -> tuple[HostedPartition | None, bool]:
        """Process a message of another replica.

        Returns:
            The partition whose commit index may have changed; whether the message was refused because its sender is
              not the
            primary.
        """
        number = message.partition
        if isinstance(message, AppendAck):
            replication = self.replication.get(number)
            if replication is None or number in self._promoting:
                return None, False
            replication.acked(peer, message, now)
            if replication.pressing:
                self._change_checks.set(number, now)
            return self.hosted[number], False
        cluster_map = self._map()
        epoch = cluster_map.partitions[number].epoch if 0 <= number < len(cluster_map.partitions) else 0
        found = standing(cluster_map, peer, number, message.partition_epoch, epoch)
        if found is PrimaryStatus.LATER:  # the map of that epoch is on its way
            check(message)  # now: later it would condemn the router that sends the map
            return None, not self._early.keep(number, WaitingCopy(now, peer, message))
        if found is PrimaryStatus.OTHER:
            if 0 < message.partition_epoch < epoch:  # tells a former primary that its epoch ended
                self.answers.append((peer, AppendAck(number, epoch, False, STALE)))
            return None, True
        if number in self.hosted:
            return None, True  # this node is the primary in the same map
        replica = self._replica(number)
        answer = replica.append(message) if isinstance(message, Append) else replica.take_slice(message)
        self._touched.add(number)
        self.answers.append((peer, answer))
        return None, False

    def take_writes(self) -> Writes:
        """Return the writes of this node's replicas in this iteration."""
        writes: Writes = []
        for number in sorted(self._touched):
            replica = self.replicas.get(number)
            if replica is not None:
                writes.extend(replica.take_writes())
        self._touched.clear()
        return writes

    def stream(self, now: float, touched: Iterable[int], *, sweeps: bool) -> list[tuple[str, int, bytes]]:
        """Return the frames to send to backups now.

        Args:
            now: Seconds.
            touched: Partitions with events.
            sweeps: Include other partitions whose deadline has passed.
        """
        frames = []
        self._catch_up.rows = CATCH_UP_ROWS
        numbers = dict.fromkeys(touched)
        if sweeps:
            self._schedule_at = now + TRANSFER_SCHEDULE_S
            self._catch_up.take_turns(sorted(self._transferring))
            numbers.update(dict.fromkeys(sorted(self._catch_up.transfers)))
            numbers.update(dict.fromkeys(self._streams.take(now, STREAMED_PER_ITERATION)))
        for number in numbers:
            replication = self.replication.get(number)
            if replication is None or number in self._promoting or not replication.backups:
                continue
            for node, message in replication.stream(now, self._linked, self._catch_up):
                frames.append((node, int(FrameKind.REPLICATE), encode_replica_message(message)))
            next_s = replication.next_stream(now, self._linked)
            if now < next_s < NEVER:
                next_s = (1 + next_s // STREAM_GRID_S) * STREAM_GRID_S
            self._streams.set(number, next_s)
            if replication.transferring:
                self._transferring.add(number)
            else:
                self._transferring.discard(number)
            if number not in self._change_checks:
                self._change_checks.set(number, replication.next_change_check(now, self._linked_for))
        return frames

    # --- map changes to request

    @property
    def next_check(self) -> float:
        """Time at which ``stream`` and ``wanted`` should check idle partitions."""
        schedule_at = self._schedule_at if self._transferring else float("inf")
        return min(schedule_at, self._streams.next, self._change_checks.next)

    def wanted(self, now: float) -> list[RequestChange]:
        """Return changes to request from the leader, of some partitions that may have one."""
        requests = []
        cluster_map = self._map()
        for number in self._change_checks.take(now, CHECKED_PER_ITERATION):
            replication = self.replication.get(number)
            if replication is None or number in self._promoting:
                continue
            change = replication.wanted(now, cluster_map, self._linked_for)
            self._change_checks.set(number, replication.next_change_check(now, self._linked_for))
            if change is not None:
                self._request += 1
                requests.append(
                    RequestChange(self._request, number, self.hosted[number].partition.epoch, change[0], change[1])
                )
        return requests

    def catching_up(self) -> tuple[int, int]:
        """Return the number of copies being built here, and of those that are complete or served."""
        cluster_map = self._map()
        if cluster_map.epoch != self._counted[0]:
            here = sum(self._node in placement.joining for placement in cluster_map.partitions)
            done = sum(self._node in placement.in_sync for placement in cluster_map.partitions)
            self._counted = cluster_map.epoch, (here, done)
        return self._counted[1]

    def describe(self, numbers: Iterable[int]) -> dict[str, str]:
        """Return a text about the state of each of this node's copies, by number."""
        return {str(number): self._describe(int(number)) for number in numbers}

    def _describe(self, number: int) -> str:
        if number in self.hosted:
            return "serves it"
        replica = self.replicas.get(number)
        if replica is None:
            replica = PartitionBackup(number, self._store, self._overlay)
            replica.load()
        if not replica.log_end:
            return "half a copy, of no use" if replica.local.transferring else "nothing"
        if not replica.whole:
            return "half a copy, of no use"
        return f"up to operation {replica.log_end} of epoch {replica.log_end_epoch}"

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Return the last counted sizes of the partitions served here; each call updates some of them."""
        self._measured += 1
        for number in range(self._measured % MEASURED_FRACTION, len(self._known), MEASURED_FRACTION):
            hosted = self.hosted.get(number)
            if hosted is not None and number not in self._promoting:
                self._sizes[number] = hosted.size
        return self._sizes

    def _note_away(self, number: int, placement: PartitionEntry, cluster_map: ClusterMap, now: float) -> None:
        here = self._node in placement.in_sync or self._node in placement.joining
        if here or not placement.primary or len(cluster_map.live_in_sync(placement)) < cluster_map.replicas:
            self._moved.pop(number, None)
            self._clear.discard(number)
        elif self._moved.get(number, (0, 0.0))[0] != placement.epoch:
            self._moved[number] = (placement.epoch, now)

    def discard(self, now: float) -> None:
        """Delete some rows of a partition that moved away, some time after it is complete elsewhere.

        Until then this copy, though out of date, may be the best that is left (``ring recover``).
        """
        number, start = self._discarding
        if number not in self._moved:
            ripe = (
                number
                for number, (_, since) in self._moved.items()
                if number not in self._clear and now - since >= MOVED_COPY_S
            )
            number, start = next(ripe, -1), b""
        if number >= 0:
            after = self._replica(number).discard(start, DISCARDED_ROWS)
            self._touched.add(number)
            if after is None:
                self._clear.add(number)
            self._discarding = (number, after) if after is not None else (-1, b"")

    def deadline(self, now: float) -> float:
        """Return when to continue reading and promoting."""
        return now if self._more_to_read or self.coming else float("inf")
