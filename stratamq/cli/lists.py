"""Lists on the command line: which rows and which columns of an answer are shown, and what is wrong with the wish.

A filter is ``key=value`` with ``*`` (any text) and ``?`` (one character), the whole value, capitals as they are. There
are no regular expressions: a pattern takes at most its length times that of the value, whoever wrote either of them.
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

FilterOption = Annotated[list[str], typer.Option("--filter", help="key=value, with * and ?; several must all hold.")]
ColumnsOption = Annotated[str, typer.Option("--columns", help="Names with commas between; default: all.")]
LimitOption = Annotated[int, typer.Option("--limit", help=f"How many rows at most, up to {LIMIT_MAX}.")]
NodeOption = Annotated[list[str], typer.Option("--node", help="Only this node; may be given several times.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every row, whatever --limit says.")]


class ListRequest(NamedTuple):
    """A wish about a list: rows, columns, how many."""

    filters: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]  # none: all
    limit: int  # 0: no limit

    def chosen(self, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], int]:
        """Return the rows to show, in their order, and how many the filters let through.

        Raises:
            UserError: No row has such a column.
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
    """Read the options of a list, before anybody is asked.

    Args:
        filters: Of ``--filter``.
        columns: Of ``--columns``.
        limit: Of ``--limit``.
        everything: Whether there is none.
        known: Columns that the list has.
    Raises:
        UserError: One of them cannot be meant.
    """
    pairs = []
    for text in filters:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise UserError(f"--filter {text!r}: write key=value, with * and ? in the value", ExitCode.USAGE)
        pairs.append((key.strip().lower(), value))
    names = tuple(name.strip().lower() for name in columns.split(",")) if columns else ()
    if not all(names):
        raise UserError(f"--columns {columns!r}: write names with one comma between them", ExitCode.USAGE)
    if not 1 <= limit <= LIMIT_MAX:
        raise UserError(f"--limit {limit}: write 1 to {LIMIT_MAX}, or --all for every row", ExitCode.USAGE)
    _check("filter key", (key for key, _ in pairs), known)
    _check("column", names, known)
    return ListRequest(tuple(pairs), names, 0 if everything else limit)


def check_nodes(wanted: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name of ``--node`` that the cluster does not have.

    Raises:
        UserError: There is no such node.
    """
    for name in wanted:
        if name not in known:
            raise UserError(f"no node {name!r} in this cluster; there are {', '.join(sorted(known))}", ExitCode.USAGE)


def _check(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if known and name not in known:
            raise UserError(f"no {what} {name!r}; there are {', '.join(known)}", ExitCode.USAGE)


def _passes(value: object, pattern: str) -> bool:
    """Whether a value matches; of a list one item is enough, and what is not there is an empty text."""
    if isinstance(value, list | tuple):
        return any(_passes(item, pattern) for item in value)
    if isinstance(value, bool):
        return _matches("yes" if value else "no", pattern)
    return _matches("" if value is None else str(value), pattern)


def _matches(text: str, pattern: str) -> bool:
    """Whether a text is what a pattern says: only the last ``*`` is ever tried again."""
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
