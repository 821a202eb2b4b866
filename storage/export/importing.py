"""Loads exported runs into the store of a stopped node: completely, or not at all.

Every file is compared with its manifest, and every row with its CRC, before the node's store is replaced. Rows go into
a new store beside it, which is synced and then renamed to the old one's name. The old one is kept, quarantined.

An imported copy has no history: its op_index continues from the export's, its log is empty, its operations have
partition_epoch 0. So a replica with another history replaces it and never mixes with it. If several nodes are to have
a partition, each imports it. Consumed entries (below a session's cumulative acknowledgement) are omitted.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from conf.errors import UserError
from storage.state import keys
from storage.state.rows import LocalRow, MetaRow, SessionRow, pack, unpack
from storage.store.errors import StoreError
from storage.store.quarantine import quarantine, store_files
from storage.store.settings import StoreSettings
from storage.store.store import Store
from wire.sstable.manifest import FileEntry, Manifest, ManifestDamaged, read_manifest
from wire.sstable.run_reader import RowDamaged, check_identity, iter_newest
from wire.sstable.schema import COLUMN_INDEX, COLUMNS, RowKind

__all__ = ["ImportRefused", "ImportResult", "import_runs"]

BATCH_ROWS = 4_000  # of one transaction: below autoflush, and a batch is quickly read again after a failure
PROGRESS_PARTITIONS = 16
_KEY, _VALUE, _SEQ, _KIND = (COLUMN_INDEX[name] for name in ("key", "value", "seq", "kind"))
_SESSION, _ENTRY = COLUMN_INDEX["session_id"], COLUMN_INDEX["session_seq"]
_OF_A_QUEUE = (keys.QUEUE, keys.INFLIGHT)


class ImportRefused(UserError):
    """The runs are damaged, incomplete or of another cluster; the store was not changed."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Amount of loaded data, and the path of the former store, if there was one."""

    rows: int
    finished: int  # consumed entries that were omitted
    partitions: int
    sessions: int
    former: Path | None


def import_runs(
    source: Path,
    store: Path,
    identity: tuple[str, str],
    settings: StoreSettings,
    progress: Callable[[str], None],
    *,
    any_cluster: bool = False,
) -> ImportResult:
    """Load the newest manifest of a folder into a store.

    Args:
        source: The manifest's directory, or a manifest.
        store: The store's file; its node is stopped.
        identity: Cluster and node that the new store belongs to.
        settings: Of the store.
        progress: Called with a line of text periodically.
        any_cluster: Accept runs of another cluster.

    Raises:
        ImportRefused: With the file and the reason.
        UserError: The node is running, or a disk operation failed.
    """
    manifest = _read(source)
    _check(manifest, identity[0], any_cluster=any_cluster)
    directory = source if source.is_dir() else source.parent
    lock = _lock_folder(store.parent)
    beside = store.with_name(store.name + ".importing")
    try:
        for left in store_files(beside):
            left.unlink(missing_ok=True)
        loader = _Loader(directory, manifest, Store.open(beside, *identity, settings))
        try:
            loader.run(progress)
        finally:
            loader.store.close()
        former = quarantine(store) if store.exists() else None
        for file, goal in zip(store_files(beside), store_files(store), strict=True):
            if file.exists() and not file.name.endswith("-lock"):
                file.rename(goal)
        _sync(store.parent)
    except StoreError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"import into {store}: {error.strerror or error}") from None
    finally:
        for left in store_files(beside):
            with suppress(OSError):
                left.unlink(missing_ok=True)
        os.close(lock)
    return ImportResult(loader.rows, loader.finished, len(manifest.op_index), loader.sessions, former)


def _read(source: Path) -> Manifest:
    try:
        return read_manifest(source)
    except FileNotFoundError:
        raise ImportRefused(f"{source}: no manifest there") from None
    except (OSError, ManifestDamaged) as error:
        raise ImportRefused(f"{source}: {error}") from None


def _check(manifest: Manifest, cluster: str, *, any_cluster: bool) -> None:
    """Validate the manifest itself."""
    name = f"manifest {manifest.manifest_no}"
    if manifest.cluster_id != cluster and not any_cluster:
        raise ImportRefused(f"{name} is of cluster {manifest.cluster_id!r}, the store of {cluster!r} (--any-cluster)")
    if [column["name"] for column in manifest.schema] != [column for column, _, _ in COLUMNS]:
        raise ImportRefused(f"{name}: its columns are not those of this version")
    if manifest.replica_op_index:
        raise ImportRefused(f"{name} holds the copies of each node (--replicas); import an export without --replicas")
    if manifest.quarantine:
        raise ImportRefused(f"{name}: rows are held in {manifest.quarantine[0]}; export again and compact")
    for entry in manifest.files:
        if entry.bad_rows:
            raise ImportRefused(f"{entry.path}: {entry.bad_rows} damaged rows")
        if entry.partition >= manifest.ring.partitions:
            raise ImportRefused(f"{entry.path}: partition {entry.partition} of {manifest.ring.partitions}")
        if str(entry.partition) not in manifest.op_index:
            raise ImportRefused(f"{entry.path}: the manifest has no op_index of its partition")


