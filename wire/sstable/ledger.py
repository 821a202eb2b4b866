"""The ack ledger: acknowledged messages at an edge and their fate in the partitions, written for the audit.

A ledger proves P1 and P3 afterwards: every acknowledged message is, for each durable session subscribed then,
delivered, queued, expired or dropped by a stated policy, and none twice for QoS 2. It is off by default (``LedgerSink``
discards all records). ``FileLedger`` appends JSON lines, which Spark reads directly, and rotates by size and age. It
never drops a record silently. When its space is used up it either stops permanently with an error, and the audit
reports the end of the proof, or refuses, and the caller must not acknowledge. Format: docs/jobs.md.

Every replica of a partition records the operations that it applies, so the death of one node leaves another's ledger;
the proof takes the union. Call ``flush`` with each group commit, before its acknowledgements leave: flushed records
survive the end of the process (not of the machine, unless ``sync``).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from conf.events import say

__all__ = [
    "LEDGER_SUFFIXES",
    "PICKED_MARK",
    "FileLedger",
    "LedgerOperation",
    "LedgerQueueFull",
    "LedgerRecord",
    "LedgerSink",
    "origin_mark",
    "origin_text",
    "picked_origin",
    "topic_hash",
]

logger = logging.getLogger(__name__)

LEDGER_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.open")
PICKED_MARK = "$"  # in an origin: precedes the hash of a shared subscription
_BUFFER_BYTES = 64 * 1024  # written to the file system at this size
_TAIL_BYTES = 1 << 20  # read at once to find the end of the last whole line
_COMPRESSIONS_MAX = 2  # waiting; a file beyond stays uncompressed, which costs space only


class LedgerQueueFull(RuntimeError):
    """The ledger's space is used up and its policy is ``refuse``: the caller must not acknowledge."""


class LedgerRecord(msgspec.Struct, omit_defaults=True):
    """One line about one event. Messages share lines: ``LedgerOperation``, ``LedgerSink.acks``."""

    e: str  # started stopped acked queued delivered expired dropped subscribed unsubscribed ended
    t: int  # UTC ms; of an acked record: when the PUBLISH was received
    o: str = ""  # origin
    q: int = 0  # QoS of the PUBLISH
    h: int = 0  # topic_hash of topic name or concrete filter; 0 unknown or with wildcards
    p: int = -1  # partition
    ps: Sequence[int] = ()  # partitions of the resolved route
    d: Sequence[tuple[int, int]] = ()  # sessions matched in the partition: (session_id, session_seq)
    s: int = 0  # session_id
    n: int = 0  # session_seq
    op: int = 0  # op_index
    pe: int = 0  # partition_epoch: operations after the op_index at which a later one started were never committed
    r: str = ""  # reason; of started: the tier


def origin_text(kind: int, origin_a: int, origin_b: int) -> str:
    """Return a message's origin without its mark."""
    return f"{kind}:{origin_a:x}:{origin_b:x}"


def origin_mark(kind: int, edge: str, share: str = "") -> str:
    """Return the suffix of an origin's text: the edge of its numbers (kind 0), and the shared subscription."""
    return (f"@{edge}" if kind == 0 else "") + (picked_origin("", share) if share else "")


