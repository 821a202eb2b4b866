"""One partition at a backup: its log, its state up to the commit index, and range transfers.

Operations go to the log when they arrive and to the state once the primary's stream marks them as committed. So
truncating the log to the prefix shared with a new primary never affects the state (docs/protocol.md rule 9.3). A copy
takes a range transfer if it applied unshared operations (a former primary's copy), or if its log begins too late.
Slices replace its rows range by range while the primary continues. Replaying the log from the first slice makes them
consistent, because every operation writes whole rows.

States by ``local`` and the two indexes; ``floor`` is the newest operation that a transfer's rows may include:

| state | condition | copy | ends by |
|---|---|---|---|
| empty | ``log_end`` is 0 | unusable, same as a lost copy | an Append from 0, a transfer |
| following | ``applied`` <= ``log_end``, the log between is in ``_tail`` | whole | a transfer, promotion, ``discard`` |
| transferring | rows of different times; no log | unusable | the last slice, under the same epoch |
| filling | the slices are complete, ``log_end`` < ``floor`` | unusable | the log reaches ``floor``: following |

``promote`` applies the whole log, and this object is not used afterwards. ``discard`` empties the copy of a partition
that is complete elsewhere. A newer epoch interrupts a transfer: the copy stays unusable until another one ends.

Invariants: ``applied`` <= ``log_end``; both increase except by truncation or transfer, and truncation stops at
``applied``. An incompletely received operation is never applied. ``local.epoch`` on disk is never above ``epoch``.

A backup has no tries: ``HostedPartition.load`` reads the rows at promotion. Source: PacificA (Lin et al., 2008) for
primary and backups, Raft section 5.3 for the shared prefix, KIP-101 for truncation by epoch.
"""

from bisect import bisect_left
from hashlib import blake2b

from storage.state import keys
from storage.state.partition import Overlay, Reads
from storage.state.rows import LocalRow, LogRow, MetaRow, pack, unpack
from wire.decoding import Unreadable, strictly
from wire.messages.replication import STALE, Append, AppendAck, TransferSlice

__all__ = ["PartitionBackup", "Writes", "check", "rows_digest"]

_read_row = strictly(lambda data: unpack(LogRow, bytes(data)), "operation")

Writes = list[tuple[bytes, bytes | None]]

LOG_ROWS_TRIMMED = 64  # at most, per message
SCAN_ROWS = 2_000


