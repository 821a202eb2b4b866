"""Fast parsing of simple command-line values, without typer's pydantic readers.

Typer parses each value with pydantic, whose import takes 0.2 s: half the time of a short command. This module parses
texts, and plainly written numbers, choices and paths. Typer parses all other values and reports errors.
Decision: docs/adr/0198-plain-values.md.
"""

import enum
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import typer.core

__all__ = ["read_plainly"]

WRITTEN: dict[Any, re.Pattern[str]] = {
    int: re.compile(r"[0-9]{1,15}"),
    float: re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?"),
}
JUDGED = ("parser", "path_type", "exists", "resolve_path", "writable", "executable", "allow_dash", "clamp")
READER = "get_runtime_param"  # attribute of typer 0.29 parameters; other versions stay unpatched


class _Plain:
    """The reader of one parameter, used before typer's reader."""

    def __init__(self, parameter: Any, reader: Any) -> None:
        described = parameter.type_descriptor
        annotation, info = described.annotation, described.parameter_info
        self._of_typer: Callable[[], Any] = lambda: reader(parameter)
        self._many = get_origin(annotation) is list
        self._kind = get_args(annotation)[0] if self._many else annotation
        self._least, self._most = info.min, info.max
        if (
            described.file_annotation is not None
            or any(getattr(info, name, None) for name in JUDGED)
            or (self._kind is Path and not (info.file_okay and info.dir_okay))
        ):
            self._kind = None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the parsed value of a parameter, with typer's reader as fallback."""
        if value is None:
            return () if self._many else None
        found: Any = None
        if not self._many:
            found = self._one(value)
        elif isinstance(value, list | tuple):
            items = [self._one(item) for item in value]
            found = None if None in items else items
        return self._of_typer().coerce(value, param=param, ctx=ctx) if found is None else found

    def _one(self, value: Any) -> Any:
        """Return a plainly written value, None for others."""
        kind = self._kind
        if kind is Path:  # an existing file must be readable
            known = isinstance(value, str | Path) and (os.access(value, os.R_OK) or not _is_there(value))
            return Path(value) if known else None
        if kind in WRITTEN:
            number = kind(value) if type(value) is str and WRITTEN[kind].fullmatch(value) else value
            return number if type(number) is kind and self._within(number) else None
        if kind in (str, bool):
            return value if type(value) is kind else None
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return value if type(value) is kind else next((one for one in kind if one.value == value), None)
        return None

    def _within(self, number: float) -> bool:
        return (self._least is None or number >= self._least) and (self._most is None or number <= self._most)


def _is_there(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # not accessible
        return False


def read_plainly() -> None:
    """Install the fast reader into typer."""
    for kind in (typer.core.TyperOption, typer.core.TyperArgument):
        reader = getattr(kind, READER, None)
        if reader is not None and not hasattr(reader, "of_typer"):
            setattr(kind, READER, _reader_before(reader))


def _reader_before(reader: Any) -> Any:
    def plain(parameter: Any) -> _Plain:
        return _Plain(parameter, reader)

    plain.of_typer = reader  # type: ignore[attr-defined]
    return plain
