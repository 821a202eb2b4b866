"""The ack ledger: what an edge acknowledged and what became of it in the partitions, written aside for the audit.

A ledger proves P1 and P3 afterwards: every acknowledged message is, for each durable session subscribed then,
delivered, queued, expired or dropped by a stated policy, and none twice for QoS 2. It is off by default: the sink that
does nothing is ``LedgerSink``. ``FileLedger`` appends JSON lines, which Spark reads as they are, and rotates by size
and age. It never drops a record silently: when its space is used up it either stops, loudly and for good, and the
audit says from when on nothing is proven, or refuses, and then the caller must not acknowledge. Format: docs/jobs.md.

Every replica of a partition records what it applies, so that the death of one node leaves another's ledger; the proof
takes the union. Call ``flush`` with each group commit, before its acknowledgements leave: what was flushed survives
the end of the process (not of the machine, unless ``sync``).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

__all__ = [
    "LEDGER_SUFFIXES",
    "PICKED_MARK",
    "FileLedger",
    "LedgerFull",
    "LedgerRecord",
    "LedgerSink",
    "origin_text",
    "picked_origin",
    "topic_hash",
]

LEDGER_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.open")
PICKED_MARK = "$"  # in an origin: behind it the hash of a shared group
_BUFFER_BYTES = 64 * 1024  # handed to the file system at the latest when this much has gathered
_TAIL_BYTES = 1 << 20  # longer than any line
_COMPRESSIONS_MAX = 2  # waiting; a file beyond stays uncompressed, which costs space only


class LedgerFull(RuntimeError):
    """The ledger's space is used up and its policy is to refuse: the caller must not acknowledge."""


class LedgerRecord(msgspec.Struct, omit_defaults=True):
    """One line. Names are short because there is one line per message."""

    e: str  # started stopped acked queued delivered expired dropped subscribed unsubscribed ended
    t: int  # UTC ms; of an acked record: when the PUBLISH was received
    o: str = ""  # origin
    q: int = 0  # QoS of the PUBLISH
    h: int = 0  # topic_hash of topic name or concrete filter; 0 unknown or with wildcards
    p: int = -1  # partition
    ps: Sequence[int] = ()  # partitions that the resolution named
    d: Sequence[tuple[int, int]] = ()  # sessions matched in the partition: (session_id, session_seq)
    s: int = 0  # session_id
    n: int = 0  # session_seq
    op: int = 0  # op_index
    pe: int = 0  # partition_epoch: what stands behind the op_index at which a later one began was never committed
    r: str = ""  # reason; of started: the tier


def origin_text(kind: int, origin_a: int, origin_b: int, edge: str) -> str:
    """Return a message's origin; numbers that an edge gave (kind 0) are unique only with its name."""
    return f"{kind}:{origin_a:x}:{origin_b:x}" if kind else f"0:{origin_a:x}:{origin_b:x}@{edge}"


def picked_origin(origin: str, share: str) -> str:
    """Return the origin of the copy that a shared group gets, told from the ordinary one.

    Args:
        origin: Of the message.
        share: Share name, slash, topic filter.
    """
    return f"{origin}{PICKED_MARK}{topic_hash(share):x}"


