"""Output of results: tables for people; JSON, JSON lines, YAML and CSV for programs.

A list of objects is a table, with columns in the order of first appearance. An object is a list of fields; a list of
objects inside it is a separate table. Tables in a pipe are plain text of any width and stable between releases.
Tables on a terminal have its width and bold headings; ``rich`` draws them, at 2 ms a row. Names come from clients:
control and direction-changing characters are shown as numbers, in JSON as equivalent escapes.
"""

import csv
import enum
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from admin.timestamps import ms_of

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["OutputFormat", "OutputOption", "cells_of", "print_result", "print_table", "printable", "render", "table_of"]

FLAT = {str, int, float, bool, type(None)}
FLAT_OR_LIST = FLAT | {list}
ONE_OF = ({str}, {int}, {bool})  # types whose equal values have equal cells
TIME_ENDS = ("at", "until", "written")  # endings of timestamp names
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")  # format of ``admin/timestamps.py``
PIPE_WIDTH = 100_000  # columns; lines in a pipe are never wrapped


class OutputFormat(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"  # a table with additional columns
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"


OutputOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="Output format: table, wide, json, jsonl, yaml or csv.")
]


def print_result(result: object, output: OutputFormat) -> None:
    """Print a result in an output format."""
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        _print_blocks(_tables(result))
    else:
        typer.echo(render(result, output))


def print_table(heads: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Print columns of cells as one table."""
    _print_blocks([_Block([printable(head).upper() for head in heads], [*zip(*columns, strict=True)])])


def cells_of(make: Callable[[Any], object], values: Sequence[Any]) -> list[str]:
    """Return the cells of a column; equal values are formatted once."""
    if {*map(type, values)} - {type(None)} in ONE_OF:
        made = {value: _cell(make(value)) for value in {*values}}
        return [made[value] for value in values]
    return [_cell(make(value)) for value in values]


def _print_blocks(blocks: "Sequence[_Block | str]") -> None:
    if not sys.stdout.isatty():
        typer.echo("\n\n".join(_text(block) for block in blocks))
        return
    from rich.console import Console

    # NO_COLOR means plain text: rich would omit only the colours, not bold headings.
    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(markup=False, emoji=False, highlight=False, color_system=colours)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        console.print(_drawn(block))


def render(result: object, output: OutputFormat) -> str:
    """Return a result as plain text, without a final newline."""
    if output is OutputFormat.JSON:
        return _json(result, 2)
    if output is OutputFormat.JSONL:
        return "\n".join(_line(item) for item in _lines(result))
    if output is OutputFormat.YAML:
        return _yaml(result)
    if output is OutputFormat.CSV:
        return "\n\n".join(_csv(rows) for rows in _blocks(result))
    return "\n\n".join(_text(table) for table in _tables(result))


def printable(text: str) -> str:
    """Return a text with control characters replaced by Python escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _json(value: object, indent: int | None = None, of: json.JSONEncoder | None = None) -> str:
    text = (of or (_ON_LINES if indent else _ON_ONE_LINE)).encode(value)
    if (text.replace("\n", "") if indent else text).isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def _line(item: object) -> str:
    """Return one line of JSON; msgspec encodes flat rows ten times as fast."""
    if isinstance(item, dict) and _is_flat(item):
        import msgspec

        try:
            text = msgspec.json.encode(item).decode()
        except (OverflowError, UnicodeEncodeError):  # more than 64 bits; a lone surrogate
            text = ""
        if text.isprintable() and text:
            return text
    return _json(item, of=_ON_ONE_LINE_CLOSE)


def _is_flat(item: Mapping[str, object]) -> bool:
    types = {*map(type, item.values())}
    if types <= FLAT:
        return True
    if not types <= FLAT_OR_LIST:
        return False
    return all({*map(type, value)} <= FLAT for value in item.values() if type(value) is list and value)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _yaml(result: object) -> str:
    import yaml

    plain = json.loads(json.dumps(result, default=_plain))
    text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=PIPE_WIDTH))
    if not text.replace("\n", "").isprintable():  # a character changes the text direction
        text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=PIPE_WIDTH))
    return text.removesuffix("\n")


