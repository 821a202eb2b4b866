"""Encoding of settings as TOML; the standard library can only decode it."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from conf.url_settings import Url

__all__ = ["toml_document", "toml_literal"]


def toml_literal(value: object) -> str:
    """Return a value as a TOML literal on one line; None is an empty string."""
    if value is None:
        return '""'
    if isinstance(value, BaseModel):
        return toml_literal(dict(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(toml_literal(item) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Url):
        value = value.plain
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)  # JSON strings are TOML basic strings
    raise TypeError(f"cannot encode as TOML: {type(value).__name__}")


def toml_document(rooms: Mapping[str, Mapping[str, object]]) -> str:
    """Return sections with their keys; a mapping of mappings becomes sub-tables."""
    lines: list[str] = []
    for room, keys in rooms.items():
        _table(room, keys, lines)
    return "\n".join(lines) + "\n"


def _table(name: str, keys: Mapping[str, object], lines: list[str]) -> None:
    tables = {key: value for key, value in keys.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in keys.items() if key not in tables}
    if plain or not tables:
        lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
        lines += [f"{key} = {toml_literal(value)}" for key, value in plain.items()]
    for key, value in tables.items():
        _table(f"{name}.{key}", value, lines)
