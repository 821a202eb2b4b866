"""Compaction: kept and removed rows, and a store that is always in the old or the new state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import compact
from jobs.compaction import CompactionFailed, run_compact
from jobs.findings import JobExitCode
from jobs.selection import CompactionPolicy
from tests.jobs.generator import NOW_MS, add_generation, generate
from tests.jobs.reference import compacted, newest
from wire.sstable.manifest import FileEntry, ManifestExists, next_manifest, publish_manifest, read_manifest
from wire.sstable.run_reader import iter_newest, iter_rows, verify_manifest
from wire.sstable.schema import COLUMN_INDEX
from wire.sstable.writer import RunWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = CompactionPolicy(everything=True)


def _rows(directory: Path, partition: int) -> list[tuple[Any, ...]]:
    files = read_manifest(directory).files_of(partition)
    return [row for f in files for row in iter_rows(directory / f.path)]


def _rewrite(directory: Path, entry: FileEntry, change: Any) -> None:
    """Rewrite a file with changed rows and a matching manifest entry: damage before the export."""
    rows = change(list(iter_rows(directory / entry.path)))
    (directory / entry.path).unlink()
    with RunWriter(
        directory / entry.path, entry.partition, generation=entry.generation, node=entry.node, full=entry.full,
        now_ms=entry.written_ms, root=directory, unsorted=True,
    ) as run:  # fmt: skip
        run.write(rows)
    draft = next_manifest(read_manifest(directory))
    draft.files = [run.entry if f.path == entry.path else f for f in draft.files]
    publish_manifest(directory, draft)


@pytest.mark.parametrize("seed", [1, 2])
def test_result_equals_a_heap_merge_row_for_row(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Every partition's run has the reference's rows in its order, in every column."""
    store = generate(tmp_path / "in", seed)
    result = run_compact(str(tmp_path / "in"), str(tmp_path / "out"), NOW_MS, spark=spark)
    assert result.exit_code == JobExitCode.CLEAN
    assert min(result.removed.values()) > 0, "the generator must give every reason for removal work"
    for partition in range(4):
        assert _rows(tmp_path / "out", partition) == compacted(tmp_path / "in", store.manifest, partition, NOW_MS)
    after = read_manifest(tmp_path / "out")
    assert verify_manifest(tmp_path / "out") == []
    assert [(f.partition, f.level, f.full) for f in after.files] == [(p, 1, True) for p in range(4)]
    assert result.rows_in == store.manifest.totals["rows"]
    assert not [p for p in (tmp_path / "out").rglob("*") if p.suffix == ".crc" or p.name == "_SUCCESS"]


