"""Tables and progress bars: plain text in a pipe, drawn by ``rich`` on a terminal."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from admin.timestamps import iso
from stratamq.cli.output import OutputFormat, cells_of, print_result, print_table, render
from stratamq.cli.progress import progress_bar
from tests.clients.terminal import at_terminal

ROOT = Path(__file__).parent.parent.parent
ROWS: list[dict[str, Any]] = [
    {"node": "[red]a[/red]", "note": "x" * 300, "bytes": 3 << 20},
    {"node": ":smile:", "copies": ["a", "b"], "lease_s": 1.5},
]


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_lines_of_any_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are not wrapped or styled, and markup is not interpreted."""
    print_result(ROWS, OutputFormat.TABLE)
    shown = capsys.readouterr().out
    assert shown == render(ROWS, OutputFormat.TABLE) + "\n"
    first, second, third = shown.splitlines()
    assert first.split() == ["NODE", "NOTE", "BYTES", "COPIES", "LEASE_S"]
    assert second == f"[red]a[/red]  {'x' * 300}  3 MiB  -       -"
    assert third.split() == [":smile:", "-", "-", "a,b", "1.5"]


def test_facts_keep_the_width_of_all_names() -> None:
    assert render({"a": 1, "longer": [{"x": 1}]}, OutputFormat.TABLE) == "a       1\n\nX\n1"
    assert render([], OutputFormat.TABLE) == "-" and render(None, OutputFormat.TABLE) == ""
    assert render({}, OutputFormat.TABLE) == ""


def test_a_terminal_gets_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long cells are wrapped, not cut; JSON is the same everywhere."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_result(ROWS, OutputFormat.TABLE)
    shown = terminal.getvalue()
    assert "\x1b[1m" in shown and shown.count("x") == 300
    plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 60
    terminal.truncate(0)
    print_result({"a": 1}, OutputFormat.JSON)
    assert terminal.getvalue().strip("\0\n") == '{\n  "a": 1\n}'


@pytest.mark.parametrize("wish", ["", "1"])
def test_a_terminal_that_wants_no_colour_gets_plain_text(wish: str) -> None:
    """An empty NO_COLOR has no effect (https://no-color.org)."""
    code = f"import os; os.environ.update(TERM='xterm', NO_COLOR={wish!r})\n"
    code += "from stratamq.cli.output import *; print_result([{'node': 'edge-0', 'n': 1}], OutputFormat.TABLE)"
    ended, shown = at_terminal([sys.executable, "-c", code])
    assert ended == 0 and "edge-0" in shown
    assert ("\x1b" in shown) is not bool(wish), shown


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar("moves") as show:
            for done in range(4):
                show(done, 3, f"{done} [failed]")
        if stream.isatty():
            assert all(part in stream.getvalue() for part in ("3/3", "moves", "3 [failed]"))
        else:
            assert not stream.getvalue()


def test_the_library_is_imported_when_a_table_is_drawn() -> None:
    """Not for JSON, hidden progress bars, or ASCII tables in a pipe."""
    code = """
import sys
import time
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.progress import progress_bar
print_result([{"a": 1}], OutputFormat.JSON)
with progress_bar("moves") as show:
    show(1, 2)
print("rich" in sys.modules)
print_result([{"a": 1}], OutputFormat.TABLE)
print("rich" in sys.modules)
print_result([{"a": "\u4e2d"}], OutputFormat.TABLE)
print("rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert [line for line in done.stdout.splitlines() if line in ("True", "False")] == ["False", "False", "True"]


def test_json_lines_equal_json_output() -> None:
    """Numbers above 64 bits, lone surrogates, bytes and direction-changing characters, also in lists."""
    for value in (
        1 << 70,
        "\ud800",
        "a\u202eb\n",
        ["x", 1.5, None, True],
        ["\u202e"],
        [b"\x01"],
        {"a": [b"\x02"]},
        1e300,
    ):
        (line,) = render([{"value": value}], OutputFormat.JSONL).split("\n")
        assert line.isprintable() and " " not in line
        wanted = json.loads(json.dumps({"value": value}, default=lambda one: one.hex()))
        assert json.loads(line) == wanted


def test_local_addresses_are_printed_in_json_only() -> None:
    """An edge's socket for a balancer is local. Regression: `cluster status` was 190 columns wide."""
    rows = [{"node": "edge-0", "clients": {"tls": "h:8883", "@hand-over": "unix:x:/sock"}}]
    assert render(rows, OutputFormat.TABLE).splitlines()[1] == "edge-0  tls=h:8883"
    assert render([{"node": "a", "clients": {"@x": "y"}}], OutputFormat.TABLE).splitlines()[1] == "a     -"
    assert "unix:x:/sock" in render(rows, OutputFormat.JSON)


def test_equal_values_of_different_types_have_separate_cells() -> None:
    for values in ([1, True, None, "1", 1.0], [True, False, True], ["a", "", None, "a"], [[1], [1]], [2, 2, 3]):
        assert cells_of(lambda value: value, values) == [cells_of(lambda one: one, [value])[0] for value in values]
    assert cells_of(lambda value: value, [1, True, None]) == ["1", "yes", "-"]


def test_columns_are_aligned_with_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["client_id", "n"], [["日本", "plain", "a"], ["1", "22", "333"]])
    assert capsys.readouterr().out.splitlines() == ["CLIENT_ID  N", "日本       1", "plain      22", "a          333"]


def test_timestamps_are_ages_in_tables_and_text_elsewhere() -> None:
    """Regression: times of tokens and bans were printed in UTC."""
    made = iso(time.time() - 7_200)
    row = {"token": made, "made_at": made, "until": iso(time.time() + 86_400 * 3 + 60), "reason": "2026-01-01"}
    table = render([row], OutputFormat.TABLE)
    assert "2h ago" in table and "in 3d" in table and table.count(made) == 1 and "2026-01-01" in table
    assert json.loads(render([row], OutputFormat.JSON)) == [row]
