"""Operators' commands at a running storage node: exports, and the state of its copies.

One export at a time. It runs on the loop between iterations, in slices with pauses, so that clients do not wait for
it; blocking disk work goes to a thread. The runs are garbage until the operator's command publishes a manifest that
lists them. Commands: ``store export`` begins, ``store export status`` reports, ``store export cancel`` ends. ``store
copies`` describes copies of partitions, ``store aside`` lists quarantined stores.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from access.operators.commands import Operator, Refusal, judge
from conf.errors import ExitCode, UserError
from conf.events import say
from storage.export.export import ExportError, ExportTarget, PartitionExport, PrimaryMoved
from storage.state.partition import Reads
from storage.state.rows import MetaRow
from storage.store.errors import StoreError, StoreFatal
from storage.store.quarantined_stores import QuarantinedStores
from storage.store.wal_store import WalStore
from wire.messages.hello import TIER_STORAGE
from wire.messages.operators import Admin, AdminReply

__all__ = ["Exporter"]

logger = logging.getLogger(__name__)

PAUSE_S = 0.002  # between two slices of about 2 ms: an export takes at most half of the loop's idle time
STATUS_EXPORTS_MAX = 256  # partitions in one reply
WAIT_COMMITTED_S = 30.0  # without progress: too few copies are in sync


class PartitionCopies(Protocol):
    """The copies of partitions at this node; read only (``storage/hosting/live_copies.py``)."""

    @property
    def node(self) -> str:
        """Name of the node."""

    def served(self) -> list[int]:
        """Return the partitions with this node as primary, ascending."""

    def in_sync(self) -> list[int]:
        """Return the partitions that the map lists as in sync at this node, ascending."""

    def committed(self, number: int, *, was_primary: bool) -> int:
        """Return the commit index of a partition, or -1."""

    def served_ms(self, number: int, meta: MetaRow) -> int:
        """Return the current served clock of a partition."""

    def describe(self, numbers: Iterable[int]) -> dict[str, str]:
        """Return a text about the state of each copy, by number."""


@dataclass(frozen=True, slots=True)
class _LiveCopy:
    """A copy of a partition that changes meanwhile."""

    number: int
    store: Reads
    copies: PartitionCopies
    was_primary: bool

    @property
    def committed(self) -> int:
        return self.copies.committed(self.number, was_primary=self.was_primary)

    def served_ms(self, meta: MetaRow) -> int:
        return self.copies.served_ms(self.number, meta)


@dataclass(slots=True)
class _Job:
    """The current export, or the last one."""

    target: ExportTarget
    partitions: list[int]
    since: dict[int, int]
    generations: dict[int, int]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: bool = False
    error: str = ""
    can_retry: bool = False  # the error may not occur at another node, or later
    current: PartitionExport | None = None
    finished: list[PartitionExport] = field(default_factory=list)


class Exporter:
    """Serves an operator's ``store`` commands at a storage node.

    Args:
        copies: The node's copies of partitions.
        store: Their rows.
        spawn: Starts a task of the service.
        export_dir: The folder for exports.
        aside: The stores that this node quarantined.
        count_quarantined: Called with their number, at once and after each removal, for the node's heartbeats.
    """

    def __init__(
        self,
        copies: PartitionCopies,
        store: WalStore,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        export_dir: Path,
        aside: QuarantinedStores,
        count_quarantined: Callable[[int], None],
    ) -> None:
        self._copies = copies
        self._count_quarantined = count_quarantined
        count_quarantined(len(aside))
        self._export_dir = export_dir
        self._aside = aside
        self._store = store
        self._spawn = spawn
        self._job: _Job | None = None
        self.rows = 0  # exported since start
        self.refused = 0  # commands: of another role, or not for this tier

    def ask(self, question: Admin, operator: Operator | None) -> AdminReply:
        """Reply to one command, if this operator is authorized."""
        verbs: dict[str, Callable[[dict[str, Any]], object]] = {
            "store export": self._begin,
            "store export status": lambda wanted: self._status(wanted["after"]),
            "store export cancel": lambda _: self._cancel(),
            "store aside": lambda _: self._aside.listed(),
            "store aside remove": self._remove_quarantined,
            "store copies": lambda wanted: self._copies.describe(wanted["partitions"]),
        }
        try:
            _, judged = judge(question, operator, TIER_STORAGE)
            return AdminReply(question.request, True, verbs[question.verb](msgspec.structs.asdict(judged)))
        except Refusal as error:
            self.refused += 1
            return AdminReply(question.request, False, None, f"{self._copies.node}: {error}", ExitCode.USAGE)
        except UserError as error:
            return AdminReply(question.request, False, None, error.message, error.exit_code)
        except OSError as error:
            return AdminReply(question.request, False, None, f"{self._copies.node}: {error}", ExitCode.FAILED)

    def _begin(self, arguments: dict[str, Any]) -> dict[str, object]:
        root, folder = self._permitted(Path(arguments["root"]), Path(arguments["folder"]))
        if self._job is not None and not self._job.done:
            if (self._job.target.root, self._job.target.now_ms) != (root, arguments["now_ms"]):
                raise UserError(f"{self._copies.node} is exporting already; see `store export status`, or cancel it")
            self._job.scope.cancel()  # of the same export: its link broke, and the client requests the rest again
        folder.mkdir(parents=True, exist_ok=True)
        target = ExportTarget(folder, root, self._copies.node, arguments["now_ms"])
        held = self._copies.in_sync() if arguments["replicas"] else self._copies.served()
        if arguments["partitions"] is not None:
            wanted = set(arguments["partitions"])
            held = [number for number in held if number in wanted]
        since = {int(number): index for number, index in arguments["since"].items()}
        generations = {int(number): value for number, value in arguments["generations"].items()}
        self._job = job = _Job(target, held, since, generations)
        self._spawn(partial(self._run, job))
        return self._status()

    def _remove_quarantined(self, arguments: dict[str, Any]) -> dict[str, object]:
        removed = self._aside.remove(arguments["name"], dry_run=arguments["dry_run"])
        self._count_quarantined(len(self._aside))
        return removed

    def _permitted(self, root: Path, folder: Path) -> tuple[Path, Path]:
        """Return the folders of an export with links resolved: other folders are not permitted."""
        try:
            root, folder, permitted = root.resolve(), folder.resolve(), self._export_dir.resolve()
        except (OSError, RuntimeError) as error:
            raise UserError(f"{self._copies.node}: {error}") from None
        if root not in folder.parents or not (permitted == root or permitted in root.parents):
            raise UserError(
                f"{self._copies.node} exports below {permitted} only (storage.export_dir), not to {folder}",
                ExitCode.USAGE,
            )
        return root, folder

    def _status(self, after: int | None = None) -> dict[str, object]:
        job = self._job
        if job is None:
            raise UserError("no export was asked for since this node started")
        status: dict[str, object] = {
            "node": self._copies.node,
            "done": job.done,
            "error": job.error,
            "can_retry": job.can_retry,
            "partitions": len(job.partitions),
            "finished": len(job.finished),
            "rows": sum(export.rows for export in job.finished) + (job.current.rows if job.current else 0),
        }
        if after is not None:
            status["exports"] = [export.described() for export in job.finished[after : after + STATUS_EXPORTS_MAX]]
        return status

    def _cancel(self) -> dict[str, object]:
        if self._job is not None:
            self._job.scope.cancel()
        return self._status()

    # --- the work

    async def _run(self, job: _Job) -> None:
        try:
            with job.scope:
                for number in job.partitions:
                    copy = _LiveCopy(number, self._store, self._copies, number in self._copies.served())
                    export = PartitionExport(copy, job.target, job.generations.get(number, 1), job.since.get(number))
                    job.current = export
                    await self._export(export)
                    job.finished.append(export)
                    job.current = None
            job.error = "cancelled" if job.scope.cancelled_caught else ""
        except (ExportError, StoreError, OSError) as error:
            if isinstance(error, StoreFatal):
                raise
            job.error, job.can_retry = str(error), isinstance(error, PrimaryMoved)
            say(logger, "export.ended", why=error)
        finally:
            job.done = True

    async def _export(self, export: PartitionExport) -> None:
        steps = export.steps()
        waited_since = trio.current_time()
        rows = -1
        try:
            for step in steps:
                if step is not None:
                    await trio.to_thread.run_sync(step)
                    continue
                self._store.require_room()  # the runs may be on the same disk
                if export.rows != rows:
                    rows, waited_since = export.rows, trio.current_time()
                elif trio.current_time() - waited_since > WAIT_COMMITTED_S:
                    raise PrimaryMoved(
                        f"partition {export.copy.number}: its operations are not committed by its copies"
                    )
                await trio.sleep(PAUSE_S)
        finally:
            steps.close()
        self.rows += export.rows
