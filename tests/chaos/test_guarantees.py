"""The page of promises: a line for each, and the pages of the runs (named tests: ``tests/test_docs.py``)."""

import re
from pathlib import Path

from tests.chaos.schedule import ROWS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guarantees.md").read_text()


def test_every_promise_has_a_line() -> None:
    """Promises keep their numbers."""
    assert re.findall(r"^\| (R\d+) \|", PAGE, re.MULTILINE) == [f"R{number}" for number in range(1, 19)]


def test_tables_of_runs_have_a_page() -> None:
    """The commands that write tables find their marks; the page of promises links there."""
    for page, mark in (("chaos.md", "chaos"), ("fuzzing.md", "fuzz"), ("brokers.md", "brokers")):
        text = (DOCS / page).read_text()
        assert text.count(f"<!-- {mark}: begin -->") == text.count(f"<!-- {mark}: end -->") == 1
        assert f"({page})" in PAGE


def test_rows_of_fault_table_are_rows_of_schedules() -> None:
    """A row of the fault table can be run again."""
    named = re.findall(r"^\| (F\d\d) \|", (DOCS / "chaos.md").read_text(), re.MULTILINE)
    assert named and set(named) <= set(ROWS)
