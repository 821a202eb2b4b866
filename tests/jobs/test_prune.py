"""Retention: only files that no manifest in use lists are removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from jobs.compaction import run_compact
from jobs.files import HadoopFiles, LocalFiles, OutsideStore
from jobs.findings import JobExitCode
from jobs.prune import HOUR_MS, main, plan, prune
from jobs.selection import CompactionPolicy
from tests.jobs.generator import NOW_MS, add_generation, generate
from wire.sstable.manifest import (
    FileEntry,
    ManifestDamaged,
    decode_manifest,
    encode_manifest,
    manifest_name,
    manifest_numbers,
    next_manifest,
    publish_manifest,
    read_manifest,
)
from wire.sstable.run_reader import verify_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * HOUR_MS


def _aged(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def _publish(directory: Path, path: str, at_ms: int) -> None:
    """Publish a manifest with one file, both written at a given time."""
    (directory / path).parent.mkdir(parents=True, exist_ok=True)
    (directory / path).write_bytes(b"x" * 10)
    _aged(directory / path, at_ms)
    _aged((directory / path).parent, at_ms)
    try:
        draft = next_manifest(read_manifest(directory))
    except FileNotFoundError:
        draft = next_manifest(None)
    draft.files = [FileEntry(path=path, partition=0)]
    _aged(publish_manifest(directory, draft), at_ms)


def _history(directory: Path) -> None:
    """Six manifests, ten hours apart, the last at hour 100."""
    for number in range(6):
        _publish(directory, f"runs/r{number}/a", (50 + 10 * number) * HOUR_MS)


@pytest.mark.parametrize(
    ("now_h", "keep", "grace_h", "kept"),
    [
        (1000, 3, 24, [4, 5, 6]),  # long ago: the newest three
        (1000, 1, 24, [6]),
        (110, 1, 24, [4, 5, 6]),  # 86 to 110: number 4 of hour 80 was the newest until 90
        (110, 1, 15, [5, 6]),  # from 95 on: 5 of hour 90 until 100
        (110, 1, 9, [6]),
        (110, 9, 0, [1, 2, 3, 4, 5, 6]),
        (1000, 2, 0, [5, 6]),
    ],
)
def test_manifests_in_use(tmp_path: Path, now_h: int, keep: int, grace_h: int, kept: list[int]) -> None:
    """The newest ones, and each that a job within the grace period may have started from."""
    _history(tmp_path)
    store = LocalFiles(tmp_path)
    removed = plan(store, now_h * HOUR_MS, keep, grace_h * HOUR_MS)
    assert removed.kept == kept
    assert removed.manifests == [number for number in range(1, 7) if number not in kept]
    prune(store, removed)
    assert manifest_numbers(store.names()) == kept
    paths = {f"runs/r{number - 1}/a" for number in kept}
    assert {path for top in ("runs",) for path, _, _ in store.tree(top)} == paths
    assert plan(store, now_h * HOUR_MS, keep, grace_h * HOUR_MS).files == {}


def test_orphaned_files_are_removed_after_the_grace_period(tmp_path: Path) -> None:
    """Folders in no manifest, and unlisted files beside listed ones; not recent changes, nor other programs' files."""
    _history(tmp_path)
    now_ms = 1000 * HOUR_MS
    for name, hours in (("runs/dead/_temporary/0/part-1", 900), ("runs/busy/part-1", 990), ("runs/r5/stray", 900),
                        ("report/report.html", 10), ("quarantine/q/part-1", 10)):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
        _aged(path, hours * HOUR_MS)
    for folder in ("runs/dead", "runs/busy", "quarantine/q"):
        _aged(tmp_path / folder, 10 * HOUR_MS)
    (tmp_path / "runs" / "fresh").mkdir()
    _aged(tmp_path / "runs" / "fresh", now_ms)
    removed = plan(LocalFiles(tmp_path), now_ms, keep=6)
    assert sorted(removed.files) == ["quarantine/q/part-1", "runs/dead/_temporary/0/part-1", "runs/r5/stray"]
    assert (removed.folders, removed.bytes, removed.manifests) == (["runs/dead", "quarantine/q"], 12, [])
    prune(LocalFiles(tmp_path), removed)
    left = ["busy", "fresh", *(f"r{number}" for number in range(6))]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == left
    assert (tmp_path / "report" / "report.html").exists() and (tmp_path / "runs" / "r5" / "a").exists()


def test_damaged_manifest_in_use_aborts_prune(tmp_path: Path) -> None:
    """Its files are unknown, so none may be removed; an old damaged manifest is removed."""
    _history(tmp_path)
    (tmp_path / manifest_name(5)).write_bytes(b"{}")
    with pytest.raises(ManifestDamaged):
        plan(LocalFiles(tmp_path), 1000 * HOUR_MS, keep=3)
    assert plan(LocalFiles(tmp_path), 1000 * HOUR_MS, keep=1).manifests == [1, 2, 3, 4, 5]
    assert main(["--input", str(tmp_path)]) == JobExitCode.COULD_NOT_RUN
    assert len(manifest_numbers(LocalFiles(tmp_path).names())) == 6


