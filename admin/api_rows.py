"""Rows as the HTTP service tells them: those of the nodes, their moments as text in UTC under the names without unit.

The command line prints the same (``admin/timestamps.py``). ``/looks`` are for programs that gather rows themselves, and
tell them as nodes do.
"""

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, astuple, fields

from admin.timestamps import is_time, iso, ms_of, plain_name, scale_of

__all__ = ["MOMENT_TEXT", "Moment", "moment_of_ms", "row_told", "told", "told_rows", "told_type"]

R = TypeVar("R", bound=Struct)
MOMENT_TEXT = "UTC, as 2026-01-31T23:59:59.999Z."
Moment = Annotated[str, Meta(description=MOMENT_TEXT)]


def moment_of_ms(at_ms: int | None) -> str | None:
    """Return a time of a node as text, None of none."""
    return None if at_ms is None else iso(at_ms / 1000)


@cache
def told_type(row: type[Struct], without: tuple[str, ...] = (), bases: tuple[type[Struct], ...] = ()) -> type[Struct]:
    """Return the type of a row as it is told.

    Args:
        row: Of the nodes.
        without: Columns that are left out.
        bases: Types whose columns come first.
    """
    columns: list[Any] = []
    omits = row.__struct_config__.omit_defaults
    for field in fields(row):
        name = plain_name(field.name)
        if field.name in without:
            continue
        if is_time(field.name):
            columns.append((name, Moment) if field.required else (name, Moment | None, None))
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
    """Return a row as it is told, None of none; what a row leaves out of its own form is left out here."""
    if row is None:
        return None
    made, moments = _maker(type(row))
    values = list(astuple(row))
    for place, scale, default in moments:
        value = values[place]
        values[place] = None if value == default else iso(value / scale)
    return made(*values)


@cache
def _maker(row: type[Struct]) -> tuple[type[Struct], list[tuple[int, float, Any]]]:
    """Return what rows of a type are told as, and of each moment its place, its unit and what stands for none."""
    defaults = _defaults(row)
    moments = [(place, scale_of(name), of) for place, (name, of) in enumerate(defaults.items()) if is_time(name)]
    return told_type(row), moments


@cache
def _defaults(row: type[Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(row)}


def row_told(row: type[R], told_row: Struct) -> R:
    """Return a row from what was told of it.

    Raises:
        ValueError: A moment of it is none.
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
    """Return rows as they are told."""
    return [told(row) for row in rows]
