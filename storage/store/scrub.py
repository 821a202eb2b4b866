"""Reads every record of a store and reports damage: ``stratamq store verify``.

It verifies record checksums, ascending keys, that a seek finds each scanned key, and that sentinel, newest commit and
marker agree. Damage is reported, not repaired: rows are restored from a replica. ``Scrub`` works on an open store in
slices; ``verify`` on a stopped one by path. Missing rows are detected by comparing counts and digests with a replica
at the same op_index: a range's digest does not depend on order or history.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from zlib import crc32

from storage.store.errors import StoreDamaged, StoreError, StoreUnverified
from storage.store.protocol import Row
from storage.store.record import RECORD_OVERHEAD_BYTES, RESERVED_PREFIX, decode_record
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.wal_store import WalStore

__all__ = ["RangeDigest", "Scrub", "ScrubFinding", "ScrubReport", "verify"]

FINDINGS_MAX = 1000  # stored; further ones are only counted
_DIGEST_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class ScrubFinding:
    """One detected error.

    Attributes:
        kind: ``record`` (one row), ``order``, ``seek`` (a row that a lookup misses), ``unreadable`` (a page: all rows
          from
            the key on), ``store`` (refused at open).
        key: Its key; empty if the error has none.
        what: Description.
    """

    kind: Literal["record", "order", "seek", "unreadable", "store"]
    key: bytes
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" + (f" (key {self.key.hex()})" if self.key else "")


@dataclass(slots=True)
class RangeDigest:
    """Number of rows of a range, their bytes and a sum: equal on two replicas if and (almost) only if the rows are."""

    rows: int = 0
    value_bytes: int = 0
    digest: int = 0  # u64

    def add(self, key: bytes, record: bytes) -> None:
        """Count one row, as stored."""
        forward, backward = crc32(record, crc32(key)), crc32(key, crc32(record))
        self.rows += 1
        self.value_bytes += len(record) - RECORD_OVERHEAD_BYTES
        self.digest = (self.digest + (forward << 32 | backward)) % _DIGEST_MODULUS


@dataclass(slots=True)
class ScrubReport:
    """Result of a scrub: counts per first two key bytes (the partition), and findings."""

    ranges: dict[int, RangeDigest] = field(default_factory=dict)
    findings: list[ScrubFinding] = field(default_factory=list)
    findings_dropped: int = 0
    done: bool = False

    @property
    def rows(self) -> int:
        """Number of valid rows, without those of the store itself."""
        return sum(found.rows for found in self.ranges.values())

    @property
    def clean(self) -> bool:
        """Whether all rows were read without a finding."""
        return self.done and not self.findings

    def find(self, finding: ScrubFinding) -> None:
        """Store a finding, or count it if there are too many."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_dropped += 1


class Scrub:
    """One pass over an open store in slices, so that it neither blocks the owner nor pins the file.

    Rows written before the current position are not part of this pass.
    """

    def __init__(self, store: Store | WalStore) -> None:
        self.report = ScrubReport()
        self._store = store
        self._next = b"\x00"

    def step(self, rows: int = 256) -> bool:
        """Check the next rows and return whether there are more."""
        if self.report.done:
            return False
        try:
            found = self._store.raw_scan(self._next, rows)
        except StoreDamaged as error:  # a page among these rows or later: rows after it are unreachable
            self.report.find(ScrubFinding("unreadable", self._next, str(error)))
            self.report.done = True
            return False
        self._check(found)
        if not self.report.done and len(found) < rows:
            self._finish()
        return not self.report.done

    def run(self, rows: int = 1024) -> ScrubReport:
        """Check all remaining rows."""
        while self.step(rows):
            pass
        return self.report

    def _check(self, rows: list[Row]) -> None:
        for key, record in rows:
            if key < self._next:
                self.report.find(ScrubFinding("order", key, "keys do not ascend"))
                self.report.done = True  # the cursor would loop
                return
            self._next = key + b"\x00"
            if decode_record(key, record) is None:
                self.report.find(ScrubFinding("record", key, "checksum"))
                continue
            if not key.startswith(RESERVED_PREFIX):
                self.report.ranges.setdefault(int.from_bytes(key[:2], "big"), RangeDigest()).add(key, record)
                self._seek(key)

    def _seek(self, key: bytes) -> None:
        try:
            if self._store.get(key) is None:
                self.report.find(ScrubFinding("seek", key, "a lookup does not find the row that a scan found"))
        except StoreError as error:
            self.report.find(ScrubFinding("seek", key, str(error)))

    def _finish(self) -> None:
        for finding in _store_findings(self._store):
            self.report.find(finding)
        self.report.done = True


def verify(path: Path, settings: StoreSettings | None = None) -> ScrubReport:
    """Check a stopped store at path; an error at open is a finding.

    Raises:
        StoreBusy, StoreUnavailable: There is no store to check.
    """
    try:
        store = Store.open_existing(path, settings or StoreSettings())
    except StoreError as error:
        if not isinstance(error, StoreUnverified):
            raise
        return ScrubReport(findings=[ScrubFinding("store", b"", str(error))], done=True)
    try:
        return Scrub(store).run()
    finally:
        store.close()


def _store_findings(store: Store | WalStore) -> Iterator[ScrubFinding]:
    """Yield disagreements between sentinel, newest commit and marker."""
    try:
        store.check_identity()
    except StoreError as error:
        yield ScrubFinding("store", b"", str(error))
