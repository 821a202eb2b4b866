"""The audit of one node while it runs: what is written goes to the disk in a thread, in order, many lines in one sync.

Bounded: ``LINES_MAX`` lines wait at most. What strangers cause is left out, and counted, while there is no room or too
much waits; a verb is told so instead. After a write that failed a line is tried again and again that says how many are
missing: a disk that was full for a moment refuses verbs no longer. At the end of the process all that waits is written.
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
RETRY_S = 1.0  # between tries of a file that cannot be written
NAME = "audit.jsonl"


def _nobody(_: str) -> None:
    pass


class AuditService:
    """The audit of one node.

    Args:
        node: Its settings.
        folder: Of its data.
    Raises:
        UserError: The file cannot be used.
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
        self._said = ""  # why the last write failed
        self._retry_at = 0.0
        self._missing = 0  # lines since the last one that was written
        self.came: Callable[[], None] = lambda: None  # of a loop that has to be woken, as the edge's
        self.counts = {"written": 0, "left_out": 0, "failed": 0}
        if self._file.torn is not None:
            self._waiting.append((self._file.torn, _nobody))
        self._waiting.append((AuditRecord("start", "done", arguments={"node": node.id}), _nobody))

    def register(self, metrics: Metrics) -> None:
        """Show lines by what became of them, and whether verbs that change something are taken."""
        metrics.counter(
            "audit_lines_total",
            "Lines of the audit: written, left out for want of room, failed.",
            lambda: {(what,): float(count) for what, count in self.counts.items()},
            ("outcome",),
        )
        metrics.gauge("audit_writable", "1 while the audit has room.", lambda: float(not self.refusal()))

    def refusal(self) -> str:
        """Return why nothing can be written, "" if it can."""
        if len(self._waiting) >= LINES_MAX:
            return f"{LINES_MAX} lines of the audit wait for the disk: ask again"
        return self._file.refusal()

    def note(self, record: AuditRecord) -> None:
        """Write a record soon; the same again is counted."""
        self._notes.note(boot_time(), record)
        self._wake()

    def write(self, record: AuditRecord, then: Callable[[str], None]) -> None:
        """Write a record; ``then`` is told "" when it is on the disk, or why it is not."""
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
        """Write what a reload changed, or that it was refused."""
        lines = "; ".join(outcome.lines) or "nothing differs"
        self.write(AuditRecord("reload", "done" if outcome.ok else "refused", reason=lines), _nobody)

    async def run(self) -> None:
        """Write until cancelled; then what is left."""
        try:
            while True:
                self._take_notes(self._notes.take(boot_time()))
                if self._said and not self._waiting and boot_time() >= self._retry_at:
                    self._waiting.append((self._gap(), _nobody))
                if self._waiting:
                    await self._write()
                    continue
                self._came = trio.Event()
                deadline = min(self._notes.next_deadline(), self._retry_at if self._said else math.inf)
                with trio.move_on_after(max(0.0, deadline - boot_time())):
                    await self._came.wait()
        finally:
            self._take_notes(self._notes.take_all())
            if self._waiting:
                await self._write()
            self._file.close()

    def _gap(self) -> AuditRecord:
        """Return the line that stands for those that could not be written."""
        return AuditRecord("gap", "done", reason=self._said, count=max(1, self._missing))

    def _take_notes(self, records: list[AuditRecord]) -> None:
        for record in records:
            if self.refusal():
                self.counts["left_out"] += record.count
                self._missing += record.count
            else:
                self._waiting.append((record, _nobody))

    async def _write(self) -> None:
        batch, self._waiting = self._waiting, []
        problem = ""
        if self._said and batch[0][0].kind != "gap":
            batch.insert(0, (self._gap(), _nobody))
        records = [record for record, _ in batch]
        try:
            with trio.CancelScope(shield=True):  # what was taken is written, or its askers are told
                await trio.to_thread.run_sync(self._file.append, records, time.time())
        except AuditFileError as error:
            problem = str(error)
        except (RuntimeError, OSError, MemoryError) as error:  # no thread to be had
            problem = f"the audit was not written: {error or type(error).__name__}"
        if problem:
            failed = sum(record.kind != "gap" for record in records)  # what only tries is no line that is missing
            self.counts["failed"] += failed
            self._missing += failed
            self._retry_at = boot_time() + RETRY_S
        else:
            self.counts["written"] += len(batch)
            self._missing = 0
        if problem and problem != self._said:
            say(logger, "audit.failed", problem=problem)
        elif self._said and not problem:
            say(logger, "audit.written_again")
        self._said = problem
        for _, then in batch:
            then(problem)
