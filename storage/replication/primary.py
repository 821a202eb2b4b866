"""A partition's primary: streams operations to its backups, finds the shared log, and sends range transfers.

An operation is committed when it is synced here and at every in-sync replica of this partition_epoch. Commits wait for
a joining replica once its copy is whole and caught up, before the map lists it as in sync. Only replicas that the map
lists can be promoted. Under each new epoch every backup is first probed for the shared log (docs/protocol.md rule
9.3). ``wanted`` requests map changes, one compare-and-set at a time.

``BackupProgress`` (``storage/replication/progress.py``) is the primary's view of each backup. The backup's side is
``storage/replication/backup.py``; ``storage/state/partition.py`` gates outputs by commits. Source: PacificA (Lin et
al., 2008); KIP-101 for shared log ends.
"""

from bisect import bisect_right

from storage.replication.backup import rows_digest
from storage.replication.progress import BackupProgress, ProgressPhase, RangeTransfer
from storage.state import keys
from storage.state.partition import NO_REPLICA, Partition
from storage.state.rows import LogRow, MetaRow, unpack
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.hello import TIER_STORAGE
from wire.messages.replication import STALE, Append, AppendAck, ReplicaMessage, TransferSlice

__all__ = ["CATCH_UP_ROWS", "TRANSFERS_AT_A_TIME", "CatchUp", "PartitionReplication"]

WINDOW_OPERATIONS = 512  # sent to a backup and not acknowledged
APPEND_BYTES_MAX = 1024 * 1024  # of log rows in one frame, one row at least
COMMIT_SEND_S = 1.0  # delay of an otherwise unsent commit index: no guarantee depends on it
RETRY_S = 1.0  # without a reply: probe again for the shared log
DROP_AFTER_S = 0.1  # link down time after which dropping a backup is requested; a reconnect takes less
STALL_S = 2.0  # likewise for a backup that does not reply, though its link is up
TEND_S = 0.05  # interval of checks for map changes
ASK_AGAIN_S = 0.5  # retry delay of a requested change
REFILL_S = 5.0  # delay of a replacement by a node without this partition
RELINQUISH_S = 2.0  # blocked time after which the primacy is offered to a replica that may reach more nodes
SLICE_ROWS = 512  # of a range transfer
SLICE_BYTES = 256 * 1024  # likewise; one row at least
SLICE_SCAN_ROWS = 32
CATCH_UP_ROWS = 512  # of log and state in one iteration, for all copies being rebuilt: clients wait behind it
TRANSFERS_AT_A_TIME = 4  # of all partitions of a node; each has one slice in flight


class CatchUp:
    """Read budget of one iteration for copies that are not in sync: hundreds begin at once when a node returns."""

    __slots__ = ("rows", "transfers")

    def __init__(self) -> None:
        self.rows = CATCH_UP_ROWS
        self.transfers: set[int] = set()  # partitions that may transfer now

    def take_turns(self, waiting: list[int]) -> None:
        """Start the next transfers as others have ended.

        Args:
            waiting: Partitions with a transfer in progress or pending, in order.
        """
        self.transfers &= set(waiting)
        for number in waiting:
            if len(self.transfers) >= TRANSFERS_AT_A_TIME:
                return
            self.transfers.add(number)


