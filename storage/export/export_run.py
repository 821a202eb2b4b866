"""A complete export of a running cluster or of a stopped node's store, with one manifest.

It selects the node that exports each copy and the files of an older export to keep, and publishes the manifest. A
running node writes its runs itself, below the folder in the request: on one host, or on a shared file system.
``export`` decides the content of a run. A manifest lists all partitions of the cluster or is not written.

If a node dies or a partition moves during an export, its missing partitions are requested again from the nodes in the
next cluster map. Exported partitions stay exported. The export fails when no partition was finished for ``RETRY_S``.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from conf.errors import ExitCode, UserError
from storage.export.export_requests import ExportRequests, storage_nodes
from wire.sstable.manifest import (
    FileEntry,
    JobEntry,
    Manifest,
    ManifestDamaged,
    RingEntry,
    next_manifest,
    read_manifest,
)
from wire.sstable.manifest import publish_manifest as publish

__all__ = ["export_cluster", "export_store"]

Progress = Callable[[str], None]
POLL_S = 0.1
POLL_MAX_S = 1.0
RETRY_S = 60.0  # without a finished partition; a failover takes seconds
RETRY_PAUSE_S = 1.0
SLICE_ROWS = 4_000  # of a stopped store: no client waits
SYNCS_MAX = 4  # runs that are synced while the next is written; 12 were no faster


@dataclass(slots=True)
class _Draft:
    """A manifest in preparation."""

    root: Path
    folder: Path
    now_ms: int
    parent: Manifest | None
    incremental: bool
    replicas: bool = False  # every copy in sync, not only the primary's
    files: list[FileEntry] = field(default_factory=list)
    copies: dict[tuple[str, int], int] = field(default_factory=dict)  # (node, partition) -> op_index
    exported: set[int] = field(default_factory=set)  # partitions
    cut: list[int] = field(default_factory=list)
    full: set[tuple[str, int]] = field(default_factory=set)  # node, partition
    folders: list[Path] = field(default_factory=list)  # one for each request to a node

    def since(self, node: str) -> dict[str, int]:
        """Return the op_index up to which the older export has each partition's operations."""
        if not self.incremental or self.parent is None:
            return {}
        if self.replicas:
            return dict(self.parent.replica_op_index.get(node, {}))
        have = {str(entry.partition) for entry in self.parent.files}
        return {number: index for number, index in self.parent.op_index.items() if number in have or index == 0}

    def has(self, node: str, partition: int) -> bool:
        """Return whether a partition, or this node's copy of it, is exported."""
        return (node, partition) in self.copies if self.replicas else partition in self.exported

    def generations(self) -> dict[str, int]:
        """Return the next generation of each partition."""
        newest: dict[str, int] = {}
        for entry in self.parent.files if self.parent else ():
            newest[str(entry.partition)] = max(newest.get(str(entry.partition), 0), entry.generation)
        return {number: generation + 1 for number, generation in newest.items()}

    def take(self, node: str, export: dict[str, Any]) -> None:
        """Add one partition's result."""
        number = int(export["partition"])
        entries = [msgspec.convert(entry, FileEntry) for entry in export["files"]]
        for entry in entries:
            path = self.root / entry.path
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise UserError(f"{node} wrote {path}, but it is not here: --output must be a folder that nodes share")
        self.files += entries
        self.copies[node, number] = int(export["op_index"])
        self.exported.add(number)
        if export["full"]:
            self.full.add((node, number))
        if export["cut"]:
            self.cut.append(number)

    def publish(self, cluster: str, ring: RingEntry) -> dict[str, Any]:
        """Write the manifest; return a summary."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            writer = {"name": "stratamq store export", "version": version("stratamq")}
        except PackageNotFoundError:
            writer = {"name": "stratamq store export", "version": "0+unknown"}
        manifest = next_manifest(self.parent)
        carried: list[FileEntry] = []
        if self.incremental and self.parent is not None:
            rewritten = {number for _, number in self.full}
            carried = [entry for entry in self.parent.files if self._is_carried(entry, rewritten)]
        else:
            manifest.tombstone_horizon_seq = {}
            manifest.quarantine = []
        manifest.files = [*carried, *self.files]
        manifest.cluster_id, manifest.created_ms, manifest.writer, manifest.ring = cluster, self.now_ms, writer, ring
        manifest.op_index, manifest.replica_op_index = {}, {}
        for (node, number), op_index in self.copies.items():
            manifest.op_index[str(number)] = max(manifest.op_index.get(str(number), 0), op_index)
            if self.replicas:
                manifest.replica_op_index.setdefault(node, {})[str(number)] = op_index
        manifest.job = JobEntry(kind="export", now_ms=self.now_ms, run_id=self.folder.name)
        path = publish(self.root, manifest)
        return {
            "manifest": str(path),
            "rows": sum(entry.rows for entry in self.files),
            "files": len(self.files),
            "carried": len(carried),
            "bytes": sum(entry.bytes for entry in self.files),
            "full": not self.incremental or self.full == set(self.copies),
            "full_because_log_was_cut": sorted(set(self.cut)),
        }

    def _is_carried(self, entry: FileEntry, rewritten: set[int]) -> bool:
        """Return whether a file of the older export is still needed: its copy was exported as an increment."""
        if self.replicas:
            copy = (entry.node, entry.partition)
            return copy in self.copies and copy not in self.full
        return entry.partition not in rewritten

    def remove_unlisted(self) -> None:
        """Remove runs of requests that failed: no manifest lists them."""
        listed = {self.root / entry.path for entry in self.files}
        for folder in self.folders:
            for path in folder.glob("*"):
                if path not in listed:
                    path.unlink(missing_ok=True)
        for folder in (self.folder, *self.folders):
            with suppress(OSError):  # not empty
                folder.rmdir()

    def remove(self) -> None:
        """Remove all runs of this export."""
        for folder in (self.folder, *self.folders):
            shutil.rmtree(folder, ignore_errors=True)


def _draft(output: Path, since: Path | None, now_ms: int, *, replicas: bool = False) -> _Draft:
    root = output.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        parent = read_manifest(root)
    except FileNotFoundError:
        parent = None
    except ManifestDamaged as error:
        raise UserError(f"the newest manifest of {root} is damaged ({error}); choose another --output") from None
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror or error}") from None
    if since is not None:
        parent = _since(root, since, parent)
    folder = root / "runs" / f"export-{now_ms}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from None
    if since is not None and parent is not None and bool(parent.replica_op_index) != replicas:
        folder.rmdir()
        kind = "has" if parent.replica_op_index else "does not have"
        raise UserError(f"--since {since} {kind} the copies of each node (--replicas): export an increment alike")
    return _Draft(root, folder, now_ms, parent, since is not None, replicas)


def _since(root: Path, since: Path, parent: Manifest | None) -> Manifest:
    try:
        older = read_manifest(since)
    except OSError as error:  # also read_manifest's own: a folder without one
        raise UserError(f"--since {since}: {error.strerror or error}; name the manifest of an earlier export") from None
    except ManifestDamaged as error:
        raise UserError(f"--since {since}: {error}") from None
    if parent is None or since.absolute() not in (root, *root.glob("manifest-*.json")):
        raise UserError(f"--since {since} is no manifest of {root}: pass the newest manifest in --output")
    if older.manifest_no != parent.manifest_no:
        raise UserError(f"--since {since} is number {older.manifest_no}, but {parent.manifest_no} is the newest there")
    return older


def export_cluster(
    router: str, data: Path, output: Path, since: Path | None, now_ms: int, progress: Progress, *, replicas: bool
) -> dict[str, Any]:
    """Request the export of every storage node's primary partitions, or of all copies; return a summary.

    Raises:
        UserError: A node refused, or partitions could not be exported within ``RETRY_S``.
    """
    from wire.links.fast_path_run import run_plainly
    from wire.links.operator_access import find_access

    access = find_access(router, data)
    draft = _draft(output, since, now_ms, replicas=replicas)
    try:
        return run_plainly(_export_all, ExportRequests(access), draft, progress)
    except BaseException:
        draft.remove()
        raise


async def _export_all(cluster: ExportRequests, draft: _Draft, progress: Progress) -> dict[str, Any]:
    """Request missing partitions from the nodes of the current map until there are none; publish the manifest."""
    import trio

    finished, deadline, failures = -1, 0.0, ["no partition has a primary"]
    while True:
        if len(draft.copies) > finished:
            finished, deadline = len(draft.copies), trio.current_time() + RETRY_S
        try:
            status, ring = (
                await cluster.request_from_router("cluster status"),
                await cluster.request_from_router("ring show"),
            )
            nodes, wanted = storage_nodes(status), _missing(draft, ring["partitions"])
        except UserError as error:
            if error.exit_code != ExitCode.NOT_READY:
                raise
            nodes, wanted, failures = {}, {}, [error.message]
        else:
            if not any(wanted.values()):
                break
            failures = await _export_round(cluster, draft, progress, nodes, wanted) or failures
        if len(draft.copies) == finished:
            if trio.current_time() > deadline:
                raise UserError(_unexported(wanted, failures), ExitCode.NOT_READY)
            await trio.sleep(RETRY_PAUSE_S)
    placement = {
        str(number): [entry["primary"], *(node for node in entry["in_sync"] if node != entry["primary"])]
        for number, entry in enumerate(ring["partitions"])
    }
    entry = RingEntry(epoch=int(status["map_epoch"]), partitions=len(placement), placement=placement)
    summary = draft.publish(cluster.name, entry)
    draft.remove_unlisted()
    return summary


def _missing(draft: _Draft, partitions: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the partitions to request from each node of the map; "" has those without a primary."""
    wanted: dict[str, list[int]] = {}
    for number, entry in enumerate(partitions):
        nodes = entry["in_sync"] if draft.replicas and entry["in_sync"] else [entry["primary"]]
        for node in nodes:
            if not draft.has(str(node or ""), number):
                wanted.setdefault(str(node or ""), []).append(number)
    return wanted


