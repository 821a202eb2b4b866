"""The audit log of a running node: a thread writes records in order, many lines per sync.

At most ``LINES_MAX`` lines are queued. While the disk or the queue is full, lines of unauthenticated peers are dropped
and counted; verbs are refused instead. After a failed write, a line with the number of missing ones is retried, so
verbs are accepted again when the disk has space. The queue is written when the process stops.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import trio

from access.operators.audit_chain import AuditRecord
from access.operators.audit_file import AuditFile, AuditFileError
from access.operators.audit_notes import AuditNotes
from conf.errors import UserError
from conf.events import say
from conf.metrics import Metrics
from conf.node_settings import NodeSettings
from wire.clock import boot_time
from wire.node.reload import Reloaded

__all__ = ["AuditService"]

logger = logging.getLogger(__name__)

LINES_MAX = 1_024
RETRY_S = 1.0  # between retries of a failed write
NAME = "audit.jsonl"


def _ignore(_: str) -> None:
    pass


class AuditService:
    """The audit log of one node.

    Args:
        node: Its settings.
        folder: Of its data.

    Raises:
        UserError: The file is unusable.
    """

    def __init__(self, node: NodeSettings, folder: Path) -> None:
        path = node.audit_file or folder / NAME
        try:
            self._file = AuditFile(path, node.audit_room_bytes_min, node.audit_file_bytes_max)
        except AuditFileError as error:
            raise UserError(str(error)) from None
        self._notes = AuditNotes()
        self._waiting: list[tuple[AuditRecord, Callable[[str], None]]] = []
        self._came = trio.Event()
        self._last_error = ""  # error of the last write
        self._retry_at = 0.0
        self._missing = 0  # lines since the last successful write
        self.came: Callable[[], None] = lambda: None  # wakes an event loop, as the edge's
        self.counts = {"written": 0, "left_out": 0, "failed": 0}
        if self._file.torn is not None:
            self._waiting.append((self._file.torn, _ignore))
        self._waiting.append((AuditRecord("start", "done", arguments={"node": node.id}), _ignore))

    def register(self, metrics: Metrics) -> None:
        """Register metrics of lines by outcome, and of writability."""
        metrics.counter(
            "audit_lines_total",
            "Audit lines: written, dropped because the disk or queue is full, failed.",
            lambda: {(what,): float(count) for what, count in self.counts.items()},
            ("outcome",),
        )
        metrics.gauge("audit_writable", "1 while the audit log can be written.", lambda: float(not self.refusal()))

    def refusal(self) -> str:
        """Return why records cannot be written, "" if they can."""
        if len(self._waiting) >= LINES_MAX:
            return f"{LINES_MAX} lines of the audit wait for the disk: ask again"
        return self._file.refusal()

    def note(self, record: AuditRecord) -> None:
        """Write a record soon; equal ones are counted."""
        self._notes.note(boot_time(), record)
        self._wake()

    def write(self, record: AuditRecord, then: Callable[[str], None]) -> None:
        """Write a record; ``then`` is called with "" when it is on disk, or with the error."""
        if len(self._waiting) >= LINES_MAX:
            self.counts["left_out"] += 1
            then(self.refusal())
            return
        self._waiting.append((record, then))
        self._wake()

    def _wake(self) -> None:
        self._came.set()
        self.came()

    def reloaded(self, outcome: Reloaded) -> None:
        """Record the changes of a reload, or its refusal."""
        lines = "; ".join(outcome.lines) or "nothing differs"
        self.write(AuditRecord("reload", "done" if outcome.ok else "refused", reason=lines), _ignore)

    async def run(self) -> None:
        """Write until cancelled; then write the queue."""
        try:
            while True:
                self._take_notes(self._notes.take(boot_time()))
                if self._last_error and not self._waiting and boot_time() >= self._retry_at:
                    self._waiting.append((self._gap(), _ignore))
                if self._waiting:
                    await self._write()
                    continue
                self._came = trio.Event()
                deadline = min(self._notes.next_deadline(), self._retry_at if self._last_error else math.inf)
                with trio.move_on_after(max(0.0, deadline - boot_time())):
                    await self._came.wait()
        finally:
            self._take_notes(self._notes.take_all())
            if self._waiting:
                await self._write()
            self._file.close()

    def _gap(self) -> AuditRecord:
        """Return a record with the number of lines that could not be written."""
        return AuditRecord("gap", "done", reason=self._last_error, count=max(1, self._missing))

    def _take_notes(self, records: list[AuditRecord]) -> None:
        for record in records:
            if self.refusal():
                self.counts["left_out"] += record.count
                self._missing += record.count
            else:
                self._waiting.append((record, _ignore))

    async def _write(self) -> None:
        batch, self._waiting = self._waiting, []
        problem = ""
        if self._last_error and batch[0][0].kind != "gap":
            batch.insert(0, (self._gap(), _ignore))
        records = [record for record, _ in batch]
        try:
            with trio.CancelScope(shield=True):  # taken records are written, or their callers get the error
                await trio.to_thread.run_sync(self._file.append, records, time.time())
        except AuditFileError as error:
            problem = str(error)
        except (RuntimeError, OSError, MemoryError) as error:  # no thread is available
            problem = f"the audit was not written: {error or type(error).__name__}"
        if problem:
            failed = sum(record.kind != "gap" for record in records)  # a retry record does not count as missing
            self.counts["failed"] += failed
            self._missing += failed
            self._retry_at = boot_time() + RETRY_S
        else:
            self.counts["written"] += len(batch)
            self._missing = 0
        if problem and problem != self._last_error:
            say(logger, "audit.failed", problem=problem)
        elif self._last_error and not problem:
            say(logger, "audit.written_again")
        self._last_error = problem
        for _, then in batch:
            then(problem)
