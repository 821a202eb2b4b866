"""The compaction of the benchmark's store by a Python heap merge and by DuckDB, and the comparison row for row."""

from __future__ import annotations

from pathlib import Path

from bench.jobs_store import NOW_MS
from wire.sstable.manifest import Manifest, read_manifest
from wire.sstable.schema import COLUMN_INDEX, Row, RowKind
from wire.sstable.writer import RunWriter

__all__ = ["differences", "duckdb_merge", "heap_merge"]


def heap_merge(directory: Path, store: Manifest) -> None:
    """The same rules over a heap merge, one partition after the other."""
    from wire.sstable.run_reader import iter_rows, merge_rows

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


def duckdb_merge(directory: Path, store: Manifest) -> bool:
    """The same in SQL, on two threads; False without DuckDB."""
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


def differences(directory: Path, with_duckdb: bool) -> tuple[int, list[str]]:
    """Compare every column of every row, in order, of all results; return the rows and the differences."""
    import pyarrow.parquet as pq

    from wire.sstable.schema import arrow_schema

    schema = arrow_schema()
    total = 0
    wrong: list[str] = []
    for entry in read_manifest(directory / "spark").files:
        ours = pq.read_table(directory / "spark" / entry.path).select(schema.names).cast(schema)
        for other in ["heap", "duckdb"] if with_duckdb else ["heap"]:
            theirs = pq.read_table(directory / other / f"{entry.partition}.parquet").select(schema.names).cast(schema)
            if not ours.equals(theirs):
                wrong.append(f"partition {entry.partition}: {other} has another result")
        total += ours.num_rows
    return total, wrong
