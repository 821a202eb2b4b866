"""Examples of a type as plain data: all numbers and texts of one differ, so that swapped fields are detected.

Only ``python -m tests.golden --write`` uses them, for kinds without an example in a golden file. From then on the text
in the file is the example.
"""

import itertools
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

__all__ = ["BY_NAME", "example"]

# Values for fields whose type is too general, or whose decoder refuses values that its sender never uses.
BY_NAME: dict[str, Any] = {
    "host": "10.1.2.3",
    "addresses": {"gossip": "10.1.2.3:7001"},
    "detail": "one line",
    "key_id": b"12345678",
    "key_ids": (b"12345678", b"abcdefgh"),
}


def example(kind: Any, *, full: bool, numbers: Iterator[int] | None = None, name: str = "") -> Any:
    """Return plain data that ``msgspec.convert`` accepts for the type.

    Args:
        full: Set fields with a default to another value; otherwise leave them out.
    """
    numbers = numbers if numbers is not None else itertools.count(1)
    if name in BY_NAME:
        return BY_NAME[name]
    bounds: dict[str, Any] = {}
    while get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        for note in notes:
            bounds.update({key: value for key in ("ge", "le", "lt") if (value := getattr(note, key, None)) is not None})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is typing.Literal:
        return arguments[-1]
    if origin in (typing.Union, types.UnionType):
        return example(next(one for one in arguments if one is not type(None)), full=full, numbers=numbers, name=name)
    if origin in (list, typing.get_origin(typing.Sequence[int])) or (origin is tuple and arguments[1:] == (...,)):
        return [example(arguments[0], full=full, numbers=numbers) for _ in range(2)]
    if origin is tuple:
        return [example(one, full=full, numbers=numbers) for one in arguments]
    if origin is dict:
        return {
            example(arguments[0], full=full, numbers=numbers): example(arguments[1], full=full, numbers=numbers)
            for _ in range(2)
        }
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, full, numbers)
    return _scalar(kind, bounds, next(numbers), name)


def _scalar(kind: Any, bounds: dict[str, Any], number: int, name: str) -> Any:
    if kind is bool:
        return True
    if kind is int:
        most = bounds.get("le", bounds.get("lt", 1 << 64) - 1)
        return 1000 + number if most >= 1_000_000 else max(bounds.get("ge", 0), number % (most + 1))
    if kind is float:
        return min(number + 0.5, bounds.get("le", 1e9))
    text = f"{name or 'name'}/{number}" if "topic" in name else f"{name or 'name'}-{number}"
    return {str: text[:16], bytes: text.encode()}.get(kind, {"number": number, "names": [text, None]})


def _struct(kind: type[msgspec.Struct], full: bool, numbers: Iterator[int]) -> Any:
    config = kind.__struct_config__
    values = {}
    for field in msgspec.structs.fields(kind):
        if full or field.required:
            value = example(field.type, full=full, numbers=numbers, name=field.name)
            values[field.encode_name] = False if field.default is True else value
    if config.array_like:
        return [*([config.tag] if config.tag is not None else []), *values.values()]
    return {**({config.tag_field: config.tag} if config.tag_field else {}), **values}