@lru_cache(maxsize=65_536)
def topic_hash(topic: str) -> int:
    """Return a 63-bit hash of a topic name or concrete filter; equal topics agree in every node, never 0."""
    digest = hashlib.blake2b(topic.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


class LedgerSink:
    """Takes what happens and forgets it: the default. Times are UTC ms."""

    enabled = False

    def record(self, record: LedgerRecord) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Hand what was recorded to the operating system."""

    def close(self, now_ms: int) -> None:
        """End the ledger in good order."""

    def acked(self, now_ms: int, origin: str, qos: int, topic: str, partitions: Sequence[int]) -> None:
        """An edge sends PUBACK or PUBREC; now_ms is when it received the PUBLISH."""
        if self.enabled:
            self.record(LedgerRecord("acked", now_ms, origin, qos, topic_hash(topic), ps=partitions))

    def acked_hash(self, now_ms: int, origin: str, qos: int, hashed: int, partitions: Sequence[int]) -> None:
        """``acked``, for who knows the topic's hash."""
        if self.enabled:
            self.record(LedgerRecord("acked", now_ms, origin, qos, hashed, ps=partitions))

    def began(self, now_ms: int, partition: int, partition_epoch: int, op_index: int) -> None:
        """A primary begins an epoch: operations of lower epochs behind this op_index were never committed."""
        if self.enabled:
            self.record(LedgerRecord("began", now_ms, p=partition, op=op_index, pe=partition_epoch))

    def queued(
        self,
        now_ms: int,
        origin: str,
        qos: int,
        partition: int,
        op_index: int,
        sessions: Sequence[tuple[int, int]],
        partition_epoch: int = 0,
    ) -> None:
        """A message is in an operation: these durable sessions matched, under these session_seq; possibly none."""
        if self.enabled:
            record = LedgerRecord("queued", now_ms, origin, qos, p=partition, d=sessions, op=op_index)
            record.pe = partition_epoch
            self.record(record)

    def finished(
        self,
        event: Literal["delivered", "expired", "dropped"],
        now_ms: int,
        partition: int,
        session_id: int,
        session_seq: int,
        reason: str = "",
    ) -> None:
        """An entry left its queue: PUBACK or PUBCOMP committed, expired, or dropped for a reason."""
        if self.enabled:
            self.record(LedgerRecord(event, now_ms, p=partition, s=session_id, n=session_seq, r=reason))

    def dropped_on_arrival(self, now_ms: int, origin: str, partition: int, session_id: int, reason: str) -> None:
        """A matched session did not get the message at all, by a stated policy (queue bound, withdrawn access)."""
        if self.enabled:
            self.record(LedgerRecord("dropped", now_ms, origin, p=partition, s=session_id, r=reason))

    def subscribed(self, now_ms: int, partition: int, session_id: int, topic_filter: str) -> None:
        """A durable session's SUBACK leaves: QoS 1 or 2, not shared, without No Local, no wildcard in the filter."""
        if self.enabled:
            self.record(LedgerRecord("subscribed", now_ms, h=topic_hash(topic_filter), p=partition, s=session_id))

    def unsubscribed(self, now_ms: int, partition: int, session_id: int, topic_filter: str) -> None:
        """The subscription begins to end: record it before anything is removed."""
        if self.enabled:
            self.record(LedgerRecord("unsubscribed", now_ms, h=topic_hash(topic_filter), p=partition, s=session_id))

    def ended(self, now_ms: int, partition: int, session_id: int, reason: str) -> None:
        """A session ended with all its entries: clean start, expiry, deleted by the operator."""
        if self.enabled:
            self.record(LedgerRecord("ended", now_ms, p=partition, s=session_id, r=reason))


class FileLedger(LedgerSink):
    """Appends records to ``<node>-<incarnation>-<number>.jsonl.open``; complete files lose the ``.open``.

    Args:
        directory: Of this node alone; created.
        rotate_bytes: A file is complete at this size (uncompressed).
        rotate_s: Or at this age.
        total_bytes_max: Of the directory, files of former incarnations included.
        when_full: ``stop`` recording (the broker goes on, the proof ends there), or ``refuse`` with LedgerFull.
        sync: fdatasync in each flush; costs a disk sync, survives power loss.
        loud: Called once with a sentence when the ledger is full or cannot be written.
    """

    enabled = True

    def __init__(
        self,
        directory: Path,
        node: str,
        incarnation: int,
        tier: str,
        now_ms: int,
        *,
        rotate_bytes: int = 64 << 20,
        rotate_s: float = 600.0,
        total_bytes_max: int = 8 << 30,
        when_full: Literal["stop", "refuse"] = "stop",
        sync: bool = False,
        loud: Callable[[str], None] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.stopped_reason = ""
        self.unrecorded = 0  # records refused or not taken since the ledger stopped; a counter for /metrics
        self._directory = directory
        self._name = f"{node}-{incarnation}"
        self._rotate_bytes = rotate_bytes
        self._rotate_ms = int(rotate_s * 1000)
        self._total_bytes_max = total_bytes_max
        self._when_full = when_full
        self._sync = sync
        self._loud = loud or _quiet
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._buffered = 0
        self._total_bytes = self._adopt()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._compressing: list[Future[int]] = []
        self._number = 0
        self._open(now_ms)
        self.record(LedgerRecord("started", now_ms, r=tier))
        self.flush()

    def _adopt(self) -> int:
        """Complete the files that a killed process left open; return the bytes in the directory."""
        for left in self._directory.glob("*.jsonl.open"):
            _cut_torn_line(left)
            left.rename(left.with_suffix(""))
        for partial in self._directory.glob("*.tmp"):
            partial.unlink()
        return sum(path.stat().st_size for path in self._directory.iterdir())

    def _open(self, now_ms: int) -> None:
        self._number += 1
        self._path = self._directory / f"{self._name}-{self._number:06d}.jsonl.open"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._file_bytes = 0
        self._rotate_at_ms = now_ms + self._rotate_ms

    def record(self, record: LedgerRecord) -> None:
        """Take one record.

        Raises:
            LedgerFull: With ``when_full="refuse"``, when the space is used up.
        """
        if self.stopped_reason:
            self.unrecorded += 1
            if self._when_full == "refuse":
                raise LedgerFull(self.stopped_reason)
            return
        line = self._encode(record)
        self._lines.append(line)
        self._buffered += len(line) + 1
        if self._buffered >= _BUFFER_BYTES:
            self.flush()
        if self._file_bytes >= self._rotate_bytes or record.t >= self._rotate_at_ms:
            self._rotate(record.t)

    def flush(self) -> None:
        """Write out what is buffered; a write that fails stops the ledger loudly."""
        if not self._lines or self.stopped_reason:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines, self._buffered = [], 0
        try:
            _write_all(self._fd, data)
            if self._sync:
                os.fdatasync(self._fd)
        except OSError as error:
            self._stop(f"ledger {self._path} cannot be written: {error}")
            return
        self._file_bytes += len(data)
        self._total_bytes += len(data)
        if self._total_bytes >= self._total_bytes_max:
            self._settle_compressions()
            if self._total_bytes >= self._total_bytes_max:
                self._stop(f"ledger {self._directory} is full: {self._total_bytes} bytes")

    def _stop(self, reason: str) -> None:
        self.stopped_reason = reason
        line = msgspec.json.encode(LedgerRecord("stopped", self._rotate_at_ms - self._rotate_ms, r=f"full: {reason}"))
        try:
            _write_all(self._fd, line + b"\n")
        except OSError:
            pass  # the disk is the reason; the loud call is what is left
        self._loud(reason)

    def _rotate(self, now_ms: int) -> None:
        self.flush()
        self._complete()
        self._open(now_ms)

    def _complete(self) -> None:
        os.close(self._fd)
        complete = self._path.with_suffix("")
        self._path.rename(complete)
        self._settle_compressions(wait=False)
        if len(self._compressing) < _COMPRESSIONS_MAX:
            self._compressing.append(self._background.submit(_compress, complete))

    def _settle_compressions(self, wait: bool = True) -> None:
        waiting = []
        for job in self._compressing:
            if wait or job.done():
                self._total_bytes -= job.result()
            else:
                waiting.append(job)
        self._compressing = waiting

    def close(self, now_ms: int) -> None:
        """Say that nothing is missing at the end, complete the last file and wait for its compression."""
        if not self.stopped_reason:
            self.record(LedgerRecord("stopped", now_ms, r="closed"))
            self.flush()
        self._complete()
        self._settle_compressions()
        self._background.shutdown()


def _quiet(_text: str) -> None:
    pass


def _cut_torn_line(path: Path) -> None:
    """Remove a last line without its end: its record was never flushed whole, so nothing relied on it."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        tail_at = max(0, size - _TAIL_BYTES)
        file.seek(tail_at)
        end = file.read().rfind(b"\n")
        if end >= 0 and tail_at + end + 1 < size:
            file.truncate(tail_at + end + 1)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _compress(path: Path) -> int:
    """Replace a complete file by its gzip; return the bytes saved."""
    temporary = path.with_name(path.name + ".gz.tmp")
    with path.open("rb") as plain, gzip.open(temporary, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(plain, packed, 1 << 20)
    saved = path.stat().st_size - temporary.stat().st_size
    temporary.rename(path.with_name(path.name + ".gz"))
    path.unlink()
    return saved
