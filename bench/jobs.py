"""Compaction and audit at size: rates, linearity, and the same merge by a Python heap and by DuckDB.

    python -m bench.jobs                       # 1, 2, 4 and 8 million rows, the last side by side
    python -m bench.jobs --rows 16             # one size, in millions

Each size is a store of 16 partitions and 4 generations with queues, sessions that finish entries, tombstones and
superseded versions, about 150 bytes a row. Everything runs in this order on one machine; rates depend on what else it
does, so the load average is printed, and next to each rate, in brackets, what the CPU time used would give on two free
cores. Results of the three merges are compared row for row, every column.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from wire.manifest import Manifest, RingEntry, publish_manifest, read_manifest
from wire.sstable import COLUMN_INDEX, EntryState, Row, RowKind, RunWriter, make_row

PARTITIONS = 16
GENERATIONS = 4
SESSIONS = 400  # per partition
NOW_MS = 1_750_000_000_000
_VALUE_BYTES = 110


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    words.add_argument("--rows", type=float, nargs="*", default=[1, 2, 4, 8], help="millions of rows, ascending")
    words.add_argument("--directory", type=Path, help="where to work; default: a temporary directory")
    words.add_argument("--driver-memory-mb", type=int, default=6144)
    words.add_argument("--alone", action="store_true", help="leave the heap merge and DuckDB out")
    arguments = words.parse_args()
    from jobs.spark import open_session

    started = time.perf_counter()
    spark = open_session("stratamq-bench", master="local[2]", driver_memory_mb=arguments.driver_memory_mb)
    print(f"session {time.perf_counter() - started:.1f} s; load average {os.getloadavg()[0]:.1f}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="stratamq-bench-", dir=arguments.directory))
    try:
        warm = generate(root / "warm", 100_000)
        _spark(spark, root / "warm", warm)
        print("rows  MB  merge+write rows/s  published rows/s  audit s  audit/compaction  us per row", flush=True)
        for millions in arguments.rows:
            directory = root / f"{millions}"
            store = generate(directory, int(millions * 1_000_000))
            seconds = _spark(spark, directory, store)
            _print(store, seconds)
            if millions == max(arguments.rows) and not arguments.alone:
                _side_by_side(directory, store, seconds)
            shutil.rmtree(directory)
    finally:
        spark.stop()
        shutil.rmtree(root)
    return 0


# -- input -------------------------------------------------------------------------------------------------------------


def generate(directory: Path, rows: int) -> Manifest:
    """Write a store of about that many rows and return its manifest."""
    directory.mkdir(parents=True)
    per_session = max(8, rows // (PARTITIONS * GENERATIONS * SESSIONS))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(_partition, directory, p, per_session) for p in range(PARTITIONS)]
        files = [entry for job in jobs for entry in job.result()]
    manifest = Manifest(manifest_no=1, ring=RingEntry(partitions=PARTITIONS), created_ms=NOW_MS, files=files)
    publish_manifest(directory, manifest)
    return manifest


def _partition(directory: Path, partition: int, per_session: int) -> list[Any]:
    """Four generations of one partition: entries queued, some sent, the oldest finished."""
    blob = os.urandom(32 << 20)
    offsets = memoryview(os.urandom(8 << 20)).cast("I")
    head = partition.to_bytes(2, "big")
    entries, op_index, drawn = [], 0, 0
    queues = [(1, 1) for _ in range(SESSIONS)]  # oldest, next session_seq
    for generation in range(1, GENERATIONS + 1):
        rows: list[Row] = []
        for number in range(SESSIONS):
            session_id = number * PARTITIONS + partition + 1
            wide = session_id.to_bytes(8, "big")
            oldest, following = queues[number]
            finish = per_session // 4 if generation > 1 else 0
            send = per_session // 4 if generation > 1 else 0
            begin = op_index

            def put(kind: RowKind, key: bytes, value: bytes | None, rows: list[Row] = rows, **typed: Any) -> None:
                nonlocal op_index
                op_index += 1
                rows.append(make_row(partition, kind, head + bytes((kind,)) + key, op_index, value, epoch=1, **typed))

            put(RowKind.SESSION, wide, b"", session_id=session_id, acked_up_to=oldest + finish - 1)
            for seq in range(oldest, oldest + finish, 2):  # the other half is left to the session row
                put(RowKind.QUEUED, wide + seq.to_bytes(8, "big"), None, tombstone=True, session_id=session_id,
                    session_seq=seq)  # fmt: skip
            oldest += finish
            for seq in [*range(oldest, oldest + send), *range(following, following + per_session - finish // 2 - send)]:
                at = offsets[drawn % len(offsets)] % (len(blob) - _VALUE_BYTES)
                drawn += 1
                sent = seq < following
                put(RowKind.QUEUED, wide + seq.to_bytes(8, "big"), blob[at : at + _VALUE_BYTES],
                    session_id=session_id, session_seq=seq, packet_identifier=seq % 65_535 + 1 if sent else None,
                    state=EntryState.SENT if sent else EntryState.QUEUED, origin=f"e{seq % 7}/1/{begin + seq}",
                    expiry_ms=NOW_MS - 1 if seq % 50 == 7 else 0)  # fmt: skip
            queues[number] = (oldest, following + per_session - finish // 2 - send)
        rows.sort(key=lambda row: row[3])
        path = directory / f"p{partition:05d}-g{generation:06d}.parquet"
        with RunWriter(path, partition, generation=generation, full=generation == 1, now_ms=NOW_MS) as run:
            run.write(rows)
        entries.append(run.entry)
    return entries


# -- Spark -------------------------------------------------------------------------------------------------------------


class _Stopwatch:
    """Wall and CPU seconds of the driver's JVM and of this process."""

    def __init__(self, spark: Any) -> None:
        self._stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat")
        self.begin()

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._cpu_now()

    def _cpu_now(self) -> float:
        ticks = self._stat.read_text().rpartition(")")[2].split()[11:13]  # user and system
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + time.process_time()

    def read(self) -> tuple[float, float]:
        """Return wall seconds since begin, and the seconds that the CPU time used would take on two cores."""
        return time.perf_counter() - self._wall, (self._cpu_now() - self._cpu) / 2


