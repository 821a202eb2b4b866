"""The spool of a gateway: rows by kind and key in one SQLite file; each transaction is synced.

Validates the file at start, carries out transactions, and enforces the size bound. The writer thread is in
``gateways/spool_thread.py``. SQLite's exclusive lock admits one process. After an
unclean shutdown the whole file is checked before any read; each row has its own checksum. While the spool is open,
``verify_slice`` verifies it in slices (docs/adr/0190-running-spools-are-looked-at.md).
Decision: docs/adr/0089-spool.md.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from conf.errors import UserError
from conf.private_files import check_private
from conf.synced_folder import sync_folder
from gateways.spool_rows import Put, Write
from wire.decoding import plain_text

__all__ = ["SpoolFailed", "SpoolFile", "SpoolFull"]

APPLICATION = 0x534D5153  # "SMQS" in the file's header
VERSION = 1
RESERVE_SHARE = 16  # of the bound, for writes that shrink the spool later
RESERVE_BYTES_MIN = 1 << 20
ROW_BYTES = 16  # estimated overhead of a row
READ_ROWS = 1_024
SLICE_ROWS, SLICE_BYTES = 2_048, 4 << 20  # of one slice, exceeded by at most one row
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
SCHEMA = """
CREATE TABLE facts(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rows(kind TEXT, key BLOB, value BLOB NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY(kind, key)) WITHOUT ROWID;
"""


class SpoolFull(Exception):
    """The bound or the disk is full: none of these writes was stored; they may be retried."""


class SpoolFailed(UserError):
    """The spool is no longer writable; the process must end, and the next one finds all committed rows."""


class SpoolFile:
    """An open spool.

    Args:
      path: The file; created if it is missing, in a folder that exists.
      owner: Name of the bridge or agent that owns the rows.
      bytes_max: Bound of the stored bytes.

    Attributes:
      size_bytes: Stored bytes, in whole pages.

    Raises:
      UserError: The file is foreign, damaged, newer, in use, read-only, or the disk is full.
    """

    def __init__(self, path: Path, owner: str, bytes_max: int) -> None:
        self.path, self.owner, self.bytes_max = path, owner, bytes_max
        self.size_bytes = 0
        self._reserve_bytes = max(RESERVE_BYTES_MIN, bytes_max // RESERVE_SHARE)
        self._lock = threading.Lock()
        self._scrub_position: tuple[str, bytes] = ("", b"")  # the last row of the last slice
        check_private(path, "the spool")
        check_private(path.with_name(f"{path.name}-wal"), "the log of the spool")
        is_new = not path.exists()
        if path.parent.is_dir() and not os.access(path.parent if is_new else path, os.W_OK):
            raise self._read_only()
        try:
            if is_new:
                # SQLite gives the log the same mode
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._refused(error) from None
        except OSError as error:
            raise UserError(f"the spool {path} cannot be created: {error.strerror}; its folder must exist") from None
        try:
            self._open()
            if is_new:
                sync_folder(path.parent)
            self._opened_ids = self._file_ids()
        except sqlite3.Error as error:
            self._database.close()
            raise self._refused(error) from None
        except BaseException:
            self._database.close()
            raise

    def load(self, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of each row of a kind, in key order.

        Raises:
          UserError: A row is damaged.
        """
        last: bytes | None = None
        while True:
            with self._lock:
                try:
                    rows = self._read(kind, last)
                except sqlite3.Error as error:
                    raise self._refused(error) from None
            for key, value, checksum in rows:
                if not _is_whole(kind, key, value, checksum):
                    raise UserError(self._damaged(f"a row of kind {kind} does not match its checksum"))
                yield key, value
            if len(rows) < READ_ROWS:
                return
            last = rows[-1][0]

    def has_capacity(self, growth_bytes: int, drains: bool) -> bool:
        """Whether writes that add this many bytes fit; ``drains``: they may use the reserve."""
        bound = self.bytes_max + (self._reserve_bytes if drains else 0)
        return self.size_bytes + growth_bytes <= bound

    def commit(self, writes: Iterable[Write]) -> None:
        """Store writes as one transaction, in order; it is synced on return.

        Raises:
          SpoolFull: The disk is full; no write was stored.
          SpoolFailed: The disk is no longer writable.
        """
        last: dict[tuple[str, bytes], bytes | None] = {}
        for write in writes:
            last[write.kind, write.key] = write.value if type(write) is Put else None
        puts = [
            (kind, key, value, _checksum(kind, key, value)) for (kind, key), value in last.items() if value is not None
        ]
        deletes = [place for place, value in last.items() if value is None]
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                if deletes:
                    self._database.executemany("DELETE FROM rows WHERE kind = ? AND key = ?", deletes)
                if puts:
                    self._database.executemany("INSERT OR REPLACE INTO rows VALUES(?, ?, ?, ?)", puts)
                self._database.execute("COMMIT")
                self.size_bytes = self._measure()
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
                if _code(error) in FULL:
                    raise SpoolFull(f"no room on the disk of the spool {self.path}") from None
                raise SpoolFailed(f"the spool {self.path} cannot be written: {error}") from None

    def verify_slice(self) -> bool:
        """Verify the next slice of the file on disk; return True after the last row.

        Raises:
          SpoolFailed: The file is damaged, removed or replaced.
        """
        with self._lock:
            try:
                if self._file_ids() != self._opened_ids:
                    raise SpoolFailed(f"the spool {self.path} was removed or replaced")
                return self._check_slice()
            except OSError as error:
                raise SpoolFailed(f"the spool {self.path} was removed: {error.strerror}") from None
            except sqlite3.Error as error:
                raise SpoolFailed(self._damaged(str(error))) from None

    def close(self) -> None:
        """Mark a clean shutdown and close the file."""
        with self._lock:
            with contextlib.suppress(sqlite3.Error):  # on failure it is checked at the next start
                self._database.execute("UPDATE facts SET value = 'closed' WHERE name = 'state'")
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.close()

    # While it is open

    def _file_ids(self) -> list[tuple[int, int]]:
        """Return device and inode of the spool and its log."""
        found = [each.stat() for each in (self.path, self.path.with_name(f"{self.path.name}-wal"))]
        return [(each.st_dev, each.st_ino) for each in found]

    def _check_slice(self) -> bool:
        self._database.execute("PRAGMA shrink_memory")  # read from disk, not from the page cache
        count = size = 0
        statement = "SELECT kind, key, value, sum FROM rows WHERE (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?"
        for kind, key, value, checksum in self._database.execute(statement, (*self._scrub_position, SLICE_ROWS)):
            if not _is_whole(kind, key, value, checksum):
                raise SpoolFailed(self._damaged(f"a row of kind {plain_text(str(kind))} does not match its checksum"))
            if (kind, key) <= self._scrub_position:
                raise SpoolFailed(self._damaged("rows are out of order"))
            self._scrub_position = (kind, key)
            count, size = count + 1, size + len(value)
            if size > SLICE_BYTES:
                return False
        if count < SLICE_ROWS:
            self._scrub_position = ("", b"")
        return count < SLICE_ROWS

    # At start

    def _open(self) -> None:
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # also avoids a shared-memory file
        application = self._pragma("application_id")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if application != APPLICATION and (application or tables):
            raise UserError(f"the spool {self.path} is another program's database: name another file")
        version = self._pragma("user_version")
        if version > VERSION:
            text = f"the spool {self.path} has version {version}, this program supports up to {VERSION}"
            raise UserError(f"{text}: start the newer program")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if not tables:
            self._create()
        self._check()
        database.execute("UPDATE facts SET value = 'open' WHERE name = 'state'")
        self.size_bytes = self._measure()

    def _create(self) -> None:
        """Create the tables; a crash before COMMIT leaves an empty file, which counts as new."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA.split(";"):
            database.execute(statement)
        database.executemany("INSERT INTO facts VALUES(?, ?)", [("owner", self.owner), ("state", "closed")])
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")

    def _check(self) -> None:
        """Refuse a foreign owner, and damage after an unclean shutdown."""
        facts: dict[str, str] = dict(self._database.execute("SELECT name, value FROM facts"))
        if facts.get("owner") != self.owner:
            text = f"the spool {self.path} belongs to {facts.get('owner')}, not to {self.owner}"
            raise UserError(f"{text}: give each its own data folder, or move the file away")
        if facts.get("state") != "closed":
            (found,) = self._database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise UserError(self._damaged(" ".join(str(found).split())))

    def _read(self, kind: str, after: bytes | None) -> list[tuple[bytes, bytes, int]]:
        columns, order = "SELECT key, value, sum FROM rows WHERE kind = ?", "ORDER BY key LIMIT ?"
        if after is None:
            return self._database.execute(f"{columns} {order}", (kind, READ_ROWS)).fetchall()
        return self._database.execute(f"{columns} AND key > ? {order}", (kind, after, READ_ROWS)).fetchall()

    def _measure(self) -> int:
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

    def _read_only(self) -> UserError:
        return UserError(f"the spool {self.path} is read-only: give it a folder that this user may write")

    def _damaged(self, how: str) -> str:
        return f"the spool {self.path} is damaged ({how}): move it away or restore it; moving it away loses its rows"

    def _refused(self, error: sqlite3.Error) -> UserError:
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return UserError(f"the spool {self.path} is in use by another process")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return self._read_only()
            case sqlite3.SQLITE_CANTOPEN:
                return UserError(f"the spool {self.path} cannot be opened: its folder must exist and be writable")
            case sqlite3.SQLITE_NOTADB:
                return UserError(f"the spool {self.path} is no spool, or damaged in its first page: move it away")
            case sqlite3.SQLITE_CORRUPT:
                return UserError(self._damaged(str(error)))
            case code if code in FULL:
                return UserError(f"the spool {self.path} cannot be opened: no room on its disk")
        return UserError(f"the spool {self.path}: {error}")


def _checksum(kind: str, key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(kind.encode())))


def _is_whole(kind: object, key: object, value: object, checksum: object) -> bool:
    """Return whether a row matches its checksum; a damaged row may have values of any type."""
    if not (isinstance(kind, str) and isinstance(key, bytes) and isinstance(value, bytes)):
        return False
    return checksum == _checksum(kind, key, value)


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code, except the extended code for shared memory."""
    code = getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR
    return int(code) if code in FULL else int(code) & 0xFF