def test_duckdb_finds_the_same_versions(spark: SparkSession, tmp_path: Path) -> None:
    """The newest live version of each key, by SQL of another engine, without other removals."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is missing: make setup-dev")
    generate(tmp_path, 3)
    before = read_manifest(tmp_path)
    run_compact(str(tmp_path), str(tmp_path), 0, spark=spark, policy=ALL, remove_by_session=False)
    files = [str(tmp_path / f.path) for f in before.files]
    expected = duckdb.sql(
        f"select partition, key, seq, crc from (select *, row_number() over (partition by partition, key "
        f"order by seq desc) as rank from read_parquet({files!r})) where rank = 1 and not tombstone order by 1, 2"
    ).fetchall()
    at = COLUMN_INDEX
    found = [
        tuple(row[at[c]] for c in ("partition", "key", "seq", "crc")) for p in range(4) for row in _rows(tmp_path, p)
    ]
    assert found == expected


def test_incremental_run_skips_compacted_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """A compacted partition is carried unchanged until it has enough generations or garbage again."""
    store = generate(tmp_path, 4)
    run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark)
    first = read_manifest(tmp_path)
    store.models[1].work(50)
    for generation in range(5, 8):
        store.models[1].work(60)
        add_generation(tmp_path, store.models[1:2], generation)
    result = run_compact(
        str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=CompactionPolicy(generations=4, garbage=1.0)
    )
    assert result.partitions == [1]
    after = read_manifest(tmp_path)
    assert [f for f in after.files if f.partition != 1] == [f for f in first.files if f.partition != 1]
    assert [f.level for f in after.files if f.partition == 1] == [2]
    nothing = run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=CompactionPolicy(garbage=1.0))
    assert (nothing.manifest_no, read_manifest(tmp_path).manifest_no) == (0, after.manifest_no)


def test_partial_merge_keeps_tombstones(spark: SparkSession, tmp_path: Path) -> None:
    """While an older generation is not an input, a dropped tombstone would restore its key."""
    store = generate(tmp_path, 5, partitions=2)
    before = read_manifest(tmp_path)
    live = {p: [r for r in newest(tmp_path, before.files_of(p)) if not r[COLUMN_INDEX["tombstone"]]] for p in (0, 1)}
    policy = CompactionPolicy(everything=True, partial=True, base_factor=0.0)
    result = run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=policy)
    assert {k for k, n in result.removed.items() if n} == {"superseded"}
    after = read_manifest(tmp_path)
    assert [(f.generation, f.level) for f in after.files_of(0)] == [(1, 0), (4, 1)]
    assert after.files_of(0)[1].tombstones > 0 and not after.tombstone_horizon_seq
    for partition in (0, 1):
        assert list(iter_newest(tmp_path, after, partition)) == live[partition]
    assert store.manifest.manifest_no == 4


@pytest.mark.parametrize("newest_is_bad", [True, False])
def test_bad_row_is_quarantined_and_holds_its_partition(
    spark: SparkSession, tmp_path: Path, newest_is_bad: bool
) -> None:
    """A row with a bad CRC is copied and reported; its partition stays unchanged, the others are merged."""
    generate(tmp_path, 6)
    entry = read_manifest(tmp_path).files_of(2)[3 if newest_is_bad else 1]
    at = COLUMN_INDEX["crc"]

    def damage(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        rows[5] = (*rows[5][:at], rows[5][at] ^ 1, *rows[5][at + 1 :])
        return rows

    _rewrite(tmp_path, entry, damage)
    before = read_manifest(tmp_path)
    result = run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, run_id="r")
    after = read_manifest(tmp_path)
    assert result.exit_code == JobExitCode.FINDINGS
    assert [(f.finding, f.partition, f.file) for f in result.findings] == [("bad_crc", 2, entry.path)]
    assert after.files_of(2) == before.files_of(2) and after.job.held == {"2": "bad_crc"}
    assert [len(after.files_of(p)) for p in (0, 1, 3)] == [1, 1, 1]
    aside = spark.read.parquet(*[str(tmp_path / path) for path in after.quarantine]).collect()
    assert [(bytes(row["key"]).hex(), row["path"]) for row in aside] == [(result.findings[0].key, entry.path)]


def test_changed_or_missing_input_holds_its_partition(spark: SparkSession, tmp_path: Path) -> None:
    """An input that differs from the listed file is never merged."""
    generate(tmp_path / "in", 7)
    files = read_manifest(tmp_path / "in")
    (tmp_path / "in" / files.files_of(0)[1].path).unlink()
    shutil.copy(tmp_path / "in" / files.files_of(1)[0].path, tmp_path / "in" / files.files_of(1)[2].path)
    result = run_compact(str(tmp_path / "in"), str(tmp_path / "out"), NOW_MS, spark=spark)
    assert result.held == {0: "missing_file", 1: "file_changed"}
    assert result.partitions == [2, 3]
    assert [len(read_manifest(tmp_path / "out").files_of(p)) for p in range(4)] == [4, 4, 1, 1]


def test_second_of_two_jobs_fails_without_effect(spark: SparkSession, tmp_path: Path) -> None:
    """Both read the same parent; the later publisher fails and deletes its files, the first one's state stays."""
    generate(tmp_path, 8)

    def other_job_first(name: str) -> None:
        if name == "synced":
            run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, run_id="first")

    with pytest.raises(ManifestExists):
        run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, run_id="second", step=other_job_first)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["first", "s1"]  # the export, and one merge
    assert read_manifest(tmp_path).job.run_id == "first"
    assert verify_manifest(tmp_path) == []


class _Killed(BaseException):
    """Simulated kill: no handler may run clean-up code."""


def test_crash_leaves_the_old_or_the_new_state(spark: SparkSession, tmp_path: Path) -> None:
    """After any last step, the newest manifest is complete, and the next job continues from it."""
    generate(tmp_path, 9, partitions=2, generations=2, operations=60)
    before = read_manifest(tmp_path)
    for point in ("inputs-checked", "written", "verified", "synced", "published"):

        def die(name: str, point: str = point) -> None:
            if name == point:
                raise _Killed

        with pytest.raises(_Killed):
            run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=ALL, run_id=point, step=die)
        assert verify_manifest(tmp_path) == []
        assert (read_manifest(tmp_path) == before) is (point != "published")
    assert run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=ALL).manifest_no == 4
    assert verify_manifest(tmp_path) == []


def test_differing_output_is_not_published(spark: SparkSession, tmp_path: Path) -> None:
    """The written runs are read again; one changed row prevents publication."""
    generate(tmp_path, 10, partitions=2, generations=2, operations=60)

    def damage(name: str) -> None:
        if name == "written":
            first, second = sorted((tmp_path / "runs" / "r").glob("part-*.parquet"))[:2]
            shutil.copy(second, first)
            first.with_name(f".{first.name}.crc").unlink(missing_ok=True)

    with pytest.raises(CompactionFailed):
        run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=ALL, run_id="r", step=damage)
    assert read_manifest(tmp_path).job.kind == "export"


@pytest.mark.usefixtures("spark")
def test_command_line_exit_codes(tmp_path: Path) -> None:
    """0 clean, 2 wrong usage, 4 could not run, with one line that states the reason."""
    generate(tmp_path, 11, partitions=2, generations=2, operations=60)
    words = ["--input", str(tmp_path), "--output", str(tmp_path), "--now", str(NOW_MS), "--all"]
    assert compact.main(words) == JobExitCode.CLEAN
    assert compact.main(["--input", str(tmp_path)]) == JobExitCode.USAGE
    assert compact.main([*words, "--garbage", "7"]) == JobExitCode.USAGE
    assert compact.main(["--input", str(tmp_path / "no"), "--output", "x"]) == JobExitCode.COULD_NOT_RUN