def test_prune_command_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--dry-run lists the files without removing them; a run without it removes the same files."""
    _history(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["prune", "--input", str(tmp_path), "--now", str(1000 * HOUR_MS)]
    dry = CliRunner().invoke(app, [*words, "--dry-run"])
    assert dry.exit_code == 0
    assert dry.stdout.split() == [*map(manifest_name, (1, 2, 3)), "runs/r0/a", "runs/r1/a", "runs/r2/a"]
    assert "would remove 3 manifests and 3 files, 30 bytes; 3 manifests in use" in dry.output
    assert len(manifest_numbers(LocalFiles(tmp_path).names())) == 6
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (0, dry.stdout)
    assert not (tmp_path / "runs" / "r1").exists()
    assert main(["--input", str(tmp_path), "--keep", "0"]) == JobExitCode.USAGE
    assert main(["--input", str(tmp_path / "none")]) == JobExitCode.COULD_NOT_RUN


def test_prune_beside_a_running_compaction(spark: SparkSession, tmp_path: Path) -> None:
    """Another job publishes and prune runs between any two steps: inputs and output still exist."""
    store = generate(tmp_path, 12, partitions=2, generations=4, operations=40)
    only = CompactionPolicy(everything=True, partitions=frozenset({0}))

    def meddle(name: str) -> None:
        if name == "inputs-checked":  # an export in between: the compaction must fail without effect
            store.models[0].work(10)
            add_generation(tmp_path, store.models[:1], 5, partitions=2)
        removed = plan(LocalFiles(tmp_path), tmp_path.stat().st_mtime_ns // 1_000_000 + HOUR_MS, keep=1)
        prune(LocalFiles(tmp_path), removed)
        assert not removed.files

    with pytest.raises(FileExistsError):
        run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=only, run_id="loser", step=meddle)
    assert verify_manifest(tmp_path) == []

    def only_prune(_name: str) -> None:
        prune(LocalFiles(tmp_path), plan(LocalFiles(tmp_path), tmp_path.stat().st_mtime_ns // 1_000_000, keep=1))

    run_compact(str(tmp_path), str(tmp_path), NOW_MS, spark=spark, policy=only, run_id="winner", step=only_prune)
    assert verify_manifest(tmp_path) == []
    later_ms = tmp_path.stat().st_mtime_ns // 1_000_000 + 2 * DAY_MS
    for files in (HadoopFiles(spark, f"file://{tmp_path}"), LocalFiles(tmp_path)):
        removed = plan(files, later_ms, keep=1)
        assert len(removed.files) == 5  # the five generations of partition 0
        assert len(removed.manifests) == 5
    prune(HadoopFiles(spark, f"file://{tmp_path}"), removed)
    assert verify_manifest(tmp_path) == []
    assert len(manifest_numbers(p.name for p in tmp_path.iterdir())) == 1


def test_manifest_with_a_path_outside_the_folder_is_damaged(tmp_path: Path) -> None:
    """A CRC does not prove the author; nothing is deleted by such a path."""
    outside = tmp_path / "precious"
    outside.write_text("keep me")
    store = tmp_path / "store"
    store.mkdir()
    for name in ("../precious", str(outside), "runs/../../precious", "runs//a", "elsewhere/a", "runs", "runs/./a", ""):
        draft = next_manifest(None)
        draft.files = [FileEntry(path=name, partition=0)]
        with pytest.raises(ManifestDamaged, match="not below runs or quarantine"):
            decode_manifest(encode_manifest(draft))
        draft.files, draft.quarantine = [], [name]
        with pytest.raises(ManifestDamaged, match="not below runs or quarantine"):
            decode_manifest(encode_manifest(draft))
    draft.files, draft.quarantine = [FileEntry(path="../precious", partition=0)], []
    publish_manifest(store, draft)
    assert main(["--input", str(store), "--now", str(1000 * HOUR_MS)]) == JobExitCode.COULD_NOT_RUN
    assert outside.read_text() == "keep me"


def test_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """Files behind a linked folder of runs are neither listed nor deleted."""
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "a").write_text("keep me")
    store = tmp_path / "store"
    (store / "runs").mkdir(parents=True)
    (store / "runs" / "r1").symlink_to(outside)
    for act in (LocalFiles(store).tree, LocalFiles(store).delete, LocalFiles(store).read):
        for name in ("runs/r1/a", "runs/r1"):
            with pytest.raises(OutsideStore):
                act(name)
    assert (outside / "a").read_text() == "keep me"