def _unexported(wanted: dict[str, list[int]], failures: list[str]) -> str:
    numbers = sorted({number for missing in wanted.values() for number in missing})
    named = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
    missing = f"{len(numbers)} partitions are not exported ({named}): " if numbers else ""
    return f"no partition was exported for {RETRY_S:.0f} s; {missing}{'; '.join(failures)}"


async def _export_round(
    cluster: ExportRequests,
    draft: _Draft,
    progress: Progress,
    nodes: dict[str, str],
    wanted: dict[str, list[int]],
) -> list[str]:
    """Request partitions from all nodes at once; return the reasons for missing ones."""
    import trio

    failures: list[str] = []

    async def export_at(node: str, address: str) -> None:
        try:
            await _export_node(cluster, draft, progress, node, address, wanted[node])
        except _NodeFailed as error:
            failures.append(str(error))
            progress(f"{error}; its missing partitions are requested again")

    async with trio.open_nursery() as nursery:
        for node, address in sorted(nodes.items()):
            if wanted.get(node):
                nursery.start_soon(export_at, node, address)
    return failures


class _NodeFailed(Exception):
    """A node stopped answering, or a copy moved: another request can succeed."""


async def _export_node(
    cluster: ExportRequests, draft: _Draft, progress: Progress, node: str, address: str, partitions: list[int]
) -> None:
    """Request the export of partitions from one node, and add each result as soon as it is finished."""
    import trio

    folder = draft.folder.with_name(f"{draft.folder.name}-{len(draft.folders)}")
    draft.folders.append(folder)
    arguments: dict[str, object] = {
        "root": str(draft.root),
        "folder": str(folder),
        "now_ms": draft.now_ms,
        "replicas": draft.replicas,
        "since": draft.since(node),
        "generations": draft.generations(),
        "partitions": partitions,
    }
    taken, wait_s = 0, POLL_S
    try:
        state = await cluster.ask(address, "store export", arguments)
        while True:
            state = await cluster.ask(address, "store export status", {"after": taken})
            for export in state["exports"]:
                draft.take(node, export)
            taken += len(state["exports"])
            if state["exports"]:
                progress(f"{node}: {taken} of {state['partitions']} partitions, {state['rows']} rows")
            elif state["done"]:
                break
            else:
                await trio.sleep(wait_s)
                wait_s = min(wait_s * 1.5, POLL_MAX_S)
    except BaseException as error:
        with trio.move_on_after(5.0, shield=True), suppress(UserError):
            await cluster.ask(address, "store export cancel", {})
        if isinstance(error, UserError) and error.exit_code == ExitCode.NOT_READY:
            raise _NodeFailed(error.message) from None
        raise
    if state["error"]:
        if state["can_retry"]:
            raise _NodeFailed(f"{node}: {state['error']}")
        raise UserError(f"{node}: {state['error']}")