def _spark(spark: Any, directory: Path, store: Manifest) -> dict[str, tuple[float, float]]:
    from jobs.audit import run_audit
    from jobs.compact import run_compact

    seconds: dict[str, tuple[float, float]] = {}
    watch = _Stopwatch(spark)

    def step(name: str) -> None:
        seconds[name] = watch.read()

    result = run_compact(str(directory), str(directory / "spark"), NOW_MS, spark=spark, step=step)
    assert result.rows_in == store.totals["rows"] and not result.findings
    watch.begin()
    audit = run_audit([str(directory)], spark=spark)
    seconds["audit"] = watch.read()
    assert not audit.findings, audit.counts
    return seconds


def _rate(rows: int, seconds: tuple[float, float]) -> str:
    return f"{rows / seconds[0]:.0f} [{rows / seconds[1]:.0f}]"


def _print(store: Manifest, seconds: dict[str, tuple[float, float]]) -> None:
    rows = store.totals["rows"]
    published, audit = seconds["published"], seconds["audit"]
    print(
        f"{rows:>9}  {store.totals['bytes'] / 1e6:.0f}  {_rate(rows, seconds['written'])}  {_rate(rows, published)}  "
        f"{audit[0]:.1f} [{audit[1]:.1f}]  {audit[0] / published[0]:.2f} [{audit[1] / published[1]:.2f}]  "
        f"{published[0] / rows * 1e6:.2f} [{published[1] / rows * 1e6:.2f}]  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


# -- the others --------------------------------------------------------------------------------------------------------


def _side_by_side(directory: Path, store: Manifest, seconds: dict[str, tuple[float, float]]) -> None:
    rows = store.totals["rows"]
    began = time.perf_counter(), time.process_time()
    _heap(directory, store)
    heap = time.perf_counter() - began[0], time.process_time() - began[1]
    began = time.perf_counter(), time.process_time()
    with_duckdb = _duckdb(directory, store)
    duck = time.perf_counter() - began[0], (time.process_time() - began[1]) / 2
    print("merge, filter, write sorted runs: rows/s (crc of every row checked?)")
    print(f"  Spark local[2]      {_rate(rows, seconds['written'])} (yes)")
    print(f"  Python heap, 1 core {_rate(rows, heap)} (yes)")
    if with_duckdb:
        print(f"  DuckDB, 2 threads   {_rate(rows, duck)} (no: it has no crc32)")
    _compare(directory, with_duckdb)


def _heap(directory: Path, store: Manifest) -> None:
    """The same rules over a heap merge, one partition after the other."""
    from wire.run_reader import iter_rows, merge_rows

    at = COLUMN_INDEX
    kind_at, seq_at, session_at, expiry_at = at["kind"], at["session_seq"], at["session_id"], at["expiry_ms"]
    tombstone_at, identifier_at, acked_at = at["tombstone"], at["packet_identifier"], at["acked_up_to"]
    (directory / "heap").mkdir()
    for partition in store.partitions:
        runs = [iter_rows(directory / f.path) for f in store.files_of(partition)]
        acked: dict[int, int] = {}
        with RunWriter(directory / "heap" / f"{partition}.parquet", partition, generation=4, level=1) as out:
            batch: list[Row] = []
            for row in merge_rows(runs):  # SESSION rows sort before the entries of their partition
                if row[tombstone_at]:
                    continue
                if row[kind_at] == RowKind.SESSION:
                    acked[row[session_at]] = row[acked_at]
                elif row[seq_at] <= acked.get(row[session_at], -1) or (
                    0 < row[expiry_at] <= NOW_MS and row[identifier_at] is None
                ):
                    continue
                batch.append(row)
                if len(batch) == 2_000:
                    out.write(batch)
                    batch = []
            out.write(batch)


def _duckdb(directory: Path, store: Manifest) -> bool:
    try:
        import duckdb
    except ImportError:
        return False
    (directory / "duckdb").mkdir()
    connection = duckdb.connect()
    connection.sql("SET threads = 2; SET memory_limit = '6GB'; SET preserve_insertion_order = true")
    connection.sql(f"SET temp_directory = '{directory / 'duckdb'}'")
    for partition in store.partitions:
        files = [str(directory / f.path) for f in store.files_of(partition)]
        connection.sql(
            f"""COPY (
              WITH newest AS (SELECT * FROM read_parquet({files!r})
                QUALIFY row_number() OVER (PARTITION BY key ORDER BY seq DESC, epoch DESC, crc DESC) = 1),
              acked AS (SELECT session_id, max(acked_up_to) AS up_to FROM newest WHERE kind = 1 GROUP BY 1)
              SELECT newest.* FROM newest LEFT JOIN acked USING (session_id)
              WHERE NOT tombstone
                AND NOT (kind = 3 AND coalesce(session_seq <= up_to, false))
                AND NOT (kind = 3 AND expiry_ms BETWEEN 1 AND {NOW_MS} AND packet_identifier IS NULL)
              ORDER BY key
            ) TO '{directory / "duckdb" / f"{partition}.parquet"}' (FORMAT parquet, COMPRESSION zstd)"""
        )
    return True


def _compare(directory: Path, with_duckdb: bool) -> None:
    """Every column of every row, in order, of all results."""
    import pyarrow.parquet as pq

    from wire.sstable import arrow_schema

    schema = arrow_schema()
    total = 0
    for entry in read_manifest(directory / "spark").files:
        ours = pq.read_table(directory / "spark" / entry.path).select(schema.names).cast(schema)
        for other in ["heap", "duckdb"] if with_duckdb else ["heap"]:
            theirs = pq.read_table(directory / other / f"{entry.partition}.parquet").select(schema.names).cast(schema)
            if not ours.equals(theirs):
                raise SystemExit(f"partition {entry.partition}: {other} has another result")
        total += ours.num_rows
    print(f"results identical row for row: {total} rows")


if __name__ == "__main__":
    sys.exit(main())
