"""Replies of nodes to a request as a table: facts become columns, and empty columns are omitted.

Programs get the unchanged rows with their lines.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stratamq.cli import cells

__all__ = ["node_table"]

NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")


def node_table(rows: Sequence[Mapping[str, Any]], *, tried: bool) -> list[dict[str, object]]:
    """Return the rows of a table.

    Args:
        rows: One for each node: ``node``, ``done``, ``count``, ``lines``, ``error``.
        tried: A dry run, which omits the ``done`` column.
    """
    told = [_facts(row["lines"]) for row in rows]
    has_facts = all(facts is not None for facts in told)
    has_errors, counted = any(row["error"] for row in rows), any(row["count"] for row in rows)
    has_lines = not has_facts or (tried and not (counted or has_errors or any(told)))
    now = time.time()
    shown = []
    for row, facts in zip(rows, told, strict=True):
        one: dict[str, object] = {"node": row["node"]}
        if not tried:
            one["done"] = row["done"]
        if counted:
            one["count"] = row["count"]
        if has_facts:
            one |= {cells.heading(name): cells.shown_cell(name, value, now) for name, value in (facts or {}).items()}
        one |= {"lines": row["lines"]} if has_lines else {}
        one |= {"error": row["error"]} if has_errors else {}
        shown.append(one)
    return shown


def _facts(lines: Sequence[str]) -> dict[str, object] | None:
    """Parse lines of a name and a value, for example `entries 5`; None if a line differs."""
    facts: dict[str, object] = {}
    for line in lines:
        name, _, value = line.partition(" ")
        if not value or not set(name) <= NAME_LETTERS or " " in value or name in facts:
            return None
        facts[name] = int(value) if value.lstrip("-").isdecimal() else value
    return facts
