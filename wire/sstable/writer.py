"""The writer of one sorted run: an SSTable and its entry of the manifest.

Converts rows to a Parquet file that is complete and synced under its name, or absent, and counts the values of its
``FileEntry``. Columns are in ``wire/sstable/schema.py``. pyarrow is imported when a run is written, not before.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from operator import lt, xor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.synced_folder import sync_folder
from wire.sstable.manifest import FileEntry
from wire.sstable.schema import COLUMN_INDEX, Row, arrow_schema, digest_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ROW_GROUP_ROWS", "RunOrderError", "RunWriter"]

ROW_GROUP_ROWS = 100_000  # between 64 k and 128 k: statistics prune, and a reader holds few rows at a time
_BATCH_ROWS_MAX = 2_000  # rows turned into columns at a time: 50_000 take twice as long, they leave the cache
_DICTIONARY_COLUMNS = ["partition", "client_id", "kind", "epoch"]  # never key or value: all different
_WRITE_BYTES = 1 << 20  # Parquet writes page by page: each one would wait for the interpreter


class RunOrderError(ValueError):
    """Rows were out of key order, duplicate, or of another partition: a bug of the caller, the run is not written."""


class _HashingFile:
    """A file for Parquet's writer that hashes the bytes passed to it, not those read back."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("xb")
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.sha256.update(view)
        self.file.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self.file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True  # the owner syncs and closes


