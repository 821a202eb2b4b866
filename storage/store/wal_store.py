"""A store with a write-ahead log of its own: commits are appended and synced there, rows are flushed later.

Two memtables correspond to the two regions of the log. The *active* one takes writes. The *immutable* one is flushed
to the data file in slices, as commits arrive. Most rows are deleted meanwhile and never flushed; a row that is written
repeatedly is flushed once.

| action | condition |
|---|---|
| rows of a memtable are flushed | after all its commits are durable in the log |
| a row that the active memtable rewrote or deleted is skipped | if all commits of the active one are durable |
| its region is reused | after the flushed rows are durable in the data file |
| the immutable memtable is empty | before more than three quarters of the active one's region are full |
| a commit to a crowded region waits | for all commits before it, so that its call need not sync them |
| a commit that exceeds its region | has its rows after both regions (``write_ahead.py``) |
| a commit to a full region | goes to the data file, and so do others until it is durable |
| no row is flushed | while a checkpoint of the data file is synced |
| a commit to a crowded region also waits | for that checkpoint and the flush of the immutable memtable |
| rows that are overdue after a large commit | are also flushed in slices, in later iterations of the loop |

So after a crash the data file has all commits up to some number, possibly with rows of later ones, and the log has the
later commits (``Store.open`` replays them). Decision: docs/adr/0079-a-log-of-our-own.md.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.state import keys
from storage.state.row_lists import octets_of
from storage.store.checkpoints import CheckpointSync
from storage.store.errors import BatchUnknown, StoreClosed, StoreFailed, SyncFailed
from storage.store.memtable import ABSENT, KeyUpperBounds, MemTable, encode_rows
from storage.store.protocol import Batch, Row, SyncTicket
from storage.store.record import RESERVED_PREFIX
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.store_sync import StoreSync
from storage.store.write_ahead import WriteAheadLog, size_of
from wire.messages.octets import Octets

__all__ = ["WalStore"]

ASCENDING = keys.QUEUE + keys.LOG + keys.INFLIGHT  # kinds of rows whose keys ascend within their head
GENERATION_BYTES = 8 * 1024 * 1024  # of the log, after which the next memtable begins
SETTLED = 4  # fraction of the active region after which most messages of the immutable memtable are consumed: a quarter
PIECE_BYTES = 256 * 1024  # of a commit that are written at a time
PIECE_ROWS = 2_000
# Rows flushed for each written row: the immutable memtable is empty long before the active one is full
FLUSHED_PER_ROW = 2
FLUSHED_ROWS_MIN = 32
FLUSHED_WITH_COMMIT = (
    300  # with a small commit, while there is time: some milliseconds of processor time on a slow machine
)
FLUSHED_ROWS_MAX = 2_000  # with one commit, or in a slice: blocks the loop for some milliseconds
FLUSHED_BYTES_MAX = 1024 * 1024  # likewise, about
FLUSHED_AT_ONCE = 5_000  # in one transaction of a complete flush


class WalStore:
    """One store and its log; see ``KeyValueStore``."""

    def __init__(self, data: Store, wal: WriteAheadLog) -> None:
        self._data = data
        self._wal = wal
        self._number = data.transaction_no
        self._durable = data.transaction_no  # number of the newest durable commit
        self._below = KeyUpperBounds(ASCENDING, data.highest)
        self._region = wal.region(0)
        self._active_memtable = MemTable(self._below, self._number)
        self._immutable: MemTable | None = None
        self._immutable_bytes = 0  # of its commits in the log
        self._immutable_total = 0  # rows that it had at first
        self._immutable_rows = 0  # rows that are not flushed yet, estimated from below
        self._slice_rows = 0  # rows that have about FLUSHED_BYTES_MAX
        self._moved = False  # unsynced rows were flushed to the data file
        self._behind = False  # unsynced commits went to the data file
        self._free_after = 0  # commit whose acknowledgement confirms that the flushed rows are durable; 0: none
        self._direct_from = 0  # commits from this one on go to the data file; 0: they go to the log
        self._may_be_due = False  # the data file was written since the last check for a due checkpoint
        self._octets = Octets()

    @classmethod
    def open(cls, path: Path, cluster_id: str, node_id: str, settings: StoreSettings) -> "WalStore":
        """Open the store at path, or create it; raises the errors of ``Store.open``."""
        data = Store.open(path, cluster_id, node_id, settings)
        try:
            return cls(data, data.begin_log())
        except BaseException:
            data.abandon()
            raise

    # --- writing

    @property
    def crowded(self) -> bool:
        """Whether the next commit should wait until all before it are durable; see ``KeyValueStore.crowded``."""
        return not self._direct_from and self._region.is_crowded

    @property
    def held(self) -> bool:
        """Whether the next commit should wait; see ``KeyValueStore.held``."""
        if self._direct_from:
            return self._data.checkpoints.under_way
        return self._region.is_crowded and (self._immutable is not None or self._data.checkpoints.under_way)

    @property
    def makes_room(self) -> bool:
        """Whether rows can be flushed in slices now and need to be; see ``KeyValueStore.makes_room``."""
        return (self._region.is_crowded or self._is_behind) and not self._direct_from and self._may_flush

    def make_room(self) -> None:
        """Flush a slice of the rows that a commit is held for; see ``KeyValueStore.make_room``."""
        self._require_open()
        if self.makes_room:
            self._flush_some(FLUSHED_ROWS_MAX, 1.0)

    @property
    def _may_flush(self) -> bool:
        """Whether rows of the immutable memtable may be flushed."""
        return (
            self._immutable is not None
            and self._durable >= self._immutable.number
            and not self._data.checkpoints.under_way
        )

    @property
    def _is_behind(self) -> bool:
        """Whether more rows are overdue than one commit may flush, after large commits."""
        if self._immutable is None or (self._durable < self._number and self._region.used < GENERATION_BYTES):
            return False
        return self._immutable_rows > FLUSHED_ROWS_MAX and self._rows_due() > FLUSHED_ROWS_MAX

    @property
    def settings(self) -> StoreSettings:
        """Limits of the store."""
        return self._data.settings

    @property
    def path(self) -> Path:
        """Path of the data file."""
        return self._data.path

    @property
    def transaction_no(self) -> int:
        """Number of the newest commit; durable or not."""
        return self._number

    @property
    def acked_up_to(self) -> int:
        """Commit up to which acknowledgements may have left, according to the marker."""
        return self._data.acked_up_to

    @property
    def closed(self) -> bool:
        """Whether calls would raise StoreClosed."""
        return self._data.closed

    @property
    def unmoved_bytes(self) -> int:
        """Bytes of commits in the log whose rows may not be in the data file yet."""
        return self._region.used + (self._immutable_bytes if self._immutable is not None else 0)

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch; see ``KeyValueStore.write``."""
        self._require_open()
        settings = self._data.settings
        size = size_of(batch)
        pieces = [batch] if size <= PIECE_BYTES else _cut(batch)
        longest, largest = settings.key_bytes_max, settings.value_bytes_max
        encoded: Iterable[bytes] = (encode_rows(self._octets, rows, longest, largest) for rows in pieces)
        if size <= PIECE_BYTES:
            encoded = [*encoded]  # invalid rows are refused before any effect
        self._data.require_room_for(size, reclaiming=reclaiming)
        number = self._number + 1
        if not self._direct_from:
            self._flush_some(FLUSHED_ROWS_MIN + FLUSHED_PER_ROW * len(batch), self._region.fills(size))
        if self._direct_from or self._region.is_full:
            return self._write_directly(batch, number)
        try:
            self._region.append(number, size, encoded)
        except OSError as error:
            raise BatchUnknown(number, f"write-ahead log: {error}") from error
        self._active_memtable.apply(batch)
        self._active_memtable.number = self._number = number
        return number

    def _write_directly(self, batch: Batch, number: int) -> int:
        """Commit to the data file, after flushing all memtables."""
        self._flush_all()
        self._data.move(batch, number)
        self._below.forget()
        self._number = number
        self._direct_from = self._direct_from or number
        self._behind = self._may_be_due = True
        return number

    # --- from the log to the data file

    def _flush_some(self, most: int, share: float) -> None:
        """Flush rows of the immutable memtable, or begin a new active one, before the next commit is written.

        Args:
            most: Maximum number of rows; before the active memtable is full, no more than are due.
            share: Fraction of the remaining rows; if it exceeds ``most``, it is the limit, up to a slice.
        """
        if self._immutable is None:
            if self._region.used >= GENERATION_BYTES and not self._moved and not self._free_after:
                self._immutable, self._active_memtable = self._active_memtable, MemTable(self._below, self._number)
                self._immutable_bytes, self._immutable_total = self._region.used, len(self._immutable)
                self._immutable_rows = self._immutable_total
                self._slice_rows = FLUSHED_BYTES_MAX * self._immutable_rows // self._immutable_bytes
                self._region = self._wal.region(1 - self._region.index)
            return
        if not self._may_flush:
            return
        # Else a power loss may revert its deletions
        over = self._active_memtable if self._durable == self._number else None
        waits = self._region.used < (GENERATION_BYTES if over is None else GENERATION_BYTES // SETTLED)
        if waits:
            return
        if over is not None and self._region.used < GENERATION_BYTES:
            most = min(max(FLUSHED_ROWS_MIN, self._rows_due()), max(FLUSHED_WITH_COMMIT, most))
        else:
            most = max(most, int(share * self._immutable_rows) + 1)
        most = min(most, FLUSHED_ROWS_MAX, max(FLUSHED_ROWS_MIN, self._slice_rows))
        self._immutable_rows -= min(most, self._immutable_rows)
        if self._flush_rows(self._immutable, most, over):
            self._immutable = None

    def _rows_due(self) -> int:
        """Return how many rows of the immutable memtable should be flushed by now: a few with each commit.

        All are flushed when the active one has its full size. Flushing them faster delayed some dozen commits.
        """
        settled = GENERATION_BYTES // SETTLED
        left = (GENERATION_BYTES - self._region.used) / (GENERATION_BYTES - settled)
        return self._immutable_rows - int(self._immutable_total * left)

    def _flush_rows(self, table: MemTable, most: int, over: MemTable | None = None, *, at_once: bool = False) -> bool:
        """Flush some rows of a memtable without those that a later one has; return whether none is left."""
        rows = table.some(most)
        whole = len(rows) < most  # avoids counting all partitions of a memtable for each slice
        if not at_once and octets_of(rows) > 2 * FLUSHED_BYTES_MAX:  # longer than the memtable's average
            rows, whole = rows[: _count_within(rows, FLUSHED_BYTES_MAX)], False
        number = table.number if whole else self._data.transaction_no
        moved = rows if over is None else over.without(rows)
        try:
            self._data.move(moved, number)
        except BatchUnknown:  # the file was reopened and is valid; the rows may be in it or not
            try:
                self._data.move(moved, number)
            except BatchUnknown as error:
                raise StoreFailed("rows could not be moved to the data file twice") from error
        table.forget(rows, over)
        self._moved = self._may_be_due = True
        return whole

    def _flush_all(self) -> None:
        """Flush every row now, after syncing the log: rows in the data file must be durable in the log first."""
        tables = [table for table in (self._immutable, self._active_memtable) if table is not None and len(table)]
        if tables and self._durable < self._number:
            try:
                os.fdatasync(self._wal.descriptor)
            except OSError as error:
                raise SyncFailed(f"write-ahead log: {error}") from error
        for table in tables:
            while not self._flush_rows(table, FLUSHED_AT_ONCE, at_once=True):
                pass
        self._immutable = None
        self._active_memtable = MemTable(self._below, self._number)

    # --- reading

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent."""
        self._require_open()
        value = self._active_memtable.get(key)
        if value is ABSENT and self._immutable is not None:
            value = self._immutable.get(key)
        return self._data.get(key) if value is ABSENT else value  # type: ignore[return-value]

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop, ascending; see ``KeyValueStore.scan``."""
        stop = RESERVED_PREFIX if stop is None else min(stop, RESERVED_PREFIX)
        self._require_open()
        memory: dict[bytes, bytes | None] = {}
        if self._immutable is not None:
            self._immutable.collect(start, stop, memory)
        self._active_memtable.collect(start, stop, memory)
        if not memory:
            return self._data.scan(start, stop, limit)
        return self._merged(start, stop, limit, memory)

    def _merged(self, start: bytes, stop: bytes, limit: int, memory: dict[bytes, bytes | None]) -> list[Row]:
        """Return rows of the data file merged with those in memory."""
        waiting = sorted(memory, reverse=True)
        rows: list[Row] = []
        while len(rows) < limit:
            found = self._data.scan(start, stop, limit)
            for key, value in found:
                while waiting and waiting[-1] < key:
                    _add(rows, waiting[-1], memory[waiting.pop()])
                if waiting and waiting[-1] == key:
                    _add(rows, key, memory[waiting.pop()])
                else:
                    rows.append((key, value))
                if len(rows) >= limit:
                    break
            if len(found) < limit:
                while waiting and len(rows) < limit:
                    _add(rows, waiting[-1], memory[waiting.pop()])
                break
            start = found[-1][0] + b"\x00"
        return rows[:limit]

    def raw_scan(self, start: bytes, limit: int) -> list[Row]:
        """Return stored records of the data file for the scrub, unchecked, including those of the store itself."""
        return self._data.raw_scan(start, limit)

    # --- durability

    def begin_sync(self, *, marker: bool = False) -> StoreSync:
        """Prepare a sync of every commit so far, and of the marker or the flushed rows if due."""
        self._require_open()
        if self._behind or (self._moved and self._immutable is None and not marker):
            self._moved = self._behind = False
            self._free_after = self._number
            return StoreSync(self._number, os.dup(self._data.sync_descriptor()), None, also=self._wal.descriptor)
        return self._data.ticket(self._wal.descriptor, self._number, marker=marker)

    def checkpoint(self, synced: SyncTicket | None = None) -> CheckpointSync | None:
        """Return the next syncs of a checkpoint of the data file; see ``KeyValueStore.checkpoint``."""
        if synced is None:
            if not self._may_be_due:
                return None
            self._may_be_due = False
        self._require_open()
        return self._data.checkpoint(synced)

    def acked(self, transaction_no: int) -> None:
        """Record that commits up to this one are durable, before acknowledgements leave."""
        if transaction_no > self._number:
            raise ValueError(f"commit {transaction_no} is not written, the newest is {self._number}")
        self._require_open()
        self._data.raise_marker(transaction_no)
        self._durable = max(self._durable, transaction_no)
        if self._free_after and transaction_no >= self._free_after:
            self._free_after = 0
        if self._direct_from and transaction_no >= self._direct_from:
            self._direct_from = 0
            self._region = self._wal.region(0)

    def require_room(self, *, reclaiming: bool = False) -> None:
        """Raise StoreFull if free space is below the floor."""
        self._data.require_room(reclaiming=reclaiming)

    def free_space(self) -> tuple[int, int]:
        """Return the free bytes of the file system and its floor."""
        return self._data.free_space()

    def work(self) -> None:
        """Merge a little during idle time."""
        if not self._data.checkpoints.under_way:
            self._data.work()
            self._may_be_due = True

    def flush(self) -> None:
        """Flush every row to the data file, and write out its memory tree."""
        self._require_open()
        self._flush_all()
        self._data.flush()

    def identity(self) -> dict[str, str]:
        """Return the store's identity."""
        return self._data.identity()

    def check_identity(self) -> None:
        """Read sentinel, newest commit and marker again, and raise StoreUnverified if they do not agree."""
        self._data.check_identity(self._number)

    def _require_open(self) -> None:
        if self._data.closed:
            raise StoreClosed(f"store {self._data.path} is closed")

    def close(self) -> None:
        """Flush every row to the data file, sync, close."""
        if self.closed:
            return
        try:
            self._flush_all()
            if self._data.transaction_no < self._number:
                self._data.move([], self._number)
        except BaseException:
            self.abandon()
            raise
        self._wal.close()
        self._data.close()

    def abandon(self) -> None:
        """Release all resources in any state."""
        self._wal.close()
        self._data.abandon()


def _cut(batch: Batch) -> Iterator[Batch]:
    """Yield a large batch in pieces of about PIECE_BYTES, one row at least."""
    begin = 0
    while begin < len(batch):
        piece = batch[begin : begin + PIECE_ROWS]
        piece = piece[: _count_within(piece, PIECE_BYTES)]
        begin += len(piece)
        yield piece


def _count_within(rows: Batch, octets: int) -> int:
    """Return how many of the first rows have about ``octets`` bytes, one at least."""
    for count, (key, value) in enumerate(rows, 1):
        octets -= len(key) + len(value or b"")
        if octets <= 0:
            return count
    return len(rows)


def _add(rows: list[Row], key: bytes, value: bytes | None) -> None:
    if value is not None:
        rows.append((key, value))
