"""The one module that calls lsm-db: a data file without the library's hazards.

It opens, calls and abandons the library, and translates its errors. ``storage/store/store.py`` decides the stored
content, the syncs and the reaction to failures.

Measured reasons, per hazard:

- Methods on a closed handle crash the interpreter, so a closed file has no handle.
- A failed ``begin`` leaves the transaction depth raised, and later commits are lost without an error. So the depth is
  checked around each transaction, and a failed one is undone before closing.
- ``fetch`` turns every error into "absent", so reads use a cursor.
- Pages have no checksum, so ``storage/store/page_sums.py`` adds one.
- ``mmap`` turns a full disk into a signal.
- The library's range delete returns wrong data and is never called.
- ``work`` may spin unless called with the automerge count.
- ``flush`` leaves a checkpoint without a log position if the connection has filled no memory tree before. A killed
  process then loses later commits. It is never called; closing has the same effect.
- At ``write_safety`` 2 it would sync twice per commit, holding the interpreter lock, so the caller syncs the log.
- With an unreadable page a call may succeed and one of the next crash. After the first failed check the library is
  never called again.
"""

import contextlib
import ctypes
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lsm

from conf.synced_folder import sync_folder
from storage.store.errors import (
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreUnavailable,
    SyncFailed,
)
from storage.store.page_sums import PageSums
from storage.store.protocol import Row

__all__ = ["LSM_DB_VERSION", "OPTIONS", "Descriptor", "LsmFile", "require_library"]

LSM_DB_VERSION = "0.7.3"  # two other distributions install a module of the same name

_AUTOMERGE = 4
OPTIONS = {
    "write_safety": 1,  # the data file is synced at checkpoints, the log by the store
    "transaction_log": 1,
    # Halves the cost of a read; a second process still gets an error, because the file is locked
    "multiple_processes": 0,
    "mmap": 0,  # a full disk would be SIGBUS
    "autoflush": 2048,  # kB; periodically a commit writes this much and blocks the loop: 4096 is a tenth cheaper
    "autocheckpoint": 16384,  # kB; with autoflush this bounds the log to replay: about 5 ms per MB
    "automerge": _AUTOMERGE,  # never changed while data exists
}
_WORK_KB = 4096
_PAGE_KB = 4
_HEADERS_BYTES = 8192

_abandoned: set[Path] = set()  # data files with handles that the library still has


