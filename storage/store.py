"""The one module that knows lsm-db: a store file whose hazards are out of reach.

Decides how the library is opened, written, read, synced and given up. What keys and values mean, when a sync is due
(``storage/group_commit.py``) and what is repaired from where are others' business.

Measured reasons, per hazard: methods on a closed handle crash the interpreter, so a closed store has none; a failed
``begin`` leaves the transaction depth raised and later commits are lost without a word, so any exception reopens the
file; pages have no checksum, so records carry one, pages get one (``storage/page_sums.py``) and a sentinel must exist;
``mmap`` turns a full disk into a signal; the library's range delete returns wrong data and is never called; ``work``
may spin unless called with the automerge count; at ``write_safety`` 2 it would sync twice per commit, holding the
interpreter lock, so the log is synced here.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lsm

from storage.acked_marker import AckedMarker
from storage.page_sums import SUMS_SUFFIX, PageSums, sync_folder
from storage.record import RESERVED_PREFIX, decode_record, encode_record
from storage.store_errors import (
    BatchUnknown,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreMismatch,
    StoreShort,
    StoreUnavailable,
    SyncFailed,
    ValueTooLarge,
)
from storage.store_protocol import Batch, Row
from storage.store_settings import StoreSettings

__all__ = ["LSM_DB_VERSION", "Store", "StoreSync", "quarantine", "store_files"]

LSM_DB_VERSION = "0.7.3"  # two other distributions install a module of the same name
FORMAT_VERSION = 1

_AUTOMERGE = 4
_OPTIONS = {
    "write_safety": 1,  # the database file is synced at checkpoints, the log by us
    "transaction_log": 1,
    "multiple_processes": 0,  # halves the cost of a read; a second process still finds the file locked
    "mmap": 0,  # a full disk would be SIGBUS
    "autoflush": 4096,  # kB
    "autocheckpoint": 16384,  # kB; with autoflush this bounds the log to replay: about 5 ms per MB
    "automerge": _AUTOMERGE,  # never changed while data exists
}
_WORK_KB = 4096
_SUFFIXES = ("-log", SUMS_SUFFIX, "-acked", "-lock")

_META_KEY = RESERVED_PREFIX + b"\x00meta"
_HEAD_KEY = RESERVED_PREFIX + b"\x00head"


class StoreSync:
    """One sync of the log, and of the marker when it is due; made on the owner's thread, run on any."""

    def __init__(self, commit_no: int, log_descriptor: int, marker: AckedMarker | None) -> None:
        self.commit_no = commit_no
        self._log_descriptor = log_descriptor  # a duplicate: the store may be reopened meanwhile
        self._marker = marker

    def run(self) -> None:
        """Sync, blocking; os.fdatasync lets go of the interpreter lock. Runs once."""
        try:
            os.fdatasync(self._log_descriptor)
            if self._marker is not None:
                self._marker.sync()
        except OSError as error:
            raise SyncFailed(f"fdatasync: {error}") from error
        finally:
            os.close(self._log_descriptor)