def _lines(result: object) -> Sequence[object]:
    """Return the items for separate lines: the rows of a list, or of an object that contains only a list."""
    if isinstance(result, Mapping) and len(result) == 1 and isinstance(only := next(iter(result.values())), list):
        return only
    return result if isinstance(result, list) else [] if result is None else [result]


def _blocks(result: object) -> list[Sequence[Mapping[str, Any]]]:
    """Return the tables of a result; its fields come first as a table of one row."""
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


_ON_ONE_LINE = json.JSONEncoder(default=_plain, ensure_ascii=False)
_ON_ONE_LINE_CLOSE = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":"))
_ON_LINES = json.JSONEncoder(default=_plain, ensure_ascii=False, indent=2)


class _Block(NamedTuple):
    """A table before drawing; ``heads`` is empty for fields, whose names are the first column."""

    heads: list[str]
    rows: Sequence[Sequence[str]]
    width: int = 0  # minimum width of the first column


def _text(block: "_Block | str") -> str:
    """Return a table as plain text with columns of the widest cell, separated by two spaces."""
    if isinstance(block, str):
        return block
    lines = [block.heads, *block.rows] if block.heads else block.rows
    padded: list[list[str]] = []
    for number, column in enumerate(zip(*lines, strict=True)):
        least = 0 if number else block.width
        if all(map(str.isascii, column)):
            width = max(least, max(map(len, column)))
            padded.append([cell.ljust(width) for cell in column])
        else:
            sizes = [_wide(cell) for cell in column]
            width = max(least, max(sizes))
            padded.append([cell + " " * (width - size) for cell, size in zip(column, sizes, strict=True)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _wide(cell: str) -> int:
    """Return the terminal width of a text with non-ASCII characters."""
    from rich.cells import cell_len

    return cell_len(cell)


def _drawn(block: "_Block | str") -> "Table | str":
    """Return a table for a terminal, with bold headings."""
    if isinstance(block, str):
        return block
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=bool(block.heads))
    if block.heads:
        for head in block.heads:
            table.add_column(head, overflow="fold")
    else:
        table.add_column(style="bold", no_wrap=True, min_width=block.width)
        table.add_column(overflow="fold")
    for row in block.rows:
        table.add_row(*row)
    return table


def table_of(rows: Sequence[Mapping[str, Any]]) -> "Table | str":
    """Return rows as a table for a terminal."""
    return _drawn(_table(rows))


def _tables(result: object) -> list[_Block | str]:
    """Return a result's fields and tables, or its one value."""
    if _is_table(result):
        return [_table(result)]  # type: ignore[arg-type]
    if not isinstance(result, Mapping):
        if isinstance(result, str) and result:
            return ["\n".join(printable(line) for line in result.split("\n"))]
        return [] if result is None else [_cell(result)]
    facts = [[printable(str(key)), _shown(str(key), value)] for key, value in result.items() if not _is_table(value)]
    tables = [_table(value) for value in result.values() if _is_table(value)]
    width = max(len(str(key)) for key in result) if result else 0
    return [_Block([], facts, width), *tables] if facts else [*tables]


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _shown(key: str, value: object) -> str:
    """Return a cell: sizes in binary units, timestamps of a reply as ages."""
    if isinstance(value, str) and key.rpartition("_")[2] in TIME_ENDS and TIMESTAMP.fullmatch(value):
        from stratamq.cli.cells import age_of

        return age_of(ms_of(value) / 1000, time.time())
    if isinstance(value, int) and (key == "bytes" or key.endswith("_bytes")):
        size = float(value)
        for unit in ("B", "KiB", "MiB", "GiB"):
            if size < 1024:
                return f"{size:.4g} {unit}"
            size /= 1024
        return f"{size:.4g} TiB"
    return _cell(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> _Block:
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    cells = [[_shown(column, row.get(column)) for column in columns] for row in rows]
    return _Block([printable(column).upper() for column in columns], cells)


def _cell(value: object) -> str:
    if type(value) is str:
        return printable(value) or "-"
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    if isinstance(value, Mapping):
        # Names that begin with @ are local to a machine, for example an edge's socket for a balancer.
        shown = (f"{printable(str(key))}={_cell(item)}" for key, item in value.items() if not str(key).startswith("@"))
        return ",".join(shown) or "-"
    return printable(str(value))