class RunWriter:
    """Writes one run: rows of one partition in strictly ascending key order, one version per key.

    The file appears under its name when ``close`` returns, complete and synced; before that it is ``<name>.tmp``.

        with RunWriter(directory / "p00007-g000003.parquet", 7, generation=3, node="s1", now_ms=now) as run:
            run.write(rows)  # as often as needed, any number of tuples
        entry = run.entry

    Args:
        path: The file to create; it must not exist.
        partition: Every row's partition.
        generation: Age of the run among those of its partition; higher is newer.
        level: 0 for an export, 1 and above for a compacted run.
        node: The storage node whose replica this is.
        full: The run is a base: it needs no older generation.
        now_ms: UTC ms against which ``expired_at_write`` is counted.
        root: Directory of the manifest; the entry's path is relative to it. Default: the file's own directory.
        unsorted: Skip the order check (damaged files for tests).
    """

    def __init__(
        self,
        path: Path,
        partition: int,
        *,
        generation: int,
        level: int = 0,
        node: str = "",
        shard: int = 0,
        full: bool = False,
        now_ms: int = 0,
        root: Path | None = None,
        compression_level: int = 1,
        unsorted: bool = False,
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self.entry = FileEntry(
            path=path.relative_to(root or path.parent).as_posix(),
            partition=partition,
            level=level,
            generation=generation,
            shard=shard,
            node=node,
            full=full,
            written_ms=now_ms,
        )
        self._pa = pa
        self._schema = arrow_schema()
        self._unsorted = unsorted
        self._temporary = path.with_name(path.name + ".tmp")
        self._temporary.unlink(missing_ok=True)  # of a writer that died
        if path.exists():
            raise FileExistsError(path)
        self._file = _HashingFile(self._temporary)
        self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), _WRITE_BYTES)
        self._writer = pq.ParquetWriter(
            self._buffered,
            self._schema,
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=True,
            write_page_checksum=True,
            write_page_index=True,
            sorting_columns=[pq.SortingColumn(COLUMN_INDEX["key"])],
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix="run-writer")
        self._writing: Future[None] | None = None
        self._pending: list[Any] = []  # Arrow batches of the row group under way
        self._pending_rows = 0
        self._last_key: bytes | None = None
        self._first_key: bytes | None = None
        self._crc_sum = 0
        self._seq_xor = 0
        self._kinds: Counter[int] = Counter()

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, in key order within and across calls.

        Raises:
            RunOrderError: If a key is not above the one before, or a row is of another partition.
        """
        for start in range(0, len(rows), _BATCH_ROWS_MAX):
            self._write_batch(rows[start : start + _BATCH_ROWS_MAX])

    def _write_batch(self, rows: Sequence[Row]) -> None:
        columns = dict(zip(COLUMN_INDEX, zip(*rows, strict=True), strict=True))
        keys = columns["key"]
        if not self._unsorted:
            self._check_order(keys, columns["partition"])
        self._last_key = keys[-1]
        self._count(columns, len(rows))
        arrays = [self._array(columns[field.name], field.type, len(rows)) for field in self._schema]
        self._pending.append(self._pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._pending_rows += len(rows)
        if self._pending_rows >= ROW_GROUP_ROWS:
            self._flush_row_group()

    def _check_order(self, keys: tuple[bytes, ...], partitions: tuple[int, ...]) -> None:
        if self._last_key is not None and self._last_key >= keys[0]:
            raise RunOrderError(f"key {keys[0].hex()} after {self._last_key.hex()}")
        if not all(map(lt, keys, keys[1:])):
            raise RunOrderError("keys of a batch are not strictly ascending")
        if partitions.count(self.entry.partition) != len(partitions):
            raise RunOrderError(f"row of another partition in a run of partition {self.entry.partition}")

    def _count(self, columns: dict[str, tuple[Any, ...]], rows: int) -> None:
        """Fold a batch into the manifest entry; column-wise, as this is half of the writer's cost."""
        entry = self.entry
        keys, seqs, epochs = columns["key"], columns["seq"], columns["epoch"]
        low, high = (min(keys), max(keys)) if self._unsorted else (keys[0], keys[-1])
        first = entry.rows == 0
        entry.key_min_hex = low.hex() if first else min(entry.key_min_hex, low.hex())
        entry.key_max_hex = high.hex() if first else max(entry.key_max_hex, high.hex())
        entry.seq_min = min(seqs) if first else min(entry.seq_min, min(seqs))
        entry.seq_max = max(entry.seq_max, max(seqs))
        entry.epoch_min = min(epochs) if first else min(entry.epoch_min, min(epochs))
        entry.epoch_max = max(entry.epoch_max, max(epochs))
        entry.tombstones += columns["tombstone"].count(True)
        expiries = columns["expiry_ms"]
        if expiries.count(0) != rows:
            timed = [ms for ms in expiries if ms]
            entry.min_expiry_ms = min(timed + ([entry.min_expiry_ms] if entry.min_expiry_ms else []))
            entry.expired_at_write += sum(ms <= entry.written_ms for ms in timed)
        entry.live_bytes += sum(map(len, keys)) + sum(map(len, filter(None, columns["value"])))
        self._crc_sum += sum(columns["crc"])
        self._seq_xor = reduce(xor, seqs, self._seq_xor)
        self._kinds.update(columns["kind"])
        entry.rows += rows

    def _array(self, values: tuple[Any, ...], arrow_type: Any, rows: int) -> Any:
        first = values[0]
        if first is None and values.count(None) == rows:
            return self._pa.nulls(rows, arrow_type)
        if first is not None and values[-1] is first and values.count(first) == rows:  # counted in a tenth of the time
            return self._pa.repeat(self._pa.scalar(first, arrow_type), rows)
        return self._pa.array(values, arrow_type)

    def _flush_row_group(self) -> None:
        """Compress and write in the background (pyarrow lets the interpreter run on), one row group at a time."""
        self._finish_row_group()
        if self._pending_rows:
            table = self._pa.Table.from_batches(self._pending, self._schema)
            self._writing = self._background.submit(self._writer.write_table, table, ROW_GROUP_ROWS)
            self._pending = []
            self._pending_rows = 0

    def _finish_row_group(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> FileEntry:
        """Finish, sync and name the file; return its manifest entry."""
        try:
            self._flush_row_group()
            self._finish_row_group()
            self._writer.close()
            self._buffered.close()
        except BaseException:
            self.abort()
            raise
        self._background.shutdown()
        self._file.file.flush()
        os.fsync(self._file.file.fileno())
        self._file.file.close()
        os.link(self._temporary, self.path)  # never over another run
        self._temporary.unlink()
        sync_folder(self.path.parent)
        self.entry.bytes = self._file.bytes
        self.entry.sha256 = self._file.sha256.hexdigest()
        self.entry.digest = digest_of(self._crc_sum, self._seq_xor)
        self.entry.kinds = {str(kind): count for kind, count in sorted(self._kinds.items())}
        return self.entry

    def abort(self) -> None:
        """Drop the unfinished file."""
        self._background.shutdown(wait=True, cancel_futures=True)
        with suppress(Exception):
            self._writer.close()  # while its file is open, else it complains when collected
        with suppress(Exception):
            self._buffered.close()
        self._file.file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
