"""The complete state of a core as one value: two are equal exactly when no part has changed.

Objects are walked by their fields, each once (later visits give its number, so cycles end and sharing shows). Functions
are compared by name and bound arguments, for a core calls them later. The walk of a type is cached:
one core has thousands of objects, and is walked for each cell of a table.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

__all__ = ["whole_state"]

PLAIN = (int, float, str, bytes, bool, type(None), Enum, type, ModuleType)
Parts = Callable[[Any], Iterable[object]]


def whole_state(root: object, without: Set[str] = frozenset(), skipped: tuple[type, ...] = ()) -> list[object]:
    """Return all that can be reached from an object, but for fields of some names and objects of some types."""
    seen: dict[int, int] = {}
    kept: list[object] = []  # or an address could be given again
    out: list[object] = []
    waiting: list[object] = [root]
    ways: dict[type, Parts | None] = dict.fromkeys(skipped, _nothing)
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind not in ways:
            ways[kind] = _nothing if issubclass(kind, skipped) else _way(kind, without)
        parts_of = ways[kind]
        if parts_of is None:
            out.append(repr(item) if kind is float else item)  # nan is no other than nan
        elif parts_of is _nothing:
            continue
        elif id(item) in seen:
            out.append(("again", seen[id(item)]))
        else:
            seen[id(item)] = len(seen)
            kept.append(item)
            parts = list(parts_of(item))
            out.append((kind.__qualname__, len(parts)))
            parts.reverse()
            waiting += parts
    return out


def _nothing(_: object) -> Iterable[object]:
    return ()


def _way(kind: type, without: Set[str]) -> Parts | None:
    """Return how an object of a type is walked, None: it is its own value."""
    if issubclass(kind, PLAIN):
        return None
    for kinds, way in _WAYS:
        if issubclass(kind, kinds):
            return way
    return functools.partial(_fields, _slots(kind, without), without)


def _pairs(item: Mapping[object, object]) -> Iterator[object]:
    for pair in item.items():
        yield from pair


def _bound(item: MethodType) -> Iterable[object]:
    return item.__func__.__qualname__, item.__self__


_WAYS: tuple[tuple[type | tuple[type, ...], Parts], ...] = (
    ((bytearray, memoryview), lambda item: (bytes(item),)),
    (Mapping, _pairs),
    ((list, tuple, deque), iter),
    ((set, frozenset), lambda item: sorted(item, key=repr)),
    (functools.partial, lambda item: (item.func, item.args, item.keywords)),
    (MethodType, _bound),
    ((FunctionType, BuiltinFunctionType), lambda item: (item.__qualname__,)),
)


def _slots(kind: type, without: Set[str]) -> tuple[str, ...]:
    """Return the fields of a type that are slots."""
    names: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
        if not slots:  # a compiled class has its public fields so
            names += [name for name, field in each.__dict__.items() if isinstance(field, GetSetDescriptorType)]
    return tuple(name for name in names if not name.startswith("__") and name not in without)


def _fields(slots: tuple[str, ...], without: Set[str], item: Any) -> Iterator[object]:
    for name, value in getattr(item, "__dict__", {}).items():
        if name not in without and not name.startswith("__"):
            yield name
            yield value
    for name in slots:
        try:
            value = object.__getattribute__(item, name)
        except AttributeError:  # a slot that is not set
            continue
        yield name
        yield value
