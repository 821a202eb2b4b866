"""Every test that docs/guarantees.md names exists, and every promise has a line."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def test_tests_that_are_named_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) >= 15
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_every_promise_has_a_line() -> None:
    assert re.findall(r"^\| (R\d+) \|", PAGE, re.MULTILINE) == [f"R{number}" for number in range(1, 19)]
