"""``stratamq balance render --watch``: the file is replaced as a whole, and on a change alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import UserError
from stratamq.cli.balance_render import keep_file


def test_a_file_is_replaced_on_a_change_alone(tmp_path: Path) -> None:
    """By rename: whoever has the old one open reads the old one to its end; the command runs behind each change."""
    path, runs = tmp_path / "edges.conf", tmp_path / "runs"
    command = f"sh -c 'cat {path} >> {runs}'"
    keep_file(path, "one\n", command)
    with path.open() as former:
        first = path.stat()
        keep_file(path, "one\n", command)
        assert path.stat() == first and runs.read_text() == "one\n"
        keep_file(path, "two\n", command)
        assert former.read() == "one\n" and path.read_text() == "two\n"
    assert path.stat().st_ino != first.st_ino and runs.read_text() == "one\ntwo\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["edges.conf", "runs"]


def test_balance_render_failing_command_is_reported_and_file_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "edges.conf"
    keep_file(path, "one\n", "false")
    assert path.read_text() == "one\n" and "`false` failed with exit code 1" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory") as raised:
        keep_file(tmp_path / "none" / "edges.conf", "one\n", "")
    assert "\n" not in raised.value.message
