"""How results are printed: tables for people, JSON for programs.

A list of objects is a table, its columns in the order in which keys first appear; an object is a list of facts, and a
list of objects inside it is a table of its own.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

__all__ = ["OutputFormat", "OutputOption", "render"]


class OutputFormat(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]


def render(result: object, output: OutputFormat) -> str:
    """Return a result as text, without a final newline."""
    if output is OutputFormat.JSON:
        return json.dumps(result, indent=2, default=_plain, ensure_ascii=False)
    return "\n".join(_lines(result))


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def _lines(result: object) -> list[str]:
    if _is_table(result):
        return _table(result)  # type: ignore[arg-type]
    if isinstance(result, Mapping):
        return _facts(result)
    return [_cell(result)] if result is not None else []


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


def _facts(facts: Mapping[str, Any]) -> list[str]:
    width = max((len(str(key)) for key in facts), default=0)
    lines: list[str] = []
    tables: list[str] = []
    for key, value in facts.items():
        if _is_table(value):
            tables += ["", *_table(value)]
        else:
            lines.append(f"{str(key).ljust(width)}  {_shown(str(key), value)}")
    return lines + tables if lines else tables[1:]


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    cells = [[column.upper() for column in columns]]
    cells += [[_shown(column, row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


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
        return ",".join(f"{key}={_cell(item)}" for key, item in value.items()) or "-"
    return str(value)
