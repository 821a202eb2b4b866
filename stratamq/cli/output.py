"""Results on the command line: tables for people, JSON, lines of JSON, YAML and CSV for programs.

A list of objects is a table, its columns in the order in which keys first appear; an object is a list of facts, and a
list of objects inside it is a table of its own. Into a pipe tables go as plain text of any width, which stays as it is
from version to version; a terminal gets them in its own width and with bold heads, drawn by ``rich``, which takes 2 ms
a row. Names come from clients: a character that a terminal would act on, or that would turn a line around, is shown as
its number, in JSON as an escape that means the same.
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
ONE_OF = ({str}, {int}, {bool})  # types of values that are equal only if their cells are
MOMENTS = ("at", "until", "written")  # ends of names of moments
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")  # as ``admin/timestamps.py`` writes one
PIPE_WIDTH = 100_000  # columns: no line of a pipe is broken


class OutputFormat(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"  # a table of more columns, where a list has them
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"


OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="table, wide, json, jsonl, yaml or csv.")]


def print_result(result: object, output: OutputFormat) -> None:
    """Print a result as the receiver of stdout can use it."""
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        _print_blocks(_tables(result))
    else:
        typer.echo(render(result, output))


def print_table(heads: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Print columns of cells as one table."""
    _print_blocks([_Block([printable(head).upper() for head in heads], [*zip(*columns, strict=True)])])


def cells_of(make: Callable[[Any], object], values: Sequence[Any]) -> list[str]:
    """Return the cells of a column: what is made of its values, each of those made once."""
    if {*map(type, values)} - {type(None)} in ONE_OF:
        made = {value: _cell(make(value)) for value in {*values}}
        return [made[value] for value in values]
    return [_cell(make(value)) for value in values]


def _print_blocks(blocks: "Sequence[_Block | str]") -> None:
    if not sys.stdout.isatty():
        typer.echo("\n\n".join(_text(block) for block in blocks))
        return
    from rich.console import Console

    # NO_COLOR means plain text: rich would only leave the colours out, and write bold heads.
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
    """Return a text without anything that a terminal acts on; what stands for it is as Python writes it."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _json(value: object, indent: int | None = None, of: json.JSONEncoder | None = None) -> str:
    text = (of or (_ON_LINES if indent else _ON_ONE_LINE)).encode(value)
    if (text.replace("\n", "") if indent else text).isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def _line(item: object) -> str:
    """Return one line of JSON; a flat row is written ten times as fast by msgspec."""
    if isinstance(item, dict) and _is_flat(item):
        import msgspec

        try:
            text = msgspec.json.encode(item).decode()
        except (OverflowError, UnicodeEncodeError):  # more than 64 bits; half of a pair
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
    if not text.replace("\n", "").isprintable():  # some letter would turn a line around
        text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=PIPE_WIDTH))
    return text.removesuffix("\n")


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


_ON_ONE_LINE = json.JSONEncoder(default=_plain, ensure_ascii=False)
_ON_ONE_LINE_CLOSE = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":"))
_ON_LINES = json.JSONEncoder(default=_plain, ensure_ascii=False, indent=2)


class _Block(NamedTuple):
    """A table before it is drawn; ``heads`` are none for facts, whose names are the first column."""

    heads: list[str]
    rows: Sequence[Sequence[str]]
    width: int = 0  # of the first column, at least


def _text(block: "_Block | str") -> str:
    """Return a table as plain text: each column as wide as its widest cell, and two spaces between them."""
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
    """Return how many columns of a terminal a text takes that has more than ASCII."""
    from rich.cells import cell_len

    return cell_len(cell)


def _drawn(block: "_Block | str") -> "Table | str":
    """Return a table for a terminal, with bold heads."""
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
    """Return a result's facts and tables, or its one value."""
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
    """Return a cell; sizes in binary units, moments of a verb's answer as ages."""
    if isinstance(value, str) and key.rpartition("_")[2] in MOMENTS and MOMENT.fullmatch(value):
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
        # A name that begins with @ is for processes of one machine, as an edge's socket for a balancer.
        shown = (f"{printable(str(key))}={_cell(item)}" for key, item in value.items() if not str(key).startswith("@"))
        return ",".join(shown) or "-"
    return printable(str(value))
