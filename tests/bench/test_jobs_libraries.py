"""``python -m bench.jobs`` without a library that it needs."""

import sys

import pytest

import bench.jobs


def test_missing_library_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback, after the start of a Spark session."""
    monkeypatch.setattr(bench.jobs, "LIBRARIES", ("pyarrow", "no_such_library"))
    monkeypatch.setattr(sys, "argv", ["bench.jobs"])
    assert bench.jobs.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no_such_library" in said and "pyarrow" not in said
