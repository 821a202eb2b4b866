"""The format on disk, and ``stratamq check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratamq.history.cli import app
from stratamq.history.history import HistoryError, parse_history
from tests.stratamq.history.script import Script


def lossy() -> Script:
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "a")
    script.connect("pub")
    script.publish("pub", "a", "m1")
    script.quiet()
    return script


def check(tmp_path: Path, data: bytes, *options: str) -> tuple[int, str]:
    path = tmp_path / "history.jsonl"
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["check", str(path), *options])
    return result.exit_code, result.output


def test_exit_codes(tmp_path: Path) -> None:
    """0 clean, 1 findings or cut short, 2 no history."""
    calm = Script()
    assert check(tmp_path, calm.bytes())[0] == 1
    calm.quiet()
    assert check(tmp_path, calm.bytes())[0] == 0
    code, text = check(tmp_path, lossy().bytes())
    assert code == 1
    assert "m1 was accepted but never reached sub" in text
    assert "line 8" in text
    assert check(tmp_path, b"")[0] == 2
    assert check(tmp_path, b'{"hello": 1}\n')[0] == 2
    assert CliRunner().invoke(app, ["check", str(tmp_path / "missing")]).exit_code == 2


def test_json_output_carries_the_proof(tmp_path: Path) -> None:
    code, text = check(tmp_path, lossy().bytes(), "-o", "json")
    verdict = json.loads(text)
    assert code == 1
    assert verdict["clean"] is False
    (finding,) = verdict["checkers"]["lost"]["findings"]
    assert [record["kind"] for record in finding["proof"]] == ["subscribe", "subscribe", "publish", "publish"]


def test_a_cut_last_line_is_dropped_and_noted() -> None:
    data = lossy().bytes()
    history = parse_history(data[:-5])
    assert history.truncated
    assert history.drained_ns is None


@pytest.mark.parametrize(
    "broken",
    [
        b'{"time_ns":1,"phase":"ok","kind":"publish","operation":99}\n',
        b'{"time_ns":1,"phase":"invoke","kind":"receive","operation":98}\n',
        b'{"time_ns":1,"phase":"event","kind":"publish"}\n',
        b'{"time_ns":1,"phase":"perhaps","kind":"publish"}\n',
        b'{"time_ns":1,"phase":"event","kind":"kill","colour":"red"}\n',
        b"garbage\n",
    ],
)
def test_lines_that_make_no_sense_are_refused_by_number(broken: bytes) -> None:
    data = lossy().bytes()
    number = len(data.splitlines()) + 1
    with pytest.raises(HistoryError, match=f"line {number}"):
        parse_history(data + broken)


def test_another_version_is_refused() -> None:
    with pytest.raises(HistoryError, match="version 2"):
        parse_history(Script().bytes().replace(b'"version":1', b'"version":2'))


@pytest.mark.parametrize(
    "options",
    [
        ["--broker", "127.0.0.1:1", "--workload", "idle"],
        ["--broker", "nowhere"],
        ["--broker", "127.0.0.1:1", "--protocol", "3"],
        [],
    ],
)
def test_wrong_options_of_record_are_a_usage_error(tmp_path: Path, options: list[str]) -> None:
    output = tmp_path / "history.jsonl"
    result = CliRunner().invoke(app, ["record", "--output", str(output), *options])
    assert result.exit_code == 2
    assert not output.exists()
