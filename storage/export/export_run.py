"""An export as a whole: of a running cluster or of a stopped node's store, ended by one manifest.

Decides which node exports which copies, which files of an older export are carried on, and publishes. A running node
writes its runs itself, below the folder named to it: on one host, or a file system that all nodes share. What a run
holds is decided in ``export``. A manifest lists all partitions of the cluster or there is none.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from conf.errors import UserError
from storage.export.questions import StorageQuestions, storage_nodes
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
SLICE_ROWS = 4_000  # of a stopped store: nobody waits
SYNCS_MAX = 4  # runs that are synced while the next is written; 12 were no faster


@dataclass(slots=True)
class _Draft:
    """A manifest to be."""

    root: Path
    folder: Path
    now_ms: int
    parent: Manifest | None
    incremental: bool
    files: list[FileEntry] = field(default_factory=list)
    op_index: dict[str, int] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    full: set[tuple[str, int]] = field(default_factory=set)  # node, partition

    def since(self, node: str, replicas: bool) -> dict[str, int]:
        """Return up to where the older export has each partition's operations."""
        if not self.incremental or self.parent is None:
            return {}
        have = {str(entry.partition) for entry in self.parent.files if not replicas or entry.node == node}
        return {number: index for number, index in self.parent.op_index.items() if number in have or index == 0}

    def generations(self) -> dict[str, int]:
        """Return the next generation of each partition."""
        newest: dict[str, int] = {}
        for entry in self.parent.files if self.parent else ():
            newest[str(entry.partition)] = max(newest.get(str(entry.partition), 0), entry.generation)
        return {number: generation + 1 for number, generation in newest.items()}

    def take(self, node: str, export: dict[str, Any]) -> None:
        """Take one partition's result."""
        number = int(export["partition"])
        entries = [msgspec.convert(entry, FileEntry) for entry in export["files"]]
        for entry in entries:
            path = self.root / entry.path
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise UserError(f"{node} wrote {path}, but it is not here: --output must be a folder that nodes share")
        self.files += entries
        key = str(number)
        self.op_index[key] = max(self.op_index.get(key, 0), int(export["op_index"]))
        if export["full"]:
            self.full.add((node, number))
        if export["cut"]:
            self.cut.append(number)

    def publish(self, cluster: str, ring: RingEntry) -> dict[str, Any]:
        """Write the manifest; return what is told about it."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            writer = {"name": "stratamq store export", "version": version("stratamq")}
        except PackageNotFoundError:
            writer = {"name": "stratamq store export", "version": "0+unknown"}
        manifest = next_manifest(self.parent)
        carried: list[FileEntry] = []
        if self.incremental and self.parent is not None:
            anew = {number for _, number in self.full}
            carried = [entry for entry in self.parent.files if entry.partition not in anew]
        else:
            manifest.tombstone_horizon_seq = {}
            manifest.quarantine = []
        manifest.files = [*carried, *self.files]
        manifest.cluster_id, manifest.created_ms, manifest.writer, manifest.ring = cluster, self.now_ms, writer, ring
        manifest.op_index = self.op_index
        manifest.job = JobEntry(kind="export", now_ms=self.now_ms, run_id=self.folder.name)
        path = publish(self.root, manifest)
        return {
            "manifest": str(path),
            "rows": sum(entry.rows for entry in self.files),
            "files": len(self.files),
            "carried": len(carried),
            "bytes": sum(entry.bytes for entry in self.files),
            "full": not self.incremental or len({n for _, n in self.full}) == len(self.op_index),
            "full_because_log_was_cut": sorted(self.cut),
        }


def _draft(output: Path, since: Path | None, now_ms: int) -> _Draft:
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
    return _Draft(root, folder, now_ms, parent, since is not None)


def _since(root: Path, since: Path, parent: Manifest | None) -> Manifest:
    try:
        older = read_manifest(since)
    except OSError as error:  # also read_manifest's own: a folder without one
        raise UserError(f"--since {since}: {error.strerror or error}; name the manifest of an earlier export") from None
    except ManifestDamaged as error:
        raise UserError(f"--since {since}: {error}") from None
    if parent is None or since.absolute() not in (root, *root.glob("manifest-*.json")):
        raise UserError(f"--since {since} is no manifest of {root}: an increment goes where its base is")
    if older.manifest_no != parent.manifest_no:
        raise UserError(f"--since {since} is number {older.manifest_no}, but {parent.manifest_no} is the newest there")
    return older


def export_cluster(
    router: str, data: Path, output: Path, since: Path | None, now_ms: int, progress: Progress, *, replicas: bool
) -> dict[str, Any]:
    """Have every storage node export the partitions that it is primary of, or all copies; return what was done.

    Raises:
        UserError: A node does not answer, or a partition was exported by nobody.
    """
    from wire.links.operator_access import find_access
    from wire.links.plain_run import run_plainly

    access = find_access(router, data)
    draft = _draft(output, since, now_ms)
    try:
        return run_plainly(_ask_all, StorageQuestions(access), draft, progress, replicas)
    except BaseException:
        shutil.rmtree(draft.folder, ignore_errors=True)
        raise


async def _ask_all(cluster: StorageQuestions, draft: _Draft, progress: Progress, replicas: bool) -> dict[str, Any]:
    import trio

    status = await cluster.ask_router("cluster status")
    ring = await cluster.ask_router("ring show")
    nodes = storage_nodes(status)
    async with trio.open_nursery() as nursery:
        for node, address in sorted(nodes.items()):
            nursery.start_soon(_export_node, cluster, draft, progress, node, address, replicas)
    placement = {
        str(number): [entry["primary"], *(node for node in entry["in_sync"] if node != entry["primary"])]
        for number, entry in enumerate(ring["partitions"])
    }
    missing = [number for number in range(len(placement)) if str(number) not in draft.op_index]
    if missing:
        named = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        raise UserError(f"{len(missing)} partitions were exported by nobody ({named}): they moved, or have no primary")
    entry = RingEntry(epoch=int(status["map_epoch"]), partitions=len(placement), placement=placement)
    return draft.publish(cluster.name, entry)


async def _export_node(
    cluster: StorageQuestions, draft: _Draft, progress: Progress, node: str, address: str, replicas: bool
) -> None:
    import trio

    arguments: dict[str, object] = {
        "root": str(draft.root),
        "folder": str(draft.folder),
        "now_ms": draft.now_ms,
        "replicas": replicas,
        "since": draft.since(node, replicas),
        "generations": draft.generations(),
    }
    told, wait_s = -1, POLL_S
    state = await cluster.ask(address, "store export", arguments)
    try:
        while not state["done"]:
            if state["finished"] != told:
                told = state["finished"]
                progress(f"{node}: {told} of {state['partitions']} partitions, {state['rows']} rows")
            await trio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, POLL_MAX_S)
            state = await cluster.ask(address, "store export status", {})
    except BaseException:
        with trio.move_on_after(5.0, shield=True):
            await cluster.ask(address, "store export cancel", {})
        raise
    if state["error"]:
        raise UserError(f"{node}: {state['error']}")
    for export in state["exports"]:
        draft.take(node, export)
    progress(f"{node}: {state['rows']} rows of {state['partitions']} partitions")


def export_store(store: Path, output: Path, since: Path | None, now_ms: int, progress: Progress) -> dict[str, Any]:
    """Export every partition of a stopped node's store; return what was done.

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
            since_index, generations = draft.since(node, False), draft.generations()
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
                _carry_out(exports)
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
    """Keep Python's cycle collector off: rows are tuples without cycles, and looking at them is a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _carry_out(exports: list[Any]) -> None:
    """Go through the steps of all exports; while some runs are synced by threads, others are written."""
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
