"""Checksums of a data file's pages: lsm-db has none, so a flipped bit could hide rows or restore old ones.

``storage/store/_lsm_vfs.c`` verifies pages below the library. This file keeps the journal of sums. It is read at open,
where a torn record at the end is dropped: no synced header refers to its pages. It is then rewritten to bound its
size. Records of the journal carry a sum themselves.
"""

import array
import contextlib
import importlib.util
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from conf.compiled import NotCompiled
from conf.synced_folder import sync_folder
from storage.store.errors import StoreDamaged

try:
    from storage.store import _lsm_vfs
except ImportError as error:  # needed in a pure build too: without it damaged pages would be served
    raise NotCompiled("not compiled: storage.store._lsm_vfs; run `make setup`") from error

__all__ = ["SUMS_SUFFIX", "PageSums"]

SUMS_SUFFIX = "-sums"

JOURNAL_BYTES_MAX = 4 << 20  # above it, and above twice the size of its sums, the journal is rewritten

_MAGIC = b"SMQsums1"
_DAMAGED_MAGIC = b"SMQdamag"  # replaces the magic when a page fails its check
_RECORD = struct.Struct("=IIQ")  # as in _lsm_vfs.c: magic, entries, sum of the entries
_RECORD_MAGIC = 0x534D5153


class PageSums:
    """The sums of one data file, from before the library opens it until after it has closed it."""

    def __init__(self, path: Path) -> None:
        """Args: path: The data file, resolved as the library does it."""
        self.path = path
        self._journal = path.with_name(path.name + SUMS_SUFFIX)

    def create(self) -> None:
        """Start without sums."""
        self._rewrite(array.array("I"))

    def attach(self) -> None:
        """Read the journal and check every page that the library reads from now on.

        Raises:
            StoreDamaged: The journal is missing or invalid; or a page failed its check before.
        """
        try:
            data = self._journal.read_bytes()
        except FileNotFoundError:
            raise StoreDamaged(self.path, f"its page sums {self._journal.name} are missing") from None
        if data.startswith(_DAMAGED_MAGIC):
            raise StoreDamaged(self.path, "a page failed its checksum before")
        if not data.startswith(_MAGIC):
            raise StoreDamaged(self._journal, "not a journal of page sums")
        sums = _replay(data)
        size = self._rewrite(sums)
        library = importlib.util.find_spec("lsm")
        assert library is not None
        assert library.origin is not None
        _lsm_vfs.install(library.origin)
        descriptor = os.open(self._journal, os.O_RDWR | os.O_CLOEXEC)
        _lsm_vfs.attach(str(self.path), descriptor, size, sums.tobytes(), JOURNAL_BYTES_MAX)

    def detach(self) -> None:
        """Detach after the library has closed the file."""
        _lsm_vfs.detach(str(self.path))

    @property
    def sync_errno(self) -> int:
        """The error of a sync inside the library, 0 for none; the process must end on an error."""
        found = _lsm_vfs.status(str(self.path))
        return found[0] if found else 0

    @property
    def corrupt_page(self) -> int:
        """Number of the first page that failed its check, -1 if none did."""
        if not _lsm_vfs.damaged():  # called after every call of the library
            return -1
        found = _lsm_vfs.status(str(self.path))
        return found[1] if found else -1

    @property
    def unsynced_pages(self) -> int:
        """Pages written since their sums were last handed out or synced."""
        return _lsm_vfs.unsynced(str(self.path))

    def hand_out(self) -> tuple[int, int]:
        """Write the sums of all pages so far to the journal; return the descriptors to sync before a header.

        Returns:
            Descriptors of the journal and of its replacement, or -1; the caller must not close them.
        """
        return _lsm_vfs.begin(str(self.path))

    def replace(self) -> bool:
        """Rename the synced replacement to the journal, unless pages were written meanwhile."""
        return _lsm_vfs.replace(str(self.path))

    @contextlib.contextmanager
    def synced_elsewhere(self) -> Iterator[bool]:
        """Skip the library's syncs of the handed-out pages; yield False if pages were written since."""
        try:
            yield _lsm_vfs.defer(str(self.path), True)
        finally:
            _lsm_vfs.defer(str(self.path), False)

    def _rewrite(self, sums: "array.array[int]") -> int:
        """Replace the journal by one record of all sums; return its size."""
        entries = array.array("I")
        for page, value in enumerate(sums):
            if value:
                entries.extend((page, value))
        record = _RECORD.pack(_RECORD_MAGIC, len(entries) // 2, _lsm_vfs.check(entries)) + entries.tobytes()
        data = _MAGIC + (record if entries else b"")
        side = self._journal.with_name(self._journal.name + ".new")
        descriptor = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        side.replace(self._journal)
        sync_folder(self._journal.parent)
        return len(data)


def _replay(data: bytes) -> "array.array[int]":
    """Apply records until the end or the first torn one; the newest sum of a page wins."""
    newest: dict[int, int] = {}
    at = len(_MAGIC)
    while at + _RECORD.size <= len(data):
        magic, count, value = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        entries = array.array("I", data[at : at + 8 * count][: (len(data) - at) // 4 * 4])
        if magic != _RECORD_MAGIC or len(entries) != 2 * count or _lsm_vfs.check(entries) != value:
            break
        newest.update(zip(entries[::2], entries[1::2], strict=True))
        at += 8 * count
    sums = array.array("I", bytes(4 * (max(newest, default=-1) + 1)))
    for page, value in newest.items():
        sums[page] = value
    return sums