class PartitionReplication:
    """The backups of one partition."""

    def __init__(self, partition: Partition, node: str) -> None:
        self.backups: dict[str, BackupProgress] = {}
        self.transfers = 0
        self.transferred_rows = 0
        self._partition = partition
        self._node = node
        self._epoch_start = 0
        self._placement = PartitionEntry()
        self._began = False
        self._requested_at = float("-inf")
        self._short_since = float("inf")
        self._blocked_since = float("inf")
        self._lost: list[str] = []  # nodes with a copy of an earlier epoch, which lack only later operations

    # --- epochs

    def configure(self, placement: PartitionEntry, min_in_sync: int, former: PartitionEntry | None = None) -> None:
        """Apply the map's replicas; uncommitted operations need all of them.

        Args:
            placement: As of now.
            min_in_sync: Of the cluster.
            former: The previous placement, if this primary was only a backup; otherwise the last configured one.
        """
        partition = self._partition
        placed = (*placement.in_sync, *placement.joining)
        former = former or self._placement
        self._lost = [name for name in (*self._lost, *former.in_sync, *former.joining) if name not in placed]
        self._lost = list(dict.fromkeys(self._lost))
        self._placement = placement
        partition.epoch = placement.epoch
        partition.replicas = frozenset(name for name in placement.in_sync if name != self._node)
        partition.synced = {"": partition.synced.get("", 0)}
        partition.acknowledges = len(placement.in_sync) >= min_in_sync
        self.backups = {}

    def begin(self, now: float) -> None:
        """Probe every replica for the shared log once the state is loaded or was served before."""
        partition = self._partition
        self._began = True
        self._epoch_start = partition.meta.op_index
        self._short_since = self._blocked_since = float("inf")
        self._requested_at = float("-inf")
        for name in (*self._placement.in_sync, *self._placement.joining):
            if name != self._node:
                in_sync = name in self._placement.in_sync
                self.backups[name] = BackupProgress(name, now, in_sync=in_sync, previous=partition.meta.op_index)
        partition.settle_commit_index()
        self._keep_log()

    def _keep_log(self) -> None:
        partition = self._partition
        needed = NO_REPLICA
        for backup in self.backups.values():
            reached = backup.transfer.base if backup.transfer is not None else backup.acked
            if not backup.counted:
                # A joining replica that always lags takes a range transfer instead of blocking the trim.
                reached = max(reached, partition.meta.op_index - 4 * partition.settings.log_operations_max)
            needed = min(needed, reached - 1)  # includes the last shared operation, whose epoch is compared
        partition.log_needed = needed

    # --- outgoing messages

    @property
    def transferring(self) -> bool:
        """Whether a replica receives a range transfer."""
        return any(backup.transfer is not None for backup in self.backups.values())

    def stream(self, now: float, linked: set[str], catch_up: CatchUp) -> list[tuple[str, ReplicaMessage]]:
        """Return the messages to send to the backups now."""
        out: list[tuple[str, ReplicaMessage]] = []
        for backup in self.backups.values():
            if backup.node not in linked:
                continue
            if backup.transfer is not None:
                if self._partition.number not in catch_up.transfers or catch_up.rows <= 0:
                    continue
                message = self._slice(backup, backup.transfer, now)
                if message is not None:
                    catch_up.rows -= len(message.rows)
                    out.append((backup.node, message))
            elif backup.phase is ProgressPhase.PROBE:
                if now - backup.sent_at >= RETRY_S:
                    out.append((backup.node, self._append(backup, [], now)))
            else:
                self._stream_to(backup, now, out, catch_up)
        return out

    def _stream_to(
        self, backup: BackupProgress, now: float, out: list[tuple[str, ReplicaMessage]], catch_up: CatchUp
    ) -> None:
        partition = self._partition
        if backup.waits_for_answer and now - max(backup.answered_at, backup.sent_at) >= RETRY_S:
            # Frames are lost only with a process, but this code does not rely on it
            backup.lost(partition.meta.op_index)
            out.append((backup.node, self._append(backup, [], now)))
            return
        while (
            backup.previous < partition.meta.op_index
            and backup.in_flight_operations < WINDOW_OPERATIONS
            and (backup.counted or catch_up.rows > 0)
        ):
            rows = self._rows(backup.previous, WINDOW_OPERATIONS if backup.counted else catch_up.rows)
            if not rows:
                self._begin_transfer(backup)
                return
            if not backup.counted:
                catch_up.rows -= len(rows)
            out.append((backup.node, self._append(backup, rows, now)))
        if partition.commit_index > backup.sent_commit and now - backup.sent_at >= COMMIT_SEND_S:
            out.append((backup.node, self._append(backup, [], now)))

    def _rows(self, previous: int, most: int) -> list[bytes]:
        partition = self._partition
        rows: list[bytes] = []
        size = 0
        for op_index in range(previous + 1, min(previous + most, partition.meta.op_index) + 1):
            value = partition.get(keys.log_key(partition.number, op_index))
            if value is None or (rows and size + len(value) > APPEND_BYTES_MAX):
                break
            rows.append(value)
            size += len(value)
        return rows

    def _append(self, backup: BackupProgress, rows: list[bytes], now: float) -> Append:
        partition = self._partition
        message = Append(
            partition.number,
            partition.epoch,
            backup.previous,
            self.epoch_at(backup.previous),
            partition.commit_index,
            self._epoch_start,
            partition.local.log_start - 1,
            rows,
        )
        backup.appended(len(rows), partition.commit_index, now)
        assert backup.previous <= partition.meta.op_index, "a backup is sent operations that are not there"
        return message

    def epoch_at(self, op_index: int) -> int:
        """Return the partition_epoch of an operation of the log; 0 if it is trimmed."""
        partition = self._partition
        if op_index == partition.meta.op_index:
            return partition.meta.partition_epoch
        value = partition.get(keys.log_key(partition.number, op_index))
        if value is not None:
            return unpack(LogRow, value).partition_epoch
        value = partition.get(keys.log_key(partition.number, op_index + 1))
        return unpack(LogRow, value).previous_epoch if value is not None else 0

    def next_stream(self, now: float, linked: set[str]) -> float:
        """Return when ``stream`` has messages without an event: infinity if none are pending."""
        partition, earliest = self._partition, float("inf")
        for backup in self.backups.values():
            if backup.node not in linked or backup.transfer is not None:
                continue  # a new link or the transfer scheduler triggers it
            if backup.phase is ProgressPhase.PROBE:
                earliest = min(earliest, backup.sent_at + RETRY_S)
            elif backup.previous < partition.meta.op_index and backup.in_flight_operations < WINDOW_OPERATIONS:
                return now
            elif partition.commit_index > backup.sent_commit:
                earliest = min(earliest, backup.sent_at + COMMIT_SEND_S)
            elif backup.waits_for_answer:
                earliest = min(earliest, max(backup.answered_at, backup.sent_at) + RETRY_S)
        return earliest

    # --- incoming replies

    def acked(self, node: str, ack: AppendAck, now: float) -> None:
        """Process a replica's reply."""
        partition = self._partition
        backup = self.backups.get(node)
        if backup is None or ack.partition_epoch != partition.epoch or ack.index == STALE:
            partition.count("replica_answers_of_other_epochs")
            return
        if ack.index > partition.meta.op_index:
            partition.count("replica_answers_ahead")  # no replica can have more than this primary sent
            return
        backup.answered(now)
        if ack.transfer_needed:
            self._transfer_answered(backup, ack)
        elif ack.matched:
            backup.matched(ack.index, whole=ack.whole)
            partition.note_synced(node, ack.index)
            self._count_joining(backup)
        else:
            self._find_shared(backup, ack)
        self._keep_log()

    def _count_joining(self, backup: BackupProgress) -> None:
        """Count a joining replica for commits if it has every operation that was ever acknowledged.

        These are at most the log at the start of this epoch, and later commits of this primary. Its commit index alone
        is insufficient: a new primary's begins at 0.
        """
        partition = self._partition
        if not backup.counted and backup.whole and backup.acked >= max(partition.commit_index, self._epoch_start):
            backup.counts()
            partition.replicas |= {backup.node}

    def _find_shared(self, backup: BackupProgress, ack: AppendAck) -> None:
        """Go back to a position that may be shared, at most to the replica's hint, after a mismatch."""
        partition = self._partition
        first, last = partition.local.log_start - 1, min(ack.index, partition.meta.op_index)
        # Epochs never decrease along a log: binary search for the last operation that is old enough
        behind = range(first, last + 1)
        index = first - 1 + bisect_right(behind, ack.index_epoch, key=self.epoch_at)
        if index < first:
            self._begin_transfer(backup)
            return
        backup.found(index, shared=index == ack.index and self.epoch_at(index) == ack.index_epoch)

    # --- range transfer

    def _begin_transfer(self, backup: BackupProgress) -> None:
        if backup.counted:
            backup.diverged()
            return
        start, _ = keys.partition_range(self._partition.number)
        self.transfers += 1
        backup.transfer_begins(self.transfers, start)

    def _transfer_answered(self, backup: BackupProgress, ack: AppendAck) -> None:
        transfer = backup.transfer
        if transfer is None:
            self._begin_transfer(backup)
        elif ack.transfer == transfer.number:
            if transfer.message is not None and ack.slices == transfer.message.number + 1:
                transfer.answered(self._after(transfer.message.stop))
        elif transfer.slices > 1:
            self._begin_transfer(backup)  # the replica lost the transfer

    def _after(self, stop: bytes) -> bytes:
        """Return the start of the next slice: the log is not part of the state."""
        log_start, log_stop = keys.kind_range(self._partition.number, keys.LOG)
        return log_stop if stop == log_start else stop

    def _slice(self, backup: BackupProgress, transfer: RangeTransfer, now: float) -> TransferSlice | None:
        """Return the next slice, or the last one again if its reply timed out."""
        if transfer.message is not None:
            if now - transfer.sent_at < RETRY_S:
                return None
            transfer.sent_at = now
            return transfer.message
        partition = self._partition
        log_start, _ = keys.kind_range(partition.number, keys.LOG)
        _, partition_stop = keys.partition_range(partition.number)
        end = log_start if transfer.next_start < log_start else partition_stop
        rows, stop = self._range(transfer.next_start, end)
        if transfer.base == NO_REPLICA:
            meta = next((value for key, value in rows if key == keys.meta_key(partition.number)), None)
            transfer.base = unpack(MetaRow, meta).op_index if meta is not None else 0
        rows_digest(transfer.digest, rows)
        self.transferred_rows += len(rows)
        message = TransferSlice(
            partition.number, partition.epoch, transfer.number, transfer.slices, transfer.next_start, stop, rows
        )
        if stop == partition_stop:
            message.last = True
            message.digest = transfer.digest.digest()
            message.floor = partition.meta.op_index
            message.floor_epoch = partition.meta.partition_epoch
        transfer.sent(message, now)
        backup.sent_at = now
        return message

    def _range(self, start: bytes, end: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Return the stored rows of one slice, and its end."""
        partition = self._partition
        local = keys.local_key(partition.number)
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        while len(rows) < SLICE_ROWS and size < SLICE_BYTES:
            found = partition.store.scan(start, end, SLICE_SCAN_ROWS)
            rows.extend(row for row in found if row[0] != local)
            size += sum(len(value) for _, value in found)
            if len(found) < SLICE_SCAN_ROWS:
                return rows, end
            start = found[-1][0] + b"\x00"
        return rows, start

    # --- map changes to request

    @property
    def pressing(self) -> bool:
        """Whether a map change is urgent: a replica is whole, or has unshared operations."""
        return any(backup.broken or backup.counted is not backup.in_sync for backup in self.backups.values())

    def next_change_check(self, now: float, linked_for: dict[str, float]) -> float:
        """Return when ``wanted`` may have a request without an event, because a link, node or reply is missing."""
        waits = min(self._short_since, self._blocked_since) < float("inf")
        earliest = now + TEND_S if waits or self.pressing else float("inf")
        for backup in self.backups.values():
            if (since := linked_for.get(backup.node, 0.0)) < 0:
                earliest = min(earliest, max(DROP_AFTER_S - since, now + TEND_S))
            if backup.owes(self._partition.meta.op_index):
                earliest = min(earliest, max(backup.owed_since + STALL_S, now + TEND_S))
        return max(earliest, self._requested_at + ASK_AGAIN_S)

    def wanted(self, now: float, cluster_map: ClusterMap, linked_for: dict[str, float]) -> tuple[str, str] | None:
        """Return (verb, node) of a change to request, None if there is none.

        Args:
            now: Seconds.
            cluster_map: Of this node.
            linked_for: Other storage nodes: time of their last link up (negative: of their last link down).
        """
        if not self._began or now - self._requested_at < ASK_AGAIN_S:
            return None
        change = self._drop(now, cluster_map, linked_for) or self._promote() or self._add(now, cluster_map, linked_for)
        if change is not None:
            self._requested_at = now
        return change

    def _drop(self, now: float, cluster_map: ClusterMap, linked_for: dict[str, float]) -> tuple[str, str] | None:
        blocked = False
        for backup in self.backups.values():
            since = linked_for.get(backup.node, 0.0)
            unlinked = since < 0 and now + since >= DROP_AFTER_S
            silent = backup.owes(self._partition.meta.op_index) and now - backup.owed_since >= STALL_S
            if not unlinked and not silent and not backup.broken:
                continue
            left = [name for name in self._placement.in_sync if name != backup.node and cluster_map.has_live(name)]
            if not backup.in_sync or len(left) >= cluster_map.min_in_sync:
                return "drop_backup", backup.node
            if backup.broken:
                return "replace_copy", backup.node
            blocked = True
        self._blocked_since = min(self._blocked_since, now) if blocked else float("inf")
        if now - self._blocked_since >= RELINQUISH_S:
            self._blocked_since = now
            return self._relinquish(cluster_map, linked_for)
        return None

    def _relinquish(self, cluster_map: ClusterMap, linked_for: dict[str, float]) -> tuple[str, str] | None:
        """Offer the primacy to a replica that may reach a node that this one does not."""
        others = [entry.node for entry in cluster_map.live(TIER_STORAGE) if entry.node not in self._placement.in_sync]
        unreached = [name for name in others if linked_for.get(name, -1.0) < 0]
        heirs = [name for name in self._placement.in_sync if name != self._node and cluster_map.stays(name)]
        return ("relinquish", heirs[0]) if unreached and heirs else None

    def _promote(self) -> tuple[str, str] | None:
        for backup in self.backups.values():
            if backup.counted and not backup.in_sync and not backup.broken:
                return "promote_joining", backup.node
        return None

    def _add(self, now: float, cluster_map: ClusterMap, linked_for: dict[str, float]) -> tuple[str, str] | None:
        """Choose a node for a missing copy: its former node when it returns; another one after a delay."""
        placed = {*self._placement.in_sync, *self._placement.joining}
        living = sum(map(cluster_map.has_live, placed))
        if living >= cluster_map.replicas:
            self._short_since = float("inf")
            return None
        live = [entry for entry in cluster_map.live(TIER_STORAGE) if not entry.admin_state and not entry.stops]
        if living >= min(cluster_map.replicas, max(len(live), 1)):
            self._short_since = float("inf")
            return None
        self._short_since = min(self._short_since, now)
        spare = [entry.node for entry in live if entry.node not in placed and linked_for.get(entry.node, -1.0) >= 0]
        back = [name for name in self._lost if name in spare]
        if back:
            return "add_joining", back[-1]
        may_return = bool(self._lost) or living < len(placed)
        if (may_return or len(live) > cluster_map.replicas) and now - self._short_since < REFILL_S:
            return None
        return ("add_joining", spare[self._partition.number % len(spare)]) if spare else None