class PartitionBackup:
    """One partition's copy at a node that is not its primary.

    Attributes:
        epoch: Highest partition_epoch seen.
        log_end: op_index of the newest operation in the log.
        applied: op_index of the newest operation in the state.
    """

    def __init__(self, number: int, store: Reads, overlay: Overlay) -> None:
        self.number = number
        self.epoch = 0
        self.log_end = 0
        self.applied = 0
        self.applied_epoch = 0
        self.local = LocalRow()
        self.writes: Writes = []  # of this iteration
        self.transfers = 0  # range transfers that ended here
        self._store = store
        self._overlay = overlay
        self._tail: dict[int, LogRow] = {}  # operations that are not applied
        self._pending: dict[bytes, bytes | None] = {}  # writes of this iteration, for reads
        self._transfer = (0, 0)  # number of the transfer in progress, next slice
        self._transfer_epoch = 0
        self._digest = blake2b(digest_size=16)

    # --- reading and writing

    def _get(self, key: bytes) -> bytes | None:
        if key in self._pending:
            return self._pending[key]
        if key in self._overlay:
            return self._overlay[key][1]
        return self._store.get(key)

    def _put(self, key: bytes, value: bytes | None) -> None:
        self.writes.append((key, value))
        self._pending[key] = value

    def take_writes(self) -> Writes:
        """Return the writes of this iteration."""
        writes, self.writes = self.writes, []
        self._pending = {}
        return writes

    def _save_local(self) -> None:
        self.local.epoch = self.epoch
        self._put(keys.local_key(self.number), pack(self.local))

    # --- start

    def load(self) -> None:
        """Load this copy's state from its store; it has no unsynced writes."""
        value = self._get(keys.local_key(self.number))
        if value is not None:
            self.local = unpack(LocalRow, value)
        self.epoch = max(self.epoch, self.local.epoch)
        value = self._get(keys.meta_key(self.number))
        meta = unpack(MetaRow, value) if value is not None else MetaRow()
        self.applied, self.applied_epoch = meta.op_index, meta.partition_epoch
        self.log_end = self.applied
        _, stop = keys.kind_range(self.number, keys.LOG)
        start = keys.log_key(self.number, self.applied + 1)
        while rows := self._store.scan(start, stop, SCAN_ROWS):
            for _, row_value in rows:
                row = unpack(LogRow, row_value)
                if row.op_index != self.log_end + 1:
                    return
                self._tail[row.op_index] = row
                self.log_end = row.op_index
            start = rows[-1][0] + b"\x00"

    def take_over(self, meta: MetaRow, local: LocalRow) -> None:
        """Start from the state of the former primary at this node, whose log is applied completely."""
        self.local = LocalRow(local.epoch, local.log_start)
        self.epoch = local.epoch
        self.applied = self.log_end = meta.op_index
        self.applied_epoch = meta.partition_epoch

    def seen_epoch(self, epoch: int) -> None:
        """Record a partition_epoch of the map."""
        self.epoch = max(self.epoch, epoch)

    @property
    def whole(self) -> bool:
        """Whether the copy is usable: no transfer was interrupted, and the log reaches its end."""
        return not self.local.transferring and self.log_end >= self.local.floor

    def promote(self) -> None:
        """Become the primary: apply the whole log, committed or not, without an incompletely received operation."""
        while self._tail and not self._tail[self.log_end].last:
            self._put(keys.log_key(self.number, self.log_end), None)
            del self._tail[self.log_end]
            self.log_end -= 1
        self._apply(self.log_end)
        self._save_local()

    @property
    def log_end_epoch(self) -> int:
        """The partition_epoch of the newest operation in the log."""
        return self._epoch_at(self.log_end)

    def accept_loss(self) -> None:
        """Make this copy the only one by an operator's decision; an incomplete copy is unusable and is emptied."""
        if not self.whole:
            start, stop = keys.partition_range(self.number)
            for key in self._keys(start, stop):
                self._put(key, None)
            self._empty(LocalRow(self.epoch))
        self.local.accepted = self.epoch

    def discard(self, start: bytes, limit: int) -> bytes | None:
        """Delete up to ``limit`` rows of an unneeded copy; return the next key, None at the end.

        The copy is unusable from the first row on. The row that records this, with the seen epochs, stays.
        """
        first, stop = keys.partition_range(self.number)
        local = keys.local_key(self.number)
        if not self.local.transferring:
            self._empty(LocalRow(self.epoch, transferring=True))
        rows = self._store.scan(max(start, first), stop, limit)
        for key, _ in rows:
            if key != local:
                self._put(key, None)
        return rows[-1][0] + b"\x00" if len(rows) == limit else None

    def _empty(self, local: LocalRow) -> None:
        self._tail = {}
        self.log_end = self.applied = self.applied_epoch = 0
        self._transfer = (0, 0)
        self.local = local
        self._save_local()

    # --- the stream

    def append(self, message: Append) -> AppendAck:
        """Append operations of the primary; the reply leaves when this iteration is synced."""
        if message.partition_epoch < self.epoch:
            return AppendAck(self.number, self.epoch, False, STALE)
        rows = _read_rows(message)
        self._raise_epoch(message.partition_epoch)
        if self.local.transferring:
            return self._transfer_answer()
        mismatch = self._mismatch(message)
        if mismatch is not None:
            return mismatch
        index = message.previous_index
        for data, row in zip(message.rows, rows, strict=True):
            index += 1
            if index <= self.log_end and self._epoch_at(index) != row.partition_epoch and not self._cut(index):
                return self._transfer_answer()
            if index > self.log_end:
                self._put(keys.log_key(self.number, index), data)
                self._tail[index] = row
                self.log_end = index
        if not self._cut_older(max(index, message.epoch_start)) or not self._floor_is_shared(message):
            return self._transfer_answer()
        self._apply(min(message.commit_index, index))
        self._trim(message.log_needed)
        return AppendAck(self.number, self.epoch, True, index, whole=self.whole)

    def _floor_is_shared(self, message: Append) -> bool:
        """Return False if a range transfer copied operations that this primary's log does not have."""
        floor = self.local.floor
        if message.epoch_start < floor and message.partition_epoch > self.local.floor_epoch:
            return False
        return self.applied >= floor or self.log_end < floor or self._epoch_at(floor) == self.local.floor_epoch

    def _raise_epoch(self, epoch: int) -> None:
        if epoch > self.local.epoch:
            self.epoch = epoch
            self._save_local()

    def _mismatch(self, message: Append) -> AppendAck | None:
        """Return the reply with the position to probe next, None if the log before the rows is shared."""
        previous = message.previous_index
        if previous > self.log_end:
            return AppendAck(self.number, self.epoch, False, self.log_end, self._epoch_at(self.log_end))
        if previous < self.local.log_start - 1:
            if not message.rows:
                return self._transfer_answer()  # the primary's log lacks an operation that was applied here
            return AppendAck(self.number, self.epoch, False, self.applied, self.applied_epoch)
        mine = self._epoch_at(previous)
        if mine == message.previous_epoch:
            return None
        start = self.local.log_start  # epochs never decrease along a log: binary search for the first row of this one
        previous = start - 1 + bisect_left(range(start, previous + 1), mine, key=self._epoch_at)
        if previous < max(self.applied, self.local.floor):
            return self._transfer_answer()
        return AppendAck(self.number, self.epoch, False, previous, self._epoch_at(previous))

    def _epoch_at(self, index: int) -> int:
        if index == self.applied:
            return self.applied_epoch
        if index in self._tail:
            return self._tail[index].partition_epoch
        value = self._get(keys.log_key(self.number, index))
        if value is not None:
            return unpack(LogRow, value).partition_epoch
        following = self._tail.get(index + 1)
        if following is None:
            value = self._get(keys.log_key(self.number, index + 1))
            following = unpack(LogRow, value) if value is not None else None
        return following.previous_epoch if following is not None else 0

    def _cut(self, index: int) -> bool:
        """Truncate the log before this operation; return False if it was applied already."""
        if index <= max(self.applied, self.local.floor):
            return False
        assert index <= self.log_end, "the log is cut behind its end"
        for gone in range(index, self.log_end + 1):
            self._put(keys.log_key(self.number, gone), None)
            del self._tail[gone]
        self.log_end = index - 1
        return True

    def _cut_older(self, shared: int) -> bool:
        """Truncate operations of older epochs after the shared log."""
        for index in range(shared + 1, self.log_end + 1):
            if self._epoch_at(index) < self.epoch:
                return self._cut(index)
        return True

    def _apply(self, commit_index: int) -> None:
        """Apply whole operations up to the commit index."""
        while commit_index > self.applied and not self._tail[commit_index].last:
            commit_index -= 1
        while self.applied < commit_index:
            row = self._tail.pop(self.applied + 1)
            assert row.op_index == self.applied + 1, "an operation is applied out of order"
            for key, value in row.writes:
                self._put(key, value)
            self.applied += 1
            self.applied_epoch = row.partition_epoch
        assert self.applied <= self.log_end, "the state is ahead of the log"

    def _trim(self, log_needed: int) -> None:
        """Trim the part of the log that every replica has and this one applied."""
        start = self.local.log_start
        stop = min(log_needed, self.applied, start + LOG_ROWS_TRIMMED - 1)
        for index in range(start, stop + 1):
            self._put(keys.log_key(self.number, index), None)
        if stop >= start:
            self.local.log_start = stop + 1
            self._save_local()

    # --- range transfer

    def _transfer_answer(self) -> AppendAck:
        transfer, slices = self._transfer if self._transfer_epoch == self.epoch else (0, 0)
        return AppendAck(self.number, self.epoch, False, 0, 0, True, transfer, slices)

    def take_slice(self, message: TransferSlice) -> AppendAck:
        """Process one slice; a restarted transfer begins with its first slice."""
        if message.partition_epoch < self.epoch:
            return AppendAck(self.number, self.epoch, False, STALE)
        _check_slice(message)
        self._raise_epoch(message.partition_epoch)
        current = (message.transfer, message.number)
        under_way = self.local.transferring and self._transfer_epoch == self.epoch
        if message.number == 0 and not (under_way and self._transfer[0] == message.transfer and self._transfer[1]):
            self._begin_transfer(message.transfer)
        elif not under_way or current != self._transfer:
            return self._transfer_answer()
        self._replace(message)
        self._transfer = (message.transfer, message.number + 1)
        if message.last:
            return self._end_transfer(message)
        return self._transfer_answer()

    def _begin_transfer(self, transfer: int) -> None:
        """Begin a transfer: the copy is unusable until the last slice."""
        start, stop = keys.kind_range(self.number, keys.LOG)
        for key in self._keys(start, stop):
            self._put(key, None)
        self._tail = {}
        self.log_end = self.applied = self.applied_epoch = 0
        self.local = LocalRow(self.epoch, transferring=True)
        self._save_local()
        self._transfer, self._transfer_epoch = (transfer, 0), self.epoch
        self._digest = blake2b(digest_size=16)

    def _replace(self, message: TransferSlice) -> None:
        new = dict(message.rows)
        _, log_stop = keys.kind_range(self.number, keys.LOG)
        log_start, _ = keys.kind_range(self.number, keys.LOG)
        for key in self._keys(message.start, message.stop):
            if key not in new and not log_start <= key < log_stop and key != keys.local_key(self.number):
                self._put(key, None)
        for key, value in message.rows:
            self._put(key, value)
        rows_digest(self._digest, message.rows)

    def _keys(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return every key of a range that is in the store or not synced yet."""
        found = {key for key, (_, value) in self._overlay.items() if value is not None and start <= key < stop}
        found |= {key for key, value in self._pending.items() if value is not None and start <= key < stop}
        while rows := self._store.scan(start, stop, SCAN_ROWS):
            found.update(key for key, _ in rows)
            start = rows[-1][0] + b"\x00"
        return sorted(found)

    def _end_transfer(self, message: TransferSlice) -> AppendAck:
        if self._digest.digest() != message.digest:
            self._transfer = (0, 0)
            return self._transfer_answer()
        value = self._get(keys.meta_key(self.number))
        meta = unpack(MetaRow, value) if value is not None else MetaRow()
        self.applied = self.log_end = meta.op_index
        self.applied_epoch = meta.partition_epoch
        self.local = LocalRow(self.epoch, meta.op_index + 1, message.floor, message.floor_epoch)
        self._save_local()
        self._transfer = (0, 0)
        self.transfers += 1
        return AppendAck(self.number, self.epoch, False, self.log_end, self.applied_epoch)


def check(message: Append | TransferSlice) -> None:
    """Validate a message that is not processed yet, as ``PartitionBackup`` does later.

    Raises:
        Unreadable: The message is invalid.
    """
    if isinstance(message, Append):
        _read_rows(message)
    else:
        _check_slice(message)


def _read_rows(message: Append) -> list[LogRow]:
    """Return the operations of a message, validated before any is appended.

    Raises:
        Unreadable: An operation is invalid, has another log position, or writes rows of another partition.
    """
    number = message.partition
    first, end = keys.partition_range(number)
    rows = [_read_row(data) for data in message.rows]
    for index, row in enumerate(rows, message.previous_index + 1):
        if row.op_index != index:
            raise Unreadable(f"operation {row.op_index} of partition {number} stands at {index}")
        if not all(first <= key < end for key, _ in row.writes):
            raise Unreadable(f"operation {index} writes rows that are not of partition {number}")
    return rows


def _check_slice(message: TransferSlice) -> None:
    number = message.partition
    first, end = keys.partition_range(number)
    if not all(first <= key < end for key, _ in message.rows) or not first <= message.start <= message.stop <= end:
        raise Unreadable(f"a slice with rows that are not of partition {number}")


def rows_digest(digest: blake2b, rows: list[tuple[bytes, bytes]]) -> None:
    """Add rows to a running digest; lengths are included, so that different lists of rows never collide."""
    for key, value in rows:
        digest.update(len(key).to_bytes(2, "big") + len(value).to_bytes(4, "big") + key + value)
