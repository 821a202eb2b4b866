"""Every test that docs/guarantees.md and its companions name exists, and every promise has a line."""

import re
from pathlib import Path

import pytest

from tests.chaos.schedule import ROWS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "guarantees.md").read_text()


@pytest.mark.parametrize(("page", "least"), [("guarantees.md", 15), ("simulation.md", 40), ("chaos.md", 3)])
def test_tests_that_are_named_exist(page: str, least: int) -> None:
    """A page names a file, a test in it, or (``::name``) one more test of the file that was named before."""
    missing, path, count = [], "", 0
    for file, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", (DOCS / page).read_text()):
        path = file or path
        if not file and not name:
            continue
        count += 1
        if not (ROOT / path).exists():
            missing.append(path)
        elif name and f"def {name}(" not in (ROOT / path).read_text():
            missing.append(f"{path}::{name}")
    assert count >= least
    assert not missing, "\n".join(missing)


def test_every_promise_has_a_line() -> None:
    """Promises keep their numbers."""
    assert re.findall(r"^\| (R\d+) \|", PAGE, re.MULTILINE) == [f"R{number}" for number in range(1, 19)]


def test_the_tables_of_the_runs_have_a_page() -> None:
    """The commands that write tables find their marks; the page of promises leads there."""
    for page, mark in (("chaos.md", "chaos"), ("fuzzing.md", "fuzz"), ("brokers.md", "brokers")):
        text = (DOCS / page).read_text()
        assert text.count(f"<!-- {mark}: begin -->") == text.count(f"<!-- {mark}: end -->") == 1
        assert f"({page})" in PAGE


def test_rows_of_the_table_are_rows_of_schedules() -> None:
    """A row of the fault table can be run again."""
    named = re.findall(r"^\| (F\d\d) \|", (DOCS / "chaos.md").read_text(), re.MULTILINE)
    assert named and set(named) <= set(ROWS)
