"""A store: one data file with its log, page sums, marker and lock, and the rules that verify it.

It decides how a store is created, identified, written, read, synced, reopened after a failure and refused. lsm-db and
its hazards are in ``storage/store/lsm_file.py``. Elsewhere: the meaning of keys and values, the timing of syncs
(``storage/store/group_commit.py``), and the repair of a refused store from a replica.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from storage.store.acked_marker import AckedMarker
from storage.store.checkpoints import Checkpoints, CheckpointSync
from storage.store.errors import (
    BatchUnknown,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreFailed,
    StoreIncomplete,
    StoreMismatch,
    StoreUnavailable,
    SyncFailed,
    ValueTooLarge,
    system_errors,
)
from storage.store.free_space import FreeSpace
from storage.store.lsm_file import LsmFile, require_library
from storage.store.protocol import Batch, Row, SyncTicket
from storage.store.record import (
    RECORD_OVERHEAD_BYTES,
    RECORD_VERSION,
    RESERVED_PREFIX,
    decode_record,
    encode_record,
    record_head,
)
from storage.store.settings import StoreSettings
from storage.store.store_sync import StoreSync
from storage.store.write_ahead import WriteAheadLog, logged_commits

__all__ = ["Store"]

FORMAT_VERSION = 1

_META_KEY = RESERVED_PREFIX + b"\x00meta"
_HEAD_KEY = RESERVED_PREFIX + b"\x00head"
_LOG_KEY = RESERVED_PREFIX + b"\x00log"  # label of the write-ahead log
REPLAYED_ROWS = 5_000  # minimum for one transaction


class Store:
    """One lsm-db file with its log, marker and lock; every call from one thread at a time, never after a fork."""

    crowded = held = makes_room = False  # a commit here never needs the sync of another one

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.path = Path(path).absolute()
        self.settings = settings
        self.store_id = b""
        self._file = LsmFile(self.path)
        self._transaction_no = 0
        self._lock_descriptor = -1
        self._marker: AckedMarker | None = None
        self._marker_synced_at = 0  # transaction_no of the last sync that covered the marker
        self._room = FreeSpace(self.path.parent)
        self.checkpoints = Checkpoints(self._file)

    @classmethod
    def open(cls, path: Path, cluster_id: str, node_id: str, settings: StoreSettings) -> "Store":
        """Open the store at path, or create it with the ids of its cluster and node.

        Raises:
            StoreMismatch: It is the store of another cluster or node, or of another format.
            StoreDamaged: Header, sentinel or marker fail their check.
            StoreIncomplete: Acknowledged commits are missing.
            StoreBusy: It is open elsewhere.
            StoreUnavailable: The system refuses the folder or a file.
        """
        require_library()
        return cls._open(Path(path), (cluster_id, node_id), settings)

    @classmethod
    def open_existing(cls, path: Path, settings: StoreSettings) -> "Store":
        """Open an existing store of any node, for tools. Raises the errors of ``open``."""
        require_library()
        path = Path(path)
        if not path.exists():
            raise StoreUnavailable(f"store {path}: there is none")
        return cls._open(path, None, settings)

    @classmethod
    def _open(cls, path: Path, identity: tuple[str, str] | None, settings: StoreSettings) -> "Store":
        store = cls(path, settings)
        try:
            with system_errors(path):
                store._lock()
                store._connect_first(identity)
        except BaseException:
            store.abandon()
            raise
        return store

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def transaction_no(self) -> int:
        """Number of the newest commit; durable or not."""
        return self._transaction_no

    @property
    def acked_up_to(self) -> int:
        """Commit up to which acknowledgements may have left, according to the marker."""
        return self._open_marker().acked_up_to

    @property
    def closed(self) -> bool:
        """Whether calls would raise StoreClosed."""
        return not self._file.connected

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch as one transaction; see ``KeyValueStore.write``."""
        records = [(key, self._record(key, value)) for key, value in batch]
        self._require_open()
        octets = sum(len(key) + len(record or b"") for key, record in records)
        self.require_room_for(octets, reclaiming=reclaiming)
        return self._commit(records, self._transaction_no + 1)

    def move(self, rows: Batch, transaction_no: int) -> None:
        """Flush rows that are durable in the write-ahead log; raises the errors of ``write``.

        Args:
            rows: Idempotent: written again in any order, they give the same state.
            transaction_no: Of the newest commit whose rows are all here then.
        """
        self._require_open()
        self._commit([(key, self._record(key, value)) for key, value in rows], transaction_no)

    def _commit(self, records: list[tuple[bytes, bytes | None]], transaction_no: int) -> int:
        try:
            self._transact(records, transaction_no)
        except BaseException as error:
            # The depth counter of the handle is wrong now: later commits would be visible only here.
            self._reopen(f"{type(error).__name__}: {error}")
            if isinstance(error, Exception):
                raise BatchUnknown(transaction_no, str(error) or type(error).__name__) from error
            raise
        self._transaction_no = transaction_no
        return transaction_no

    def _transact(self, records: list[tuple[bytes, bytes | None]], transaction_no: int) -> None:
        head = encode_record(_HEAD_KEY, transaction_no.to_bytes(8, "big"))
        self._file.transact([*records, (_HEAD_KEY, head)])

    def _record(self, key: bytes, value: bytes | None) -> bytes | None:
        self._check_key(key)
        if value is None:
            return None
        if len(value) > self.settings.value_bytes_max:
            raise ValueTooLarge(f"value of {len(value)} bytes, at most {self.settings.value_bytes_max}")
        return encode_record(key, value)

    def _check_key(self, key: bytes) -> None:
        if not key or key.startswith(RESERVED_PREFIX):
            raise ValueError("key is empty or reserved for the store itself")
        if len(key) > self.settings.key_bytes_max:
            raise ValueTooLarge(f"key of {len(key)} bytes, at most {self.settings.key_bytes_max}")

    def require_room(self, *, reclaiming: bool = False) -> None:
        """Raise StoreFull if free space is below the floor; see ``FreeSpace.require``."""
        self._room.require(self.settings, reclaiming=reclaiming)

    def require_room_for(self, octets: int, *, reclaiming: bool) -> None:
        """See ``FreeSpace.require_for``."""
        self._room.require_for(octets, self.settings, reclaiming=reclaiming)

    def free_space(self) -> tuple[int, int]:
        """Return the free bytes of the file system and its floor."""
        return self._room.space(self.settings)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent."""
        self._check_key(key)
        return self._get(key)

    def _get(self, key: bytes) -> bytes | None:
        record = self._file.find(key)
        return None if record is None else self._verified(key, record)

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop, ascending; see ``KeyValueStore.scan``.

        ``decode_record`` is inlined here: exports and restarts read millions of rows this way.
        """
        stop = RESERVED_PREFIX if stop is None else min(stop, RESERVED_PREFIX)
        rows: list[Row] = []
        last_key = b""
        with self._file.records_from(start) as records:
            for key, record in records:
                if key >= stop or len(rows) >= limit:
                    break
                if key <= last_key or key < start:  # a damaged page can misdirect the cursor
                    raise StoreDamaged(self.path, "keys are out of order", key)
                last_key = key
                value = record[RECORD_OVERHEAD_BYTES:]
                if record[:RECORD_OVERHEAD_BYTES] != record_head(RECORD_VERSION, crc32(key + value)):
                    raise self._damaged(key)
                rows.append((key, value))
        return rows

    def highest(self, head: bytes) -> bytes:
        """Return the highest key with this prefix, b"" if there is none."""
        found = self._file.find_below(head + b"\xff" * 8)
        return found if found.startswith(head) else b""

    def raw_scan(self, start: bytes, limit: int) -> list[Row]:
        """Return stored records from start on for the scrub, unchecked, including those of the store itself."""
        rows: list[Row] = []
        with self._file.records_from(start) as records:
            for row in records:
                rows.append(row)
                if len(rows) >= limit:
                    break
        return rows

    def _verified(self, key: bytes, record: bytes) -> bytes:
        value = decode_record(key, record)
        if value is None:
            raise self._damaged(key)
        return value

    def _damaged(self, key: bytes) -> StoreDamaged:
        return StoreDamaged(self.path, "checksum of the record", key)

    # -- durability ---------------------------------------------------------------------------------------------

    def sync_descriptor(self) -> int:
        """Return the own descriptor of the log; it changes when the store is reopened, so prefer ``begin_sync``."""
        self._require_open()
        return self._file.log_descriptor

    def begin_sync(self, *, marker: bool = False) -> StoreSync:
        """Prepare a sync of every commit so far, and of the marker if requested or a group behind."""
        return self.ticket(self.sync_descriptor(), self._transaction_no, marker=marker)

    def ticket(self, descriptor: int, transaction_no: int, *, marker: bool) -> StoreSync:
        """Prepare a sync of a file with commits up to ``transaction_no``, and of the marker likewise."""
        if not marker and transaction_no - self._marker_synced_at < self.settings.marker_sync_commits:
            return StoreSync(transaction_no, os.dup(descriptor), None)
        self._marker_synced_at = transaction_no
        return StoreSync(transaction_no, os.dup(descriptor), self._open_marker())

    def acked(self, transaction_no: int) -> None:
        """Raise the marker to a synced commit, before acknowledgements leave (``acked_marker.py``)."""
        if transaction_no > self._transaction_no:
            raise ValueError(f"commit {transaction_no} is not written, the newest is {self._transaction_no}")
        self.raise_marker(transaction_no)

    def raise_marker(self, transaction_no: int) -> None:
        """Raise the marker to a commit that is durable here or in the write-ahead log. Raises SyncFailed."""
        try:
            self._open_marker().write(transaction_no)
        except OSError as error:
            raise SyncFailed(f"marker: {error}") from error

    def make_room(self) -> None:
        """Do nothing: no commit is held here."""

    def checkpoint(self, synced: SyncTicket | None = None) -> CheckpointSync | None:
        """Return the next syncs of a checkpoint; see ``KeyValueStore.checkpoint``."""
        step: CheckpointSync | None = self._maintain(lambda: self.checkpoints.next(synced))
        return step

    def work(self) -> None:
        """Merge a little during idle time; holds the interpreter lock for some milliseconds."""
        self._maintain(self._file.work)

    def flush(self) -> None:
        """Write the memory tree out as a segment by reconnecting: the library's own call may lose commits."""
        self._maintain(self._connect_anew)

    def _connect_anew(self) -> None:
        self.begin_sync().run()  # the synced log may be replayed over the flushed data: completely, or a part of it
        self._file.disconnect()
        self._file.connect()

    def _maintain(self, task: Callable[[], Any]) -> Any:
        self._require_open()
        try:
            return task()
        except Exception as error:
            self._reopen(f"maintenance: {error}")
            return None

    def close(self) -> None:
        """Sync the log, raise the marker to it, close. Data that the library fails to flush stays in the log."""
        if self.closed:
            return
        try:
            self.begin_sync(marker=True).run()
            self.acked(self._transaction_no)
            self._open_marker().sync()
            self._file.disconnect()
        except OSError as error:
            raise SyncFailed(f"marker: {error}") from error
        finally:
            self.abandon()

    # -- opening, reopening, abandoning ---------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"store {self.path} is closed")

    def _open_marker(self) -> AckedMarker:
        if self._marker is None:
            raise StoreClosed(f"store {self.path} is closed")
        return self._marker

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _lock(self) -> None:
        """Take a lock of our own: the library detects another process, but not a second handle in this one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_descriptor = os.open(self._sibling("-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreBusy(f"store {self.path} is open in another process or twice in this one") from error

    def _connect_first(self, identity: tuple[str, str] | None) -> None:
        marker_path = self._sibling("-acked")
        has_marker = marker_path.exists()
        if not has_marker and self.path.exists() and self.path.stat().st_size > 0:
            raise StoreDamaged(self.path, f"its marker {marker_path.name} is missing")
        # The marker comes first: an interrupted creation leaves a marker at 0, and is repeated.
        self._marker = AckedMarker.open(marker_path) if has_marker else AckedMarker.create(marker_path, os.urandom(16))
        if self._marker.acked_up_to == 0:
            self._file.sums.create()
        self._file.connect()
        if self._sentinel() is None:
            self._create_sentinel(identity)
        self._check_sentinel(identity)
        self._transaction_no = self._recovered_head()
        replayed = self._replay()
        if self._transaction_no < self._marker.acked_up_to:
            raise StoreIncomplete(self.path, self._transaction_no, self._marker.acked_up_to)
        self._settle(replayed=replayed)

    def _replay(self) -> bool:
        """Restore the commits that only the write-ahead log has; return whether there were any."""
        label = self._get(_LOG_KEY)
        if label is None:
            return False
        records: list[tuple[bytes, bytes | None]] = []
        newest = first = self._transaction_no
        for newest, rows in logged_commits(self._sibling("-ahead"), label, first):
            records += [(key, None if value is None else encode_record(key, value)) for key, value in rows]
            if len(records) >= REPLAYED_ROWS:
                self._transact(records, newest)
                records, self._transaction_no = [], newest
        if newest > self._transaction_no:
            self._transact(records, newest)
            self._transaction_no = newest
        return newest > first

    def begin_log(self) -> WriteAheadLog:
        """Begin a write-ahead log under a new label, durably; the rows of the previous one are in the data file."""
        with system_errors(self.path):
            wal = WriteAheadLog(self._sibling("-ahead"))
        try:
            self._transact([(_LOG_KEY, encode_record(_LOG_KEY, wal.label))], self._transaction_no)
            self.begin_sync().run()
            self._file.take_checkpoints()
        except BaseException:
            wal.close()
            raise
        return wal

    def _settle(self, *, replayed: bool = False) -> None:
        """Write commits recovered from the log to the data file and sync it, before they count as durable.

        A sync of the log alone is insufficient. If the process ended because a sync failed, the log's pages may be
        marked clean in the page cache without being on disk. A later sync would then return without writing them.
        """
        if replayed or self._file.replayed_bytes > 0:
            self._transact([], self._transaction_no)  # creates a change newer than the last checkpoint
            self._connect_anew()  # flushes and checkpoints
        self.begin_sync(marker=True).run()

    def _sentinel(self) -> dict[str, Any] | None:
        value = self._get(_META_KEY)
        return None if value is None else dict(json.loads(value))

    def _create_sentinel(self, identity: tuple[str, str] | None) -> None:
        marker = self._open_marker()
        if marker.acked_up_to > 0:
            raise StoreDamaged(self.path, f"no sentinel, but {marker.acked_up_to} commits were acknowledged")
        if self._get(_HEAD_KEY) is not None or self.scan(b"\x00", None, 1):
            raise StoreDamaged(self.path, "records without a sentinel")
        if identity is None:
            raise StoreUnavailable(f"store {self.path}: its creation was cut short, it is empty")
        self.require_room()
        self.store_id = marker.store_id
        cluster_id, node_id = identity
        meta = {"cluster_id": cluster_id, "format": FORMAT_VERSION, "node_id": node_id, "store_id": self.store_id.hex()}
        value = json.dumps(meta, sort_keys=True).encode()
        self._transact([(_META_KEY, encode_record(_META_KEY, value))], 1)
        self._transaction_no = 1
        self.begin_sync().run()
        self.acked(1)

    def _check_sentinel(self, identity: tuple[str, str] | None) -> None:
        found = self._sentinel()
        if found is None:
            raise StoreDamaged(self.path, "the sentinel cannot be read back")
        marker = self._open_marker()
        wanted: dict[str, Any] = {"format": FORMAT_VERSION}
        if identity is not None:
            wanted["cluster_id"], wanted["node_id"] = identity
        for name, value in wanted.items():
            if found.get(name) != value:
                raise StoreMismatch(f"store {self.path} has {name} {found.get(name)!r}, this node has {value!r}")
        if found.get("store_id") != marker.store_id.hex():
            raise StoreMismatch(f"store {self.path} and its marker are not of one store")
        self.store_id = marker.store_id

    def identity(self) -> dict[str, str]:
        """Return the store's ``cluster_id``, ``node_id`` and ``store_id``."""
        found = self._sentinel() or {}
        return {name: str(found.get(name, "")) for name in ("cluster_id", "node_id", "store_id")}

    def check_identity(self, logged_to: int = 0) -> None:
        """Read sentinel, newest commit and marker again, and raise StoreUnverified if they do not agree.

        Args:
            logged_to: Newest commit of the write-ahead log.
        """
        self._require_open()
        self._check_sentinel(None)
        head, marker = self._recovered_head(), AckedMarker.open(self._sibling("-acked"))
        marker.close()
        if head != self._transaction_no:
            raise StoreDamaged(self.path, f"its newest commit reads as {head}, it was {self._transaction_no}")
        if max(head, logged_to) < marker.acked_up_to:
            raise StoreIncomplete(self.path, max(head, logged_to), marker.acked_up_to)
        if marker.damaged_slots:
            raise StoreDamaged(self.path, f"{marker.damaged_slots} slots of its marker fail their checksum")

    def _recovered_head(self) -> int:
        value = self._get(_HEAD_KEY)
        if value is None:
            raise StoreDamaged(self.path, "the record of the newest commit is missing")
        return int.from_bytes(value, "big")

    def _reopen(self, reason: str) -> None:
        """Drop the handle after an exception and reconnect; every commit that returned must be there.

        Raises:
            StoreDamaged: A page failed its check: the library must not be called again.
            StoreFatal: The reconnect or a sync failed, or commits are lost: the process must end.
        """
        committed = self._transaction_no
        corrupt_page = self._file.sums.corrupt_page
        if corrupt_page >= 0:
            self.abandon()
            raise StoreDamaged(self.path, f"page {corrupt_page} fails its checksum ({reason})")
        try:
            self._file.disconnect()
            self._file.connect()
            self._transaction_no = self._recovered_head()
            self._settle()
        except SyncFailed:
            self.abandon()
            raise
        except BaseException as error:
            self.abandon()
            raise StoreFailed(f"store {self.path} failed ({reason}) and cannot be reopened: {error}") from error
        if self._transaction_no < committed:
            self.abandon()
            raise StoreFailed(f"store {self.path} failed ({reason}) and lost commits after {self._transaction_no}")

    def abandon(self) -> None:
        """Release all resources in any state."""
        with contextlib.suppress(Exception):
            self._file.disconnect()
        if self._marker is not None:
            self._marker.close()
            self._marker = None
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1
