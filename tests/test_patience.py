"""Waits for expected events are long: on a busy machine, a short one fails without a fault."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
SHORTEST_S = 30.0
PERHAPS = re.compile(r"fail_after\(\d|timeout=\d")
BOUNDED = {"run", "communicate", "urlopen", "get", "post", "Client"}  # calls with a ``timeout`` that raise after it
# It queries the leader, and the next router without a prompt answer.
MAY_BE_SHORT = {"tests/router/raft/test_processes.py"}


def short_waits(text: str) -> Iterator[tuple[int, float]]:
    """Yield line and seconds of each wait that fails so soon: `fail_after`, and `timeout=` of processes and pages."""
    for call in ast.walk(ast.parse(text if PERHAPS.search(text) else "")):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        bounds = call.args[:1] if call.func.attr == "fail_after" else []
        if call.func.attr in BOUNDED:
            bounds = [word.value for word in call.keywords if word.arg == "timeout"]
        for bound in bounds:
            if isinstance(bound, ast.Constant) and isinstance(bound.value, int | float) and bound.value < SHORTEST_S:
                yield call.lineno, float(bound.value)


def test_short_waits_are_found() -> None:
    text = "with trio.fail_after(5):\n    subprocess.run(words, timeout=2.5)\n    page.get(timeout=PATIENCE_S)\n"
    assert [*short_waits(text)] == [(1, 5.0), (2, 2.5)]
    assert PATIENCE_S > SHORTEST_S


def test_waits_of_tests_have_the_common_bound() -> None:
    """``tests.patience`` has the bound; a late event is no fault."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {seconds:g} s"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if str(path.relative_to(ROOT)) not in MAY_BE_SHORT
        for line, seconds in short_waits(path.read_text())
    ]
    assert not found, found
