"""Commands and API paths in the dashboard's pages exist."""

import re

import pytest

from admin.http.command_paths import PATHS
from admin.http.row_paths import LISTS
from stratamq.cli.main import main
from tests.admin.http.test_static import STATIC

PAGES = "".join(path.read_text() for path in sorted((STATIC / "pages").glob("*.js")))
COMMANDS = sorted({found.partition(" ${")[0].strip() for found in re.findall(r"stratamq ([a-z][^`\"'$]*)", PAGES)})
OTHERS = {"/overview", "/alarms", "/audits", "/operations", "/topics/explain", "/messages/explain"}


def test_each_command_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) > 20 and "client list" in COMMANDS and "msg explain" in COMMANDS
    for command in COMMANDS:
        assert main([*(word for word in command.split() if word[0] != "-"), "--help"]) == 0, command
        options = {word for word in command.split() if word[0] == "-"}
        assert options <= set(re.findall(r"--?[a-z]+", capsys.readouterr().out)), command


def test_each_path_exists() -> None:
    known = OTHERS | {listing.path for listing in LISTS} | {row.path for row in PATHS}
    paths = set(re.findall(r"path[:=]\s*\"(/[^\"]+)\"", PAGES))
    assert len(paths) > 20 and paths <= known, paths - known
