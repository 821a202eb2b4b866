"""The whole state of a core as one value: two of them are equal exactly when nothing at all has changed.

Objects are walked by their fields, each once (later visits give its number, so cycles end and sharing shows). Functions
count by name and their bound arguments, for they are what a core will do later.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

__all__ = ["whole_state"]

PLAIN = (int, float, str, bytes, bool, type(None), Enum, type, ModuleType)


def whole_state(root: object, without: Callable[[object, str], bool]) -> list[object]:
    """Return all that can be reached from an object; ``without`` says which fields and whole objects do not count."""
    seen: dict[int, int] = {}
    kept: list[object] = []  # or an address could be given again
    out: list[object] = []
    waiting: list[object] = [root]
    while waiting:
        item = waiting.pop()
        if without(item, ""):
            continue
        if isinstance(item, PLAIN):
            out.append(repr(item) if isinstance(item, float) else item)  # nan is no other than nan
            continue
        if id(item) in seen:
            out.append(("again", seen[id(item)]))
            continue
        seen[id(item)] = len(seen)
        kept.append(item)
        parts = list(_parts(item, without))
        out.append((type(item).__qualname__, len(parts)))
        waiting.extend(reversed(parts))
    return out


def _parts(item: Any, without: Callable[[object, str], bool]) -> Iterator[object]:
    if isinstance(item, bytearray | memoryview):
        yield bytes(item)
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield key
            yield value
    elif isinstance(item, list | tuple | deque):
        yield from item
    elif isinstance(item, set | frozenset):
        yield from sorted(item, key=repr)
    elif isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield from (item.__func__.__qualname__, item.__self__)
    elif isinstance(item, FunctionType | BuiltinFunctionType):
        yield item.__qualname__
    else:
        yield from _fields(item, without)


def _fields(item: Any, without: Callable[[object, str], bool]) -> Iterator[object]:
    names = list(getattr(item, "__dict__", ()))
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
        if not slots:  # a compiled class has its public fields so
            names += [name for name, field in kind.__dict__.items() if isinstance(field, GetSetDescriptorType)]
    for name in names:
        if name.startswith("__") or without(item, name):
            continue
        try:
            value = object.__getattribute__(item, name)
        except AttributeError:  # a slot that is not set
            continue
        yield name
        yield value
