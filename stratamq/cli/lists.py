"""List options on the command line: selection of rows and columns, and validation.

A filter is ``key=value`` with ``*`` (any text) and ``?`` (one character); it matches the whole value, case-sensitively.
Regular expressions are not supported: the cost of a pattern is at most its length times that of the value.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from conf.errors import ExitCode, UserError

__all__ = [
    "LIMIT",
    "LIMIT_MAX",
    "AllOption",
    "ColumnsOption",
    "FilterOption",
    "LimitOption",
    "ListRequest",
    "NodeOption",
    "check_nodes",
    "wish",
]

LIMIT = 100
LIMIT_MAX = 100_000

Row = Mapping[str, Any]

FilterOption = Annotated[
    list[str], typer.Option("--filter", help="key=value, with wildcards * and ?; repeat to combine with AND.")
]
ColumnsOption = Annotated[str, typer.Option("--columns", help="Comma-separated column names; default: all.")]
LimitOption = Annotated[int, typer.Option("--limit", help=f"Maximum number of rows, up to {LIMIT_MAX}.")]
NodeOption = Annotated[list[str], typer.Option("--node", help="Only this node; repeatable.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show every row, regardless of --limit.")]


class ListRequest(NamedTuple):
    """Validated list options: filters, columns, limit."""

    filters: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]  # empty: all
    limit: int  # 0: no limit

    def chosen(self, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], int]:
        """Return the rows to show, in order, and the number of rows that match the filters.

        Raises:
            UserError: No row has the column.
        """
        known = list(dict.fromkeys(str(key) for row in rows for key in row))
        _check("filter key", (key for key, _ in self.filters), known)
        _check("column", self.columns, known)
        passed = [row for row in rows if all(_passes(row.get(key), pattern) for key, pattern in self.filters)]
        columns = self.columns or tuple(known)
        return [
            {column: row.get(column) for column in columns if self.columns or column in row}
            for row in passed[: self.limit or None]
        ], len(passed)


def wish(
    filters: Sequence[str], columns: str, limit: int, *, everything: bool, known: Sequence[str] = ()
) -> ListRequest:
    """Validate the options of a list before any request.

    Args:
        filters: Values of ``--filter``.
        columns: Value of ``--columns``.
        limit: Value of ``--limit``.
        everything: Whether ``--all`` is set.
        known: Known column names.
    Raises:
        UserError: An option is invalid.
    """
    pairs = []
    for text in filters:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise UserError(
                f"--filter {text!r} is invalid: use key=value, with wildcards * and ? in the value", ExitCode.USAGE
            )
        pairs.append((key.strip().lower(), value))
    names = tuple(name.strip().lower() for name in columns.split(",")) if columns else ()
    if not all(names):
        raise UserError(f"--columns {columns!r} is invalid: separate names with one comma", ExitCode.USAGE)
    if not 1 <= limit <= LIMIT_MAX:
        raise UserError(
            f"--limit {limit} is out of range: use 1 to {LIMIT_MAX}, or --all for every row", ExitCode.USAGE
        )
    _check("filter key", (key for key, _ in pairs), known)
    _check("column", names, known)
    return ListRequest(tuple(pairs), names, 0 if everything else limit)


def check_nodes(wanted: Iterable[str], known: Sequence[str]) -> None:
    """Validate the node names of ``--node``.

    Raises:
        UserError: A node does not exist.
    """
    for name in wanted:
        if name not in known:
            raise UserError(f"unknown node {name!r}: use one of {', '.join(sorted(known))}", ExitCode.USAGE)


def _check(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if known and name not in known:
            raise UserError(f"unknown {what} {name!r}: use one of {', '.join(known)}", ExitCode.USAGE)


def _passes(value: object, pattern: str) -> bool:
    """Return whether a value matches; one matching item of a list suffices, and a missing value is an empty text."""
    if isinstance(value, list | tuple):
        return any(_passes(item, pattern) for item in value)
    if isinstance(value, bool):
        return _matches("yes" if value else "no", pattern)
    return _matches("" if value is None else str(value), pattern)


def _matches(text: str, pattern: str) -> bool:
    """Return whether a text matches a pattern; only the last ``*`` is backtracked."""
    at = place = 0
    star, tried = -1, 0
    while at < len(text):
        if place < len(pattern) and pattern[place] == "*":
            star, tried = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", text[at]):
            at += 1
            place += 1
        elif star >= 0:
            tried += 1
            at, place = tried, star + 1
        else:
            return False
    return pattern[place:].strip("*") == ""