class _Loader:
    """Loads all partitions of a manifest into an empty store."""

    def __init__(self, directory: Path, manifest: Manifest, store: Store) -> None:
        self.store = store
        self.rows = 0
        self.finished = 0
        self.sessions = 0
        self._directory = directory
        self._manifest = manifest
        self._batch: list[tuple[bytes, bytes | None]] = []

    def run(self, progress: Callable[[str], None]) -> None:
        """Load all partitions.

        Raises:
            ImportRefused: A file differs from the manifest, or a row is damaged or misplaced.
        """
        numbers = self._manifest.partitions
        for done, number in enumerate(numbers, 1):
            self._load(number)
            if done % PROGRESS_PARTITIONS == 0 or done == len(numbers):
                progress(f"{done} of {len(numbers)} partitions, {self.rows} rows")
        self._flush()

    def _load(self, number: int) -> None:
        node, entries = self._runs_of(number)
        names = ", ".join(entry.path for entry in entries)
        for problem in filter(None, (check_identity(self._directory, entry) for entry in entries)):
            raise ImportRefused(problem)
        try:
            done = self._finished(entries)
            for key, value in self._rows(number, node):
                self._put(number, key, value, done)
        except RowDamaged as error:
            raise ImportRefused(f"{names}: {error}") from None
        except (msgspec.MsgspecError, OSError, ValueError) as error:
            raise ImportRefused(f"{names}: unreadable: {error}") from None

    def _runs_of(self, number: int) -> tuple[str, list[FileEntry]]:
        """Return one replica of a partition: of the primary when there are several."""
        entries = self._manifest.files_of(number)
        nodes = sorted({entry.node for entry in entries})
        if len(nodes) > 1:
            placed = self._manifest.ring.placement.get(str(number), [])
            node = next((name for name in placed if name in nodes), nodes[0])
            entries = [entry for entry in entries if entry.node == node]
        else:
            node = nodes[0]
        if not entries[0].full:
            raise ImportRefused(f"{entries[0].path}: an increment without its base")
        return node, entries

    def _rows(self, number: int, node: str) -> Iterator[tuple[bytes, bytes]]:
        for row in iter_newest(self._directory, self._manifest, number, node=node, verify=False):
            yield row[_KEY], row[_VALUE] or b""

    def _finished(self, entries: list[FileEntry]) -> dict[int, tuple[int, frozenset[int]]]:
        """Return the consumed entries of each session: upper bound, and gaps above.

        Session rows sort after their queues.
        """
        import pyarrow.parquet as pq

        names = ["session_id", "seq", "acked_up_to", "acked_gaps"]
        found: dict[int, tuple[int, int, frozenset[int]]] = {}
        for entry in entries:
            table = pq.read_table(
                self._directory / entry.path, columns=names, filters=[("kind", "==", int(RowKind.SESSION))]
            )
            for session, seq, up_to, gaps in zip(*(table.column(name).to_pylist() for name in names), strict=True):
                if session not in found or found[session][0] < seq:
                    found[session] = (seq, up_to or 0, frozenset(gaps or ()))
        return {session: (up_to, gaps) for session, (_, up_to, gaps) in found.items() if up_to or gaps}

    def _put(self, number: int, key: bytes, value: bytes, done: dict[int, tuple[int, frozenset[int]]]) -> None:
        if int.from_bytes(key[:2], "big") != number or len(key) < 3:
            raise ValueError(f"key {key.hex()} is not of partition {number}")
        kind = key[2:3]
        if kind in _OF_A_QUEUE:
            up_to, gaps = done.get(int.from_bytes(key[3:11], "big"), (0, frozenset()))
            session_seq = int.from_bytes(key[11:19], "big")
            if session_seq <= up_to or session_seq in gaps:
                self.finished += 1
                return
        elif kind == keys.META:
            meta = unpack(MetaRow, value)
            meta.partition_epoch = 0
            self._batch.append((keys.local_key(number), pack(LocalRow(log_start=meta.op_index + 1))))
            value = pack(meta)
        elif kind == keys.SESSION:
            self.sessions += 1
            self._check_placement(number, unpack(SessionRow, value).client_id)
        self.rows += 1
        self._batch.append((key, value))
        if len(self._batch) >= BATCH_ROWS:
            self._flush()

    def _check_placement(self, number: int, client_id: str) -> None:
        owner = crc32(client_id.encode()) % self._manifest.ring.partitions
        if owner != number:
            raise ValueError(f"the session of {client_id!r} belongs to partition {owner}, not {number}")

    def _flush(self) -> None:
        if self._batch:
            self.store.write(self._batch)
            self._batch = []


def _lock_folder(folder: Path) -> int:
    """Lock the node's folder, as its process does."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"the node of {folder} is running: stop it first") from None
    return descriptor


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
