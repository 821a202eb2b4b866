"""Rows of the HTTP API: the nodes' rows with timestamps as UTC text, under names without a unit.

The command line prints the same (``admin/timestamps.py``). ``/looks`` returns the nodes' rows unchanged, for programs
that merge rows themselves.
"""

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, astuple, fields

from admin.timestamps import is_time, iso, ms_of, plain_name, scale_of

__all__ = ["TIMESTAMP_TEXT", "Timestamp", "format_timestamp_ms", "row_told", "told", "told_rows", "told_type"]

R = TypeVar("R", bound=Struct)
TIMESTAMP_TEXT = "UTC, as 2026-01-31T23:59:59.999Z."
Timestamp = Annotated[str, Meta(description=TIMESTAMP_TEXT)]


def format_timestamp_ms(at_ms: int | None) -> str | None:
    """Return a timestamp as text; None for None."""
    return None if at_ms is None else iso(at_ms / 1000)


@cache
def told_type(row: type[Struct], without: tuple[str, ...] = (), bases: tuple[type[Struct], ...] = ()) -> type[Struct]:
    """Return the API type of a row type.

    Args:
        row: Row type of the nodes.
        without: Columns to omit.
        bases: Types whose columns come first.
    """
    columns: list[Any] = []
    omits = row.__struct_config__.omit_defaults
    for field in fields(row):
        name = plain_name(field.name)
        if field.name in without:
            continue
        if is_time(field.name):
            columns.append((name, Timestamp) if field.required else (name, Timestamp | None, None))
        elif field.required:
            columns.append((name, field.type))
        else:
            columns.append((name, field.type, _default(field)))
    return msgspec.defstruct(row.__name__, columns, bases=bases or None, omit_defaults=omits)


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


def told(row: Struct | None) -> Any:
    """Return the API row of a row, None for None; defaults are omitted where the row type omits them."""
    if row is None:
        return None
    api_row, timestamps = _converter(type(row))
    values = list(astuple(row))
    for index, scale, default in timestamps:
        value = values[index]
        values[index] = None if value == default else iso(value / scale)
    return api_row(*values)


@cache
def _converter(row: type[Struct]) -> tuple[type[Struct], list[tuple[int, float, Any]]]:
    """Return the API type of a row type, and index, unit and null value of each timestamp."""
    defaults = _defaults(row)
    timestamps = [(index, scale_of(name), of) for index, (name, of) in enumerate(defaults.items()) if is_time(name)]
    return told_type(row), timestamps


@cache
def _defaults(row: type[Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(row)}


def row_told(row: type[R], told_row: Struct) -> R:
    """Return the row of an API row.

    Raises:
        ValueError: A timestamp is invalid.
    """
    values = {}
    for name, default in _defaults(row).items():
        value = getattr(told_row, plain_name(name))
        if value is None:
            value = default
        elif is_time(name):
            value = ms_of(value)
        values[name] = value
    return row(**values)


def told_rows(rows: Iterable[Struct]) -> list[Any]:
    """Return the API rows of rows."""
    return [told(row) for row in rows]
