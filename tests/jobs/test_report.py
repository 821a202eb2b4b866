"""The report's state before a compaction."""

from pathlib import Path

from typer.testing import CliRunner

from jobs.cli import app
from jobs.files import LocalFiles, newest_with_bytes
from jobs.findings import JobExitCode
from jobs.report import _parent, partition_table
from wire.sstable.manifest import FileEntry, Manifest, next_manifest, publish_manifest


def test_sizes_before_are_those_of_the_inputs_for_any_output(tmp_path: Path) -> None:
    """In the same directory from the parent; elsewhere, where its number is another manifest's, from the notes."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    files = [FileEntry(path=f"runs/{n}", partition=0, generation=n, rows=10, bytes=100, tombstones=2) for n in (1, 2)]
    publish_manifest(source, Manifest(manifest_no=1, files=files))
    newest = newest_with_bytes(LocalFiles(source))
    assert newest is not None
    for directory, number, garbage in ((target, 1, None), (source, 2, 4)):
        draft = next_manifest(*newest)
        draft.manifest_no = number
        draft.job.kind = "compact"
        draft.job.before = {"0": [2, 20, 200]}
        draft.files = [FileEntry(path="runs/c", partition=0, generation=2, rows=9, bytes=90)]
        publish_manifest(directory, draft)
        (row,) = partition_table(draft, _parent(LocalFiles(directory), draft))
        assert (row["generations"], row["rows"], row["bytes"]) == (1, 9, 90)
        assert (row["generations_before"], row["rows_before"], row["bytes_before"]) == (2, 20, 200)
        assert row.get("garbage_before") == garbage


def test_report_requires_an_output() -> None:
    """Otherwise the audit would only print."""
    done = CliRunner().invoke(app, ["report", "--input", "exported"])
    assert done.exit_code == JobExitCode.USAGE
    assert "stratamq jobs report: --output is required" in done.output