def export_store(store: Path, output: Path, since: Path | None, now_ms: int, progress: Progress) -> dict[str, Any]:
    """Export every partition of a stopped node's store; return a summary.

    Raises:
        UserError: It is open, damaged, or not a store.
    """
    from storage.export.export import ExportError, ExportTarget, PartitionExport, StoredCopy
    from storage.store.errors import StoreError
    from storage.store.settings import StoreSettings
    from storage.store.store import Store

    draft: _Draft | None = None
    try:
        opened = Store.open_existing(store, StoreSettings())
        try:
            draft = _draft(output, since, now_ms)
            identity = opened.identity()
            node = identity["node_id"]
            target = ExportTarget(draft.folder, draft.root, node, now_ms)
            since_index, generations = draft.since(node), draft.generations()
            numbers = _partitions(opened)
            exports = [
                PartitionExport(
                    StoredCopy(number, opened),
                    target,
                    generations.get(str(number), 1),
                    since_index.get(str(number)),
                    SLICE_ROWS,
                )
                for number in numbers
            ]
            with _without_collector():
                _run_steps(exports)
            for export in exports:
                draft.take(node, export.described())
            progress(f"{node}: {sum(entry.rows for entry in draft.files)} rows of {len(numbers)} partitions")
            return draft.publish(identity["cluster_id"], RingEntry(partitions=max(256, *(n + 1 for n in numbers), 0)))
        finally:
            opened.close()
    except (StoreError, ExportError) as error:
        raise UserError(str(error)) from None
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft.folder, ignore_errors=True)
        raise


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable Python's cycle collector: rows are tuples without cycles, and scanning them takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run_steps(exports: list[Any]) -> None:
    """Run the steps of all exports; while threads sync some runs, others are written."""
    waiting = list(reversed(exports))
    active: list[tuple[Any, Future[object]]] = []
    with ThreadPoolExecutor(SYNCS_MAX, thread_name_prefix="export") as pool:
        while waiting or active:
            if waiting and len(active) < SYNCS_MAX:
                steps = waiting.pop().steps()
            else:
                steps, work = active.pop(0)
                work.result()
            for step in steps:
                if step is not None:
                    active.append((steps, pool.submit(step)))
                    break


def _partitions(store: Any) -> list[int]:
    """Return the partitions that a store has rows of."""
    from storage.state import keys

    numbers: list[int] = []
    start = b"\x00"
    while rows := store.scan(start, None, 1):
        number = int.from_bytes(rows[0][0][:2], "big")
        numbers.append(number)
        start = keys.partition_range(number)[1]
    return numbers
