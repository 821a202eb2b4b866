"""List options of the command line: filters, columns, limits, output formats, and escaping of control characters."""

import csv
import io
import json
import time
from typing import Any

import pytest
import yaml

from conf.errors import ExitCode, UserError
from stratamq.cli.lists import wish
from stratamq.cli.main import main, report
from stratamq.cli.output import OutputFormat, render

ROWS: list[dict[str, Any]] = [
    {"node": "edge-1", "tier": "edge", "zone": "", "clients": ["10.0.0.1:1883", "10.0.0.1:8883"], "whole": True},
    {"node": "edge-2", "tier": "edge", "zone": None, "clients": [], "whole": False},
    {"node": "storage-1", "tier": "storage", "zone": "a[b]c", "clients": []},
]
HOSTILE = "a\x1b[31m\u009b2J\u202e\x7f\n\U000e0041\ud800"  # colours, clear, direction change; a lone surrogate


def nodes(*filters: str) -> list[str]:
    rows, passed = wish(filters, "", 100, everything=False).chosen(ROWS)
    assert passed == len(rows)
    return [row["node"] for row in rows]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ((), ["edge-1", "edge-2", "storage-1"]),
        (("node=edge-?",), ["edge-1", "edge-2"]),
        (("node=edge",), []),
        (("node=*-1",), ["edge-1", "storage-1"]),
        (("node=*-1", "tier=edge"), ["edge-1"]),
        (("NODE=*g*-*",), ["edge-1", "edge-2", "storage-1"]),
        (("node=Edge-1",), []),
        (("zone=",), ["edge-1", "edge-2"]),
        (("zone=a[b]c",), ["storage-1"]),  # brackets and dots are literals
        (("node=edge.1",), []),
        (("clients=*:8883",), ["edge-1"]),
        (("whole=yes",), ["edge-1"]),
        (("node=**1**",), ["edge-1", "storage-1"]),
        (("node=?",), []),
    ],
)
def test_filters(filters: tuple[str, ...], found: list[str]) -> None:
    assert nodes(*filters) == found


def test_filter_pattern_runs_in_bounded_time() -> None:
    began = time.process_time()
    rows, _ = wish(["k=" + "*a" * 20 + "b"], "", 1, everything=False).chosen([{"k": "a" * 2_000}])
    assert not rows and time.process_time() - began < 2


def test_limits_and_columns() -> None:
    rows, passed = wish(["tier=edge"], "Zone, node", 1, everything=False).chosen(ROWS)
    assert [list(row) for row in rows] == [["zone", "node"]] and passed == 2
    rows, passed = wish([], "", 1, everything=True).chosen(ROWS)
    assert rows == ROWS and passed == 3


@pytest.mark.parametrize(
    ("filters", "columns", "limit", "said"),
    [
        (["node"], "", 1, "--filter 'node' is invalid"),
        (["=x"], "", 1, "--filter '=x' is invalid"),
        ([], "node,,tier", 1, "--columns 'node,,tier' is invalid"),
        ([], "", 0, "--limit 0 is out of range"),
        ([], "", 10_000_000, "--limit 10000000 is out of range"),
        (["colour=red"], "", 1, "unknown filter key 'colour': use one of node, tier"),
        ([], "node,colour", 1, "unknown column 'colour': use one of node, tier"),
    ],
)
def test_invalid_list_option_fails_with_one_line(filters: list[str], columns: str, limit: int, said: str) -> None:
    """The error has the exit code of wrong usage."""
    with pytest.raises(UserError) as refused:
        wish(filters, columns, limit, everything=False).chosen(ROWS)
    assert refused.value.message.startswith(said) and "\n" not in refused.value.message
    assert refused.value.exit_code == ExitCode.USAGE


def test_list_with_known_columns_refuses_others_without_rows() -> None:
    for filters, columns in ((["colour=red"], ""), ([], "colour")):
        with pytest.raises(UserError, match="'colour': use one of node, tier"):
            wish(filters, columns, 1, everything=False, known=("node", "tier"))
    assert wish(["node=x"], "tier", 1, everything=False, known=("node", "tier")).chosen([]) == ([], 0)


def test_list_options_are_validated_before_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "list", "--limit", "0"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "stratamq: --limit 0 is out of range: use 1 to 100000, or --all for every row\n"


def test_version_has_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0 and main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("stratamq ")


def test_a_line_of_json_for_each_row() -> None:
    """An object that contains only the list is printed as its rows; other objects are one line."""
    for result in (ROWS, {"nodes": ROWS}):
        assert [json.loads(line) for line in render(result, OutputFormat.JSONL).splitlines()] == ROWS
    assert json.loads(render({"leader": "r", "nodes": ROWS}, OutputFormat.JSONL)) == {"leader": "r", "nodes": ROWS}
    assert render([], OutputFormat.JSONL) == "" and render({"nodes": []}, OutputFormat.JSONL) == ""


def test_csv_has_a_head_and_bare_values() -> None:
    """Numbers have no units, lists are JSON; an empty line separates tables."""
    facts, table = render({"bytes": 3 << 20, "rows": ROWS}, OutputFormat.CSV).split("\n\n")
    assert facts == "bytes\n3145728"
    first, second, third = csv.DictReader(io.StringIO(table))
    assert json.loads(first["clients"]) == ROWS[0]["clients"] and first["whole"] == "true"
    assert second["zone"] == "" and third["whole"] == "" and third["zone"] == "a[b]c"
    assert render([], OutputFormat.CSV) == "" and render("x,y", OutputFormat.CSV) == 'value\n"x,y"'


@pytest.mark.parametrize("output", OutputFormat)
@pytest.mark.parametrize("result", [[{"client": HOSTILE, HOSTILE: [HOSTILE]}], {"a": HOSTILE, HOSTILE: {HOSTILE: 1}}])
def test_output_escapes_control_characters_in_names(output: OutputFormat, result: Any) -> None:
    """Client IDs may contain any character; JSON output decodes to the original."""
    shown = render(result, output)
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert shown.encode()
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        read = json.loads(shown)
        assert read == (result[0] if isinstance(result, list) and isinstance(read, dict) else result)
    elif output is OutputFormat.YAML:
        assert yaml.safe_load(shown) == result
    else:
        assert r"a\x1b[31m\x9b2J\u202e\x7f\n\U000e0041\ud800" in shown


def test_errors_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors quote names; a newline in the message is kept."""
    report([UserError("no client \x1b[31mred\n  at edge-1")])
    assert capsys.readouterr().err == "stratamq: no client \\x1b[31mred\n  at edge-1\n"