class Store:
    """One lsm-db file with its log, marker and lock; every call from one thread at a time, never after a fork."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.path = Path(path).absolute()
        self.settings = settings
        self.store_id = b""
        self._sums = PageSums(self.path)
        self._handle: Any = None  # the lsm.LSM; None once closed or failed
        self._commit_no = 0
        self._log_descriptor = -1
        self._lock_descriptor = -1
        self._marker: AckedMarker | None = None
        self._marker_synced_at = 0  # commit_no of the last sync that covered the marker

    @classmethod
    def open(cls, path: Path, cluster_id: str, node_id: str, settings: StoreSettings) -> "Store":
        """Open the store at path, or create it with the ids of its cluster and node.

        Raises:
            StoreMismatch: It is the store of another cluster or node, or of another format.
            StoreDamaged: Header, sentinel or marker fail their check.
            StoreShort: Acknowledged commits are missing.
            StoreBusy: It is open elsewhere.
            StoreUnavailable: The system refuses the folder or a file.
        """
        _require_library()
        return cls._open(Path(path), (cluster_id, node_id), settings)

    @classmethod
    def open_existing(cls, path: Path, settings: StoreSettings) -> "Store":
        """Open a store whoever it belongs to, for tools; never creates one. Raises what ``open`` raises."""
        _require_library()
        path = Path(path)
        if not path.exists():
            raise StoreUnavailable(f"store {path}: there is none")
        return cls._open(path, None, settings)

    @classmethod
    def _open(cls, path: Path, identity: tuple[str, str] | None, settings: StoreSettings) -> "Store":
        store = cls(path, settings)
        try:
            with _system_errors(path):
                store._lock()
                store._connect_first(identity)
        except BaseException:
            store._abandon()
            raise
        return store

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def commit_no(self) -> int:
        """Number of the newest commit; durable or not."""
        return self._commit_no

    @property
    def acked_up_to(self) -> int:
        """Commit up to which the marker says that others were told."""
        return self._open_marker().acked_up_to

    @property
    def closed(self) -> bool:
        """Whether calls would raise StoreClosed."""
        return self._handle is None

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch as one transaction; see ``KeyValueStore.write``."""
        handle = self._require_handle()
        rows = [(key, self._record(key, value)) for key, value in batch]
        self.require_room(reclaiming=reclaiming)
        commit_no = self._commit_no + 1
        try:
            self._transact(handle, rows, commit_no)
        except BaseException as error:
            # The depth counter of the handle is wrong now: later commits would be visible here and nowhere else.
            self._reopen(f"{type(error).__name__}: {error}")
            if isinstance(error, Exception):
                raise BatchUnknown(commit_no, str(error) or type(error).__name__) from error
            raise
        self._commit_no = commit_no
        return commit_no

    def _transact(self, handle: Any, rows: list[tuple[bytes, bytes | None]], commit_no: int) -> None:
        if handle.transaction_depth != 0:
            raise RuntimeError("transaction depth is not 0")
        handle.begin()
        insert, delete = handle.insert, handle.delete
        for key, record in rows:
            if record is None:
                delete(key)
            else:
                insert(key, record)
        insert(_HEAD_KEY, encode_record(_HEAD_KEY, commit_no.to_bytes(8, "big")))
        if not handle.commit() or handle.transaction_depth != 0:
            raise RuntimeError("commit closed an inner transaction only")

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
        """Raise StoreFull if free space is below the floor (a quarter of it for what frees more than it writes)."""
        free_bytes, floor_bytes = self.free_space()
        if free_bytes < (floor_bytes // 4 if reclaiming else floor_bytes):
            raise StoreFull(free_bytes, floor_bytes)

    def free_space(self) -> tuple[int, int]:
        """Return the free bytes of the file system and the floor that holds on it."""
        usage = os.statvfs(self.path.parent)
        percent_bytes = int(usage.f_blocks * usage.f_frsize * self.settings.free_space_floor_percent / 100)
        return usage.f_bavail * usage.f_frsize, max(percent_bytes, self.settings.free_space_floor_bytes)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent; by cursor, because ``fetch`` turns every error into "absent"."""
        self._check_key(key)
        return self._get(self._require_handle(), key)

    def _get(self, handle: Any, key: bytes) -> bytes | None:
        cursor = handle.cursor()
        try:
            if not _found(cursor, key, lsm.SEEK_EQ):
                return None
            found, record = cursor.key(), cursor.value()
        except Exception as error:
            raise StoreDamaged(self.path, str(error), key) from error
        finally:
            cursor.close()
        return self._verified(found, record) if found == key else self._wrong_key(key)

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop, ascending; see ``KeyValueStore.scan``."""
        stop = RESERVED_PREFIX if stop is None else min(stop, RESERVED_PREFIX)
        rows: list[Row] = []
        last_key = b""
        with self._cursor_at(start, lsm.SEEK_GE, start) as records:
            for key, record in records:
                if key >= stop or len(rows) >= limit:
                    break
                if key <= last_key or key < start:  # a damaged page can lead the cursor astray
                    raise StoreDamaged(self.path, "keys are out of order", key)
                last_key = key
                rows.append((key, self._verified(key, record)))
        return rows

    def scan_reverse(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop, descending."""
        stop = RESERVED_PREFIX if stop is None else min(stop, RESERVED_PREFIX)
        rows: list[Row] = []
        last_key = b"\xff" * (self.settings.key_bytes_max + 1)
        with self._cursor_at(stop, lsm.SEEK_LE, start, reverse=True) as records:
            for key, record in records:
                if key == stop:
                    continue
                if key < start or len(rows) >= limit:
                    break
                if key >= last_key or key > stop:
                    raise StoreDamaged(self.path, "keys are out of order", key)
                last_key = key
                rows.append((key, self._verified(key, record)))
        return rows

    def raw_scan(self, start: bytes, limit: int) -> list[Row]:
        """Return stored records from start on, unchecked and those of the store itself included: for the scrub."""
        rows: list[Row] = []
        with self._cursor_at(start, lsm.SEEK_GE, start) as records:
            for row in records:
                rows.append(row)
                if len(rows) >= limit:
                    break
        return rows

    @contextlib.contextmanager
    def _cursor_at(self, key: bytes, seek: int, start: bytes, *, reverse: bool = False) -> Iterator[Iterator[Row]]:
        cursor = self._require_handle().cursor(reverse)
        try:
            yield iter(cursor) if _found(cursor, key, seek) else iter(())
        except StoreError:
            raise
        except Exception as error:
            raise StoreDamaged(self.path, f"{error} in the scan from {start.hex()}") from error
        finally:
            cursor.close()

    def _verified(self, key: bytes, record: bytes) -> bytes:
        value = decode_record(key, record)
        if value is None:
            raise StoreDamaged(self.path, "checksum of the record", key)
        return value

    def _wrong_key(self, key: bytes) -> bytes:
        raise StoreDamaged(self.path, "the cursor stands on another key", key)

    # -- durability ---------------------------------------------------------------------------------------------

    def sync_descriptor(self) -> int:
        """Return the own descriptor of the log; it changes when the store is reopened, so prefer ``begin_sync``."""
        self._require_handle()
        return self._log_descriptor

    def begin_sync(self, *, marker: bool = False) -> StoreSync:
        """Prepare a sync that covers every commit so far, and the marker if asked or if it is a group behind."""
        descriptor = os.dup(self.sync_descriptor())
        behind = self._commit_no - self._marker_synced_at >= self.settings.marker_sync_commits
        if marker or behind:
            self._marker_synced_at = self._commit_no
            return StoreSync(self._commit_no, descriptor, self._open_marker())
        return StoreSync(self._commit_no, descriptor, None)

    def acked(self, commit_no: int) -> None:
        """Raise the marker to a commit that was synced, before anybody is told; see ``storage/acked_marker.py``."""
        if commit_no > self._commit_no:
            raise ValueError(f"commit {commit_no} is not written, the newest is {self._commit_no}")
        try:
            self._open_marker().write(commit_no)
        except OSError as error:
            raise SyncFailed(f"marker: {error}") from error

    def flush(self) -> None:
        """Write the memory tree out as a segment; for tests and for tools that end a load."""
        handle = self._require_handle()
        try:
            handle.flush()
        except Exception as error:
            self._reopen(f"flush: {error}")

    def work(self) -> None:
        """Merge a little, for idle moments; holds the interpreter lock for some milliseconds."""
        handle = self._require_handle()
        try:
            handle.work(_AUTOMERGE, _WORK_KB)  # fewer inputs than automerge can leave a merge that flush spins on
        except Exception as error:
            self._reopen(f"work: {error}")

    def close(self) -> None:
        """Sync the log, bring the marker up to it, close. What the library fails to flush here stays in the log."""
        if self._handle is None:
            return
        try:
            self.begin_sync(marker=True).run()
            self.acked(self._commit_no)
            self._open_marker().sync()
            self._disconnect()
        except OSError as error:
            raise SyncFailed(f"marker: {error}") from error
        finally:
            self._abandon()

    # -- opening, reopening, giving up --------------------------------------------------------------------------

    def _require_handle(self) -> Any:
        if self._handle is None:
            raise StoreClosed(f"store {self.path} is closed")
        return self._handle

    def _open_marker(self) -> AckedMarker:
        if self._marker is None:
            raise StoreClosed(f"store {self.path} is closed")
        return self._marker

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _lock(self) -> None:
        """Take a lock of our own: the library notices another process, but not a second handle in this one."""
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
        # The marker comes first: a creation that was cut short leaves a marker at 0, and is done again.
        self._marker = AckedMarker.open(marker_path) if has_marker else AckedMarker.create(marker_path, os.urandom(16))
        if self._marker.acked_up_to == 0:
            self._sums.create()
        self._connect()
        if self._sentinel() is None:
            self._create_sentinel(identity)
        self._check_sentinel(identity)
        self._commit_no = self._recovered_head()
        if self._commit_no < self._marker.acked_up_to:
            raise StoreShort(self.path, self._commit_no, self._marker.acked_up_to)
        # What was recovered from the log may be in the page cache only; from here on others may be told of it.
        self.begin_sync(marker=True).run()

    def _connect(self) -> None:
        self._sums.attach()
        try:
            self._handle = lsm.LSM(str(self.path), **_OPTIONS)
        except OSError as error:
            if "corrupt" in str(error):
                raise StoreDamaged(self.path, str(error)) from error
            raise StoreUnavailable(f"store {self.path}: {error}") from error
        except Exception as error:  # the library says "Busy" with a bare Exception
            if "Busy" in str(error):
                raise StoreBusy(f"store {self.path} is open in another process") from error
            raise StoreDamaged(self.path, f"the library cannot open it: {error}") from error
        wrong = {name: getattr(self._handle, name) for name in _OPTIONS}
        if wrong != _OPTIONS:
            raise StoreFailed(f"lsm-db did not take its options: {wrong}")
        self._log_descriptor = os.open(self._sibling("-log"), os.O_RDWR | os.O_CLOEXEC)
        sync_folder(self.path.parent)  # the library creates files without it

    def _sentinel(self) -> dict[str, Any] | None:
        value = self._get(self._handle, _META_KEY)
        return None if value is None else dict(json.loads(value))

    def _create_sentinel(self, identity: tuple[str, str] | None) -> None:
        marker = self._open_marker()
        if marker.acked_up_to > 0:
            raise StoreDamaged(self.path, f"no sentinel, but {marker.acked_up_to} commits were acknowledged")
        if self._get(self._handle, _HEAD_KEY) is not None or self.scan(b"\x00", None, 1):
            raise StoreDamaged(self.path, "records without a sentinel")
        if identity is None:
            raise StoreUnavailable(f"store {self.path}: its creation was cut short, it is empty")
        self.require_room()
        self.store_id = marker.store_id
        cluster_id, node_id = identity
        meta = {"cluster_id": cluster_id, "format": FORMAT_VERSION, "node_id": node_id, "store_id": self.store_id.hex()}
        value = json.dumps(meta, sort_keys=True).encode()
        self._transact(self._handle, [(_META_KEY, encode_record(_META_KEY, value))], 1)
        self._commit_no = 1
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

    def check_identity(self) -> None:
        """Read sentinel, newest commit and marker again, and raise StoreUnproven if they do not agree."""
        self._require_handle()
        self._check_sentinel(None)
        head, marker = self._recovered_head(), AckedMarker.open(self._sibling("-acked"))
        marker.close()
        if head != self._commit_no:
            raise StoreDamaged(self.path, f"its newest commit reads as {head}, it was {self._commit_no}")
        if head < marker.acked_up_to:
            raise StoreShort(self.path, head, marker.acked_up_to)
        if marker.damaged_slots:
            raise StoreDamaged(self.path, f"{marker.damaged_slots} slots of its marker fail their checksum")

    def _recovered_head(self) -> int:
        value = self._get(self._handle, _HEAD_KEY)
        if value is None:
            raise StoreDamaged(self.path, "the record of the newest commit is missing")
        return int.from_bytes(value, "big")

    def _reopen(self, reason: str) -> None:
        """Give up the handle after an exception and connect anew; every commit that returned must be there.

        Raises:
            StoreDamaged: The library came upon a damaged page: it would again.
            StoreFatal: It cannot be done, a sync failed, or commits are gone: the process must end.
        """
        committed = self._commit_no
        corrupt_page = self._sums.corrupt_page
        try:
            self._disconnect()
            self._connect()
            self._commit_no = self._recovered_head()
        except SyncFailed:
            self._abandon()
            raise
        except BaseException as error:
            self._abandon()
            raise StoreFailed(f"store {self.path} failed ({reason}) and cannot be reopened: {error}") from error
        if corrupt_page >= 0:
            self._abandon()
            raise StoreDamaged(self.path, f"page {corrupt_page} fails its checksum ({reason})")
        if self._commit_no < committed:
            self._abandon()
            raise StoreFailed(f"store {self.path} failed ({reason}) and lost commits after {self._commit_no}")

    def _disconnect(self) -> None:
        handle, self._handle = self._handle, None
        descriptor, self._log_descriptor = self._log_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        try:
            if handle is not None and handle.is_open:
                _roll_back(handle)
                handle.close()
            if self._sums.sync_errno:
                raise SyncFailed(f"a sync inside the library: {os.strerror(self._sums.sync_errno)}")
        finally:
            self._sums.detach()

    def _abandon(self) -> None:
        """Release everything, whatever state it is in."""
        with contextlib.suppress(Exception):
            self._disconnect()
        if self._marker is not None:
            self._marker.close()
            self._marker = None
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def _found(cursor: Any, key: bytes, seek: int) -> bool:
    try:
        cursor.seek(key, seek)
    except KeyError:
        return False
    return True


def _roll_back(handle: Any) -> None:
    """Bring the library's nesting level back to 0; it refuses to close otherwise, and keeps the write lock."""
    with contextlib.suppress(Exception):
        if handle.transaction_depth == 0:
            # A commit that raised lowered the wrapper's count but maybe not the library's: level with it, then undo.
            handle.begin()
        while handle.transaction_depth > 0:
            handle.rollback(False)


def store_files(path: Path) -> list[Path]:
    """Return the files of a store: data, log, page sums, marker, lock."""
    return [path, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES)]


def quarantine(path: Path) -> Path:
    """Put an unproven store aside, so that an empty one can take its place; return where its data file went.

    Raises:
        StoreBusy: It is open.
    """
    lock = os.open(path.with_name(path.name + "-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.quarantined-{n}").exists())
        target = path.with_name(f"{path.name}.quarantined-{number}")
        for source, goal in zip(store_files(path), store_files(target), strict=True):
            # The marker is moved last but for the lock: without it, what is left is refused, not taken for a store.
            if source.exists():
                source.rename(goal)
        sync_folder(path.parent)
    except BlockingIOError as error:
        raise StoreBusy(f"store {path} is open") from error
    finally:
        os.close(lock)
    return target


def _require_library() -> None:
    found = importlib.metadata.version("lsm-db")
    if found != LSM_DB_VERSION:
        raise StoreFailed(f"lsm-db {found} is installed, this store was measured with {LSM_DB_VERSION}")


@contextlib.contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Translate what the system says while opening."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        code = errno.errorcode.get(error.errno or 0, "OSError")
        raise StoreUnavailable(f"store {path}: {reason} ({code})") from error
