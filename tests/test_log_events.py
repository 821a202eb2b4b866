"""Every log call names an event of the table with the values of its sentence; every event is logged somewhere."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conf.events import EVENTS, OTHER, fields_of
from tests.packages import PACKAGES

ROOT = Path(__file__).parent.parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
RESERVED = {"ts", "level", "event", "message", "node", "logger", "trace", "left_out", "exc_info"}
OURS = "conf/events.py"


@cache
def sources() -> list[tuple[str, ast.Module]]:
    """Return every file that may log."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = [(str(path.relative_to(ROOT)), path.read_text()) for path in paths]
    return [(path, ast.parse(text)) for path, text in texts if "logg" in text or "say(" in text or ".log(" in text]


def calls(tree: ast.Module) -> Iterator[tuple[int, ast.expr, set[str]]]:
    """Yield (line, event, names of the values) of each log call; a core's log effect is logged by its shell."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        names = {keyword.arg or "**" for keyword in node.keywords} - {"level", "exc_info"}
        if isinstance(node.func, ast.Name) and node.func.id == "say" and len(node.args) == 2:
            yield node.lineno, node.args[1], names
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "log" and "parts" in ast.unparse(node.func):
            yield node.lineno, node.args[0], names


def direct(tree: ast.Module) -> Iterator[int]:
    """Yield lines that use a logger's own methods, called or handed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in LEVELS:
            of = ast.unparse(node.value)
            is_logger = re.fullmatch(r"(self\.)?_?log(ger)?", of) or of.startswith("logging.getLogger")
            if is_logger or (of == "logging" and node.attr != "log"):
                yield node.lineno


def test_every_log_call_uses_the_table() -> None:
    found = [f"{path}:{line}" for path, tree in sources() if path != OURS for line in direct(tree)]
    assert not found, f"use conf.events.say: {found}"


def test_every_call_has_an_entry_with_its_values() -> None:
    logged: set[str] = {OTHER}
    for path, tree in sources():
        for line, event, names in calls(tree):
            where = f"{path}:{line}"
            if not isinstance(event, ast.Constant):
                assert names == {"**"} and isinstance(event, ast.Name), f"{where}: an event is written out"
                continue
            assert event.value in EVENTS, f"{where}: {event.value!r} is not in conf/events.py"
            logged.add(event.value)
            missing = fields_of(EVENTS[event.value].sentence).keys() - names
            assert not missing, f"{where}: {event.value!r} wants {missing}"
            assert not names & RESERVED, f"{where}: {names & RESERVED} are fields of every line"
    assert logged == EVENTS.keys(), f"logged by nobody: {EVENTS.keys() - logged}"


def test_names_are_dotted() -> None:
    assert not [name for name in EVENTS if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("logger.info('x')", [1]),
        ("self._logger.error('x')", [1]),
        ("f(loud=logger.error)", [1]),
        ("logging.getLogger('a').info('x')", [1]),
        ("logging.warning('x')", [1]),
        ("say(logger, 'link.cut', why=1)", []),
        ("console.log('x')", []),
    ],
)
def test_log_call_without_entry_is_found(code: str, lines: list[int]) -> None:
    assert list(direct(ast.parse(code))) == lines
