"""Results on the command line: tables for people, JSON, lines of JSON and CSV for programs.

A list of objects is a table, its columns in the order in which keys first appear; an object is a list of facts, and a
list of objects inside it is a table of its own. Into a pipe tables go as plain text of any width, which stays as it is
from version to version; a terminal gets them in its own width and with bold heads. ``rich`` lays both out and is
imported when there is a table to draw. Names come from clients: a character that a terminal would act on, or that would
turn a line around, is shown as its number, in JSON as an escape that means the same.
"""

import csv
import enum
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["OutputFormat", "OutputOption", "print_result", "printable", "render"]

PIPE_WIDTH = 100_000  # columns: no line of a pipe is broken


class OutputFormat(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="table, json, jsonl or csv.")]


def print_result(result: object, output: OutputFormat) -> None:
    """Print a result as the receiver of stdout can use it."""
    if output is OutputFormat.TABLE and sys.stdout.isatty():
        from rich.console import Console

        console = Console(markup=False, emoji=False, highlight=False)
        for number, table in enumerate(_tables(result, heads="bold")):
            if number:
                console.print()
            console.print(table)
    else:
        typer.echo(render(result, output))


def render(result: object, output: OutputFormat) -> str:
    """Return a result as plain text, without a final newline."""
    if output is OutputFormat.JSON:
        return _json(result, 2)
    if output is OutputFormat.JSONL:
        return "\n".join(_json(item) for item in _lines(result))
    if output is OutputFormat.CSV:
        return "\n\n".join(_csv(rows) for rows in _blocks(result))
    return "\n\n".join(_text(table) for table in _tables(result))


def printable(text: str) -> str:
    """Return a text without anything that a terminal acts on; what stands for it is as Python writes it."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _json(value: object, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, default=_plain, ensure_ascii=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _lines(result: object) -> Sequence[object]:
    """Return what stands on lines of their own: the rows of a list, also where an object holds nothing else."""
    if isinstance(result, Mapping) and len(result) == 1 and isinstance(only := next(iter(result.values())), list):
        return only
    return result if isinstance(result, list) else [] if result is None else [result]


def _blocks(result: object) -> list[Sequence[Mapping[str, Any]]]:
    """Return the tables of a result, its facts first as a table of one row."""
    if _is_table(result):
        return [result]  # type: ignore[list-item]
    if not isinstance(result, Mapping):
        return [[{"value": result}]] if result not in (None, []) else []
    facts = {key: value for key, value in result.items() if not _is_table(value) and value != []}
    return [*([[facts]] if facts else []), *(value for value in result.values() if _is_table(value))]


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([printable(str(column)) for column in columns])
    for row in rows:
        values = (row.get(column) for column in columns)
        writer.writerow(
            [printable(_json(value) if isinstance(value, bool | list | Mapping) else _bare(value)) for value in values]
        )
    return text.getvalue().removesuffix("\n")


def _bare(value: object) -> str:
    return "" if value is None else str(_plain(value))


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(table: "Table | str") -> str:
    if isinstance(table, str):
        return table
    from rich.console import Console

    console = Console(width=PIPE_WIDTH, markup=False, emoji=False, highlight=False, no_color=True)
    with console.capture() as shown:
        console.print(table)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _tables(result: object, heads: str = "none") -> "list[Table | str]":
    """Return a result's facts and tables, or its one value.

    Args:
        heads: Style of the heads of columns and of the names of facts.
    """
    if _is_table(result):
        return [_table(result, heads)]  # type: ignore[arg-type]
    if not isinstance(result, Mapping):
        if isinstance(result, str) and result:
            return ["\n".join(printable(line) for line in result.split("\n"))]
        return [] if result is None else [_cell(result)]
    facts = {printable(str(key)): _shown(str(key), value) for key, value in result.items() if not _is_table(value)}
    tables = [_table(value, heads) for value in result.values() if _is_table(value)]
    width = max(len(str(key)) for key in result) if result else 0
    return [_grid(facts, width, heads), *tables] if facts else [*tables]


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _shown(key: str, value: object) -> str:
    """Return a cell; sizes in binary units (in JSON they stay numbers)."""
    if isinstance(value, int) and (key == "bytes" or key.endswith("_bytes")):
        size = float(value)
        for unit in ("B", "KiB", "MiB", "GiB"):
            if size < 1024:
                return f"{size:.4g} {unit}"
            size /= 1024
        return f"{size:.4g} TiB"
    return _cell(value)


def _table(rows: Sequence[Mapping[str, Any]], heads: str) -> "Table":
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    table = _empty(heads)
    for column in columns:
        table.add_column(printable(column).upper(), overflow="fold")
    for row in rows:
        table.add_row(*(_shown(column, row.get(column)) for column in columns))
    return table


def _grid(facts: Mapping[str, str], width: int, heads: str) -> "Table":
    """Return names, of at least this width, and values."""
    table = _empty(heads, show_header=False)
    table.add_column(style=heads, no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _empty(heads: str, *, show_header: bool = True) -> "Table":
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=heads, show_header=show_header)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{printable(str(key))}={_cell(item)}" for key, item in value.items()) or "-"
    return printable(str(value))