class Descriptor:
    """An open file descriptor, closed with its last reference."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class LsmFile:
    """A data file and its log; connected, closed and connected again.

    Attributes:
        connection: Number of the connection.
        data: A descriptor of our own for the data file. Closing one releases the library's lock; ours is a separate
          file.
    """

    def __init__(self, path: Path) -> None:
        """Args: path: Absolute."""
        self.path = path
        self.sums = PageSums(path)
        self.log_descriptor = -1  # our own, of the log of this connection
        self.connection = 0
        self.data: Descriptor | None = None
        self._has_own_checkpoints = True  # of the library, in its calls
        self._header_pending = False  # it was written and may not be durable
        self._failure: SyncFailed | None = None  # the disk reports it only once
        self.replayed_bytes = 0  # length of the log found when connecting
        self._handle: Any = None

    @property
    def connected(self) -> bool:
        """Whether the file is connected; other calls raise StoreClosed if not."""
        return self._handle is not None

    def connect(self) -> None:
        """Open or create the file, and recover its log.

        Raises:
            StoreDamaged, StoreBusy, StoreUnavailable: As their names say.
            StoreFailed: The library did not apply its options.
        """
        if self.path in _abandoned:
            raise StoreDamaged(self.path, "damage was found before in this process; restart it to open a replacement")
        log = self.path.with_name(self.path.name + "-log")
        self.replayed_bytes = log.stat().st_size if log.exists() else 0
        self._renew_headers()
        self.sums.attach()
        try:
            self._handle = lsm.LSM(str(self.path), **OPTIONS)
        except OSError as error:
            if "corrupt" in str(error):
                raise StoreDamaged(self.path, str(error)) from error
            raise StoreUnavailable(f"store {self.path}: {error}") from error
        except Exception as error:  # the library raises a bare Exception with "Busy"
            if "Busy" in str(error):
                raise StoreBusy(f"store {self.path} is open in another process") from error
            raise StoreDamaged(self.path, f"the library cannot open it: {error}") from error
        self._require_sound()
        options = {name: getattr(self._handle, name) for name in OPTIONS}
        if options != OPTIONS:
            raise StoreFailed(f"lsm-db did not take its options: {options}")
        if not self._has_own_checkpoints:
            self._handle.autocheckpoint = 0
        self.connection += 1
        self.data = Descriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        self.log_descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
        sync_folder(self.path.parent)  # the library creates files without it

    def _renew_headers(self) -> None:
        """Rewrite the current headers durably before data that the previous header needs is overwritten.

        A process killed between a header and its sync left the header in the page cache. After a failed sync the page
        cache marks it as written.
        """
        if not self.path.exists():
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            headers = os.pread(descriptor, _HEADERS_BYTES, 0)
            os.pwrite(descriptor, headers, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def disconnect(self) -> None:
        """Close the file; changes that the library fails to flush stay in its log.

        Raises:
            SyncFailed: A sync inside the library failed, now or before.
        """
        handle, self._handle = self._handle, None
        descriptor, self.log_descriptor = self.log_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        try:
            self._settle_header()
            if self.sums.corrupt_page >= 0:
                _abandoned.add(self.path)
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))  # it would be closed when it is freed
            elif handle is not None and handle.is_open:
                _roll_back(handle)
                handle.close()
            if self.sums.sync_errno:
                raise SyncFailed(f"a sync inside the library: {os.strerror(self.sums.sync_errno)}")
        finally:
            self._header_pending, self.data = False, None
            self.sums.detach()

    def handle(self) -> Any:
        """Return the library's object; the caller must not keep it."""
        if self._handle is None:
            raise StoreClosed(f"store {self.path} is closed")
        self._require_sound()
        return self._handle

    def _require_sound(self) -> None:
        if (page := self.sums.corrupt_page) >= 0:
            raise StoreDamaged(self.path, f"page {page} fails its checksum")

    def transact(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records (None deletes) as one transaction; after any exception, disconnect."""
        handle = self.handle()
        self._settle_header()
        if handle.transaction_depth != 0:
            raise RuntimeError("transaction depth is not 0")
        handle.begin()
        insert, delete = handle.insert, handle.delete
        for key, record in records:
            if record is None:
                delete(key)
            else:
                insert(key, record)
        if not handle.commit() or handle.transaction_depth != 0:
            raise RuntimeError("commit closed an inner transaction only")
        self._require_sound()

    def find(self, key: bytes) -> bytes | None:
        """Return the record of a key, None if absent."""
        cursor = self.handle().cursor()
        try:
            record = bytes(cursor.value()) if _seek(cursor, key, lsm.SEEK_EQ) else None
            if record is not None and cursor.key() != key:
                raise StoreDamaged(self.path, "the cursor found another key", key)
        except StoreError:
            raise
        except Exception as error:
            raise StoreDamaged(self.path, str(error), key) from error
        finally:
            cursor.close()
        self._require_sound()
        return record

    def find_below(self, key: bytes) -> bytes:
        """Return the last key that is at or before this one, b"" if there is none."""
        cursor = self.handle().cursor()
        try:
            found = bytes(cursor.key()) if _seek(cursor, key, lsm.SEEK_LE) else b""
        except Exception as error:
            raise StoreDamaged(self.path, str(error), key) from error
        finally:
            cursor.close()
        self._require_sound()
        return found

    @contextlib.contextmanager
    def records_from(self, key: bytes) -> Iterator[Iterator[Row]]:
        """Iterate records from the first key at or after this one.

        The cursor is closed with the context: while it is open it pins its snapshot. It walks over tombstones up to
        the next live record at any distance, so do not read ranges that are known to be empty.
        """
        cursor = self.handle().cursor()
        try:
            yield iter(cursor) if _seek(cursor, key, lsm.SEEK_GE) else iter(())
        except StoreError:
            raise
        except Exception as error:
            raise StoreDamaged(self.path, f"{error} in the scan from {key.hex()}") from error
        finally:
            cursor.close()
        self._require_sound()

    def work(self) -> None:
        """Merge a little; holds the interpreter lock for some milliseconds. After any exception, disconnect."""
        self._settle_header()
        self.handle().work(_AUTOMERGE, _WORK_KB)  # fewer inputs than automerge can leave a merge that flush spins on
        self._require_sound()

    # -- checkpoints that are synced beside the loop (``checkpoints.py``)

    def take_checkpoints(self) -> None:
        """Leave checkpoints to the caller from here on; the library does none in its calls."""
        self._has_own_checkpoints = False
        self.handle().autocheckpoint = 0

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the pages for a checkpoint were written and the library takes none itself."""
        return not self._has_own_checkpoints and self.sums.unsynced_pages * _PAGE_KB >= OPTIONS["autocheckpoint"]

    def hand_out_sums(self) -> tuple[int, int]:
        """Begin a checkpoint; see ``PageSums.hand_out``."""
        self.handle()
        return self.sums.hand_out()

    def replace_sums(self) -> bool:
        """See ``PageSums.replace``."""
        return self.sums.replace()

    def write_header(self) -> bool:
        """Write the header of the synced pages without a sync; return False if pages were written meanwhile."""
        handle = self.handle()
        with self.sums.synced_elsewhere() as is_covered:
            if is_covered:
                self._header_pending = True
                handle.checkpoint(0)
        self._require_sound()
        return is_covered

    def header_synced(self) -> None:
        """Record that the header is durable."""
        self._header_pending = False

    def _settle_header(self) -> None:
        """Sync a written header now: later writes may overwrite data of the previous header.

        Raises:
            SyncFailed: The process must end.
        """
        if not self._header_pending:
            return
        if self._failure is not None:
            raise self._failure
        assert self.data is not None
        try:
            os.fdatasync(self.data.number)
            sync_folder(self.path.parent)  # the journal of sums may have been renamed
        except OSError as error:
            self._failure = SyncFailed(f"header of the data file: {error}")
            raise self._failure from error
        self._header_pending = False


def _seek(cursor: Any, key: bytes, method: int) -> bool:
    try:
        cursor.seek(key, method)
    except KeyError:
        return False
    return True


def _roll_back(handle: Any) -> None:
    """Bring the library's nesting level back to 0; it refuses to close otherwise, and keeps the write lock."""
    with contextlib.suppress(Exception):
        if handle.transaction_depth == 0:
            # A commit that raised lowered the wrapper's count but maybe not the library's: raise it to match, then
            # undo.
            handle.begin()
        while handle.transaction_depth > 0:
            handle.rollback(False)


def require_library() -> None:
    """Raise StoreFailed unless the measured version is installed."""
    found = importlib.metadata.version("lsm-db")
    if found != LSM_DB_VERSION:
        raise StoreFailed(f"lsm-db {found} is installed, this store was measured with {LSM_DB_VERSION}")
