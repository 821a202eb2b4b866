"""``--traces`` and ``--compare``: content of a line, report of a difference, and determinism."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.traces import TracesUnreadable, compare_traces, read_traces


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two short seeds, made by two other processes with different hash seeds."""
    path = tmp_path_factory.mktemp("traces") / "traces"
    options = "--seeds 2 --seed 3 --seconds 1 --mode safety -j 2"
    subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options.split(), "--traces", str(path)],
        env={**os.environ, "PYTHONHASHSEED": "20"},
        check=True,
        timeout=120,
    )
    return path


def test_traces_are_independent_of_process_and_hash_seed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = read_traces(file)
    assert [trace.seed for trace in known] == [3, 4]
    assert known[0].flags == "stops" and known[0].events > 100 and known[0].verdict == "clean"
    assert compare_traces(file, known, 1) == 0
    assert "2 seeds (2 safety" in capsys.readouterr().out


@pytest.mark.parametrize(("field", "value"), [("digest", "00000000"), ("events", 7), ("verdict", "failed:1")])
def test_first_difference_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    known = read_traces(file)
    monkeypatch.setattr("tests.simulation.traces.run_traces", lambda _plans, _jobs: iter(known))
    before = [known[0], replace(known[1], **{field: value})]  # type: ignore[arg-type]
    assert compare_traces(file, before, 1) == 1
    output = capsys.readouterr().out
    assert "seed 4 (safety" in output and f"  {field}: {value} before" in output and "1 of 2 seeds were equal" in output


def test_trace_includes_disk_writes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that differs only on the disk is a difference."""
    monkeypatch.setattr("tests.simulation.model_store._bytes_of", lambda records: b"other" * len(records))
    assert compare_traces(file, read_traces(file)[1:], 1) == 1


def test_invalid_trace_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "traces"
    path.write_text("# seed mode\n1 safety\n")
    with pytest.raises(TracesUnreadable, match="line 2 is no trace"):
        read_traces(path)