def picked_origin(origin: str, share: str) -> str:
    """Return the origin of a shared subscription's copy, distinct from the ordinary one.

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


class LedgerOperation(msgspec.Struct, omit_defaults=True):
    """Messages of one operation of a partition, as rows with a shared context: the most frequent records."""

    p: int  # partition
    op: int  # op_index
    pe: int  # partition_epoch
    m: list[tuple[int | str, ...]] = []  # queued: kind, a, b, mark of the origin; QoS; session_id, session_seq, ...
    d: list[tuple[int, int, int]] = []  # delivered: session_id, first and last session_seq


class _Operations(msgspec.Struct, tag_field="e", tag="operations"):
    """The line of all operations between two flushes."""

    t: int
    b: list[LedgerOperation]


class LedgerSink:
    """Discards all records: the default. Times are UTC ms."""

    enabled = False

    def record(self, record: LedgerRecord) -> None:
        """Take one record."""

    def flush(self, now_ms: int = 0) -> None:
        """Pass buffered records to the operating system; without a time no file is complete by age."""

    def close(self, now_ms: int) -> None:
        """Close the ledger in order."""

    def began(self, now_ms: int, partition: int, partition_epoch: int, op_index: int) -> None:
        """A primary starts an epoch: operations of lower epochs after this op_index were never committed."""
        if self.enabled:
            self.record(LedgerRecord("began", now_ms, p=partition, op=op_index, pe=partition_epoch))

    def operation(self, operation: LedgerOperation) -> None:
        """Record an operation of a partition; it must not be committed before the next ``flush``."""

    def acks(self, now_ms: int, edge: str, rows: bytes, count: int) -> None:
        """Record an edge's acknowledgements and pass them to the operating system: they may be sent afterwards.

        Args:
            now_ms: Now.
            edge: Its name.
            rows: JSON arrays, each followed by a comma: origin kind, a and b, QoS, UTC ms of arrival, topic hash, and
                the partitions of the resolved route.
            count: Number of rows.
        """


class FileLedger(LedgerSink):
    """Appends records to ``<node>-<incarnation>-<number>.jsonl.open``; complete files lose the ``.open``.

    Args:
        directory: Of this node alone; created.
        rotate_bytes: A file is complete at this size (uncompressed).
        rotate_s: Or at this age.
        total_bytes_max: Of the directory, files of former incarnations included.
        when_full: ``stop`` recording (the broker continues, the proof ends there), or ``refuse`` with LedgerQueueFull.
        sync: fdatasync in each flush; costs a disk sync, survives power loss.
        loud: Called once with a sentence when the ledger is full or cannot be written; None: it is logged.
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
        self._loud = loud or _log
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._buffered = 0
        self._operations: list[LedgerOperation] = []
        self._latest_ms = now_ms
        self._total_bytes = self._adopt()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="ledger", initializer=_give_way)
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
            LedgerQueueFull: With ``when_full="refuse"``, when the space is used up.
        """
        if self.stopped_reason:
            self._refuse(1)
            return
        line = self._encode(record)
        self._lines.append(line)
        self._latest_ms = record.t
        self._buffered += len(line) + 1
        if self._buffered >= _BUFFER_BYTES:
            self.flush()

    def operation(self, operation: LedgerOperation) -> None:
        """Record an operation of a partition; refused and counted once the ledger has stopped."""
        if self.stopped_reason:
            self._refuse(len(operation.m) + len(operation.d))
        else:
            self._operations.append(operation)

    def acks(self, now_ms: int, edge: str, rows: bytes, count: int) -> None:
        """Record acknowledgements of one edge; refused and counted once the ledger has stopped.

        Args:
            now_ms: ms since 1970.
            edge: Its name.
            rows: JSON rows, each followed by a comma.
            count: Number of rows.
        """
        if self.stopped_reason:
            self._refuse(count)
            return
        self._lines.append(b'{"e":"acks","t":%d,"o":%s,"k":[%s]}' % (now_ms, self._encode(edge), rows[:-1]))
        self.flush(now_ms)

    def _refuse(self, count: int) -> None:
        self.unrecorded += count
        if self._when_full == "refuse":
            raise LedgerQueueFull(self.stopped_reason)

    def flush(self, now_ms: int = 0) -> None:
        """Write buffered records; a failed write stops the ledger with an error."""
        if now_ms:
            self._latest_ms = now_ms
        if self._operations:
            operations, self._operations = self._operations, []
            self._lines.append(self._encode(_Operations(self._latest_ms, operations)))
        if not self._lines or self.stopped_reason:
            return
        self._lines.append(b"")
        data = b"\n".join(self._lines)
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
            self._settle_compressions(wait=False)
            if self._total_bytes >= self._total_bytes_max:
                self._stop(f"ledger {self._directory} is full: {self._total_bytes} bytes")
                return
        if self._file_bytes >= self._rotate_bytes or self._latest_ms >= self._rotate_at_ms:
            self._complete()
            self._open(self._latest_ms)

    def _stop(self, reason: str) -> None:
        self.stopped_reason = reason
        line = msgspec.json.encode(LedgerRecord("stopped", self._rotate_at_ms - self._rotate_ms, r=f"full: {reason}"))
        try:
            _write_all(self._fd, line + b"\n")
        except OSError:
            pass  # the disk failed; the error callback remains
        self._loud(reason)

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
        """Record a complete end, close the last file and wait for its compression."""
        if not self.stopped_reason:
            self.record(LedgerRecord("stopped", now_ms, r="closed"))
            self.flush()
        self._complete()
        self._settle_compressions()
        self._background.shutdown()


def _log(problem: str) -> None:
    say(logger, "ledger.failed", problem=problem)


def _give_way() -> None:
    """Compress at low priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # per thread on Linux


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line: its records were never flushed, so no acknowledgement depends on them."""
    with path.open("rb+") as file:
        size = at = file.seek(0, os.SEEK_END)
        end = -1
        while at > 0 and end < 0:
            at = max(0, at - _TAIL_BYTES)
            file.seek(at)
            end = file.read(_TAIL_BYTES).rfind(b"\n")
        if at + end + 1 < size:
            file.truncate(at + end + 1)


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
