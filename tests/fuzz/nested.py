"""Structured damage: msgpack payloads that are nested, cut, of extreme values, or have bytes instead of text.

Bytes are parsed into plain values as far as possible, changed as a tree, and encoded again, so that one value deep
inside a valid message is wrong. Flipped bytes (``targets.mutate``) seldom get so far.
"""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["NESTINGS", "damaged_forms", "mutate_tree", "nested"]

NESTINGS = (10, 100, 511, 1_000, 1_024, 3_900, 10_000)
INTEGERS = (
    0,
    1,
    -1,
    2,
    255,
    256,
    0xFFFE,
    0xFFFF,
    0x10000,
    (1 << 31) - 1,
    1 << 32,
    (1 << 44) - 1,
    1 << 48,
    (1 << 62) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(10**9),
    -(1 << 63),
    10**9,
)
TEXTS = ("", "#", "+", "a/b", "$SYS/x", "$share/g/a", "$share//", "a" * 65, "\0", "\ud7ff", "é" * 300, "a/" * 40, "/")
BYTES = (b"", b"\0", b"\xff\xfe", b"g/a", b"x" * 300)
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, float("nan"), float("inf"), -1.5, [], {}, [[]], {"a": 1})
NO_TEXT = b"\xa4\xff\xfe\xc3\x28"  # a str of msgpack that is no UTF-8
MARK = "\u2603no text\u2603"  # replaced by it after encoding


def nested(depth: int, *, json: bool = False) -> bytes:
    """Return so many arrays in one another, in an unknown field of an object."""
    if json:
        return b'{"x":' + b"[" * depth
    return b"\x82\xa4type\xa9FollowMap\xa1z" + b"\x91" * depth


def damaged_forms(good: bytes) -> Iterator[bytes]:
    """Yield a good payload cut at every byte, with every byte replaced by bad ones, and nested in its place."""
    yield b""
    for at in range(len(good)):
        yield good[:at]
        for value in (0x00, 0x80, 0x91, 0xC1, 0xD3, 0xFF):
            yield good[:at] + bytes((value,)) + good[at + 1 :]
        yield good[:at] + b"\x91" * 10_000 + good[at:]


def mutate_tree(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return a good payload with up to three values of its tree changed; now and then cut, or nested deeply."""
    data = rng.choice(corpus)
    try:
        tree = msgspec.msgpack.decode(data, strict=False)
    except Exception:
        return data  # a batch, or a finding of byte flips
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _changed(tree, rng, 0)
    try:
        encoded = msgspec.msgpack.encode(tree)
    except (OverflowError, RecursionError, TypeError, ValueError):  # no such payload can be written
        return data
    marked = msgspec.msgpack.encode(MARK)
    encoded = encoded.replace(marked, NO_TEXT)
    kind = rng.randrange(40)
    if kind == 0:
        return encoded[: rng.randrange(len(encoded) + 1)]
    if kind == 1:
        at = rng.randrange(len(encoded) + 1)
        return encoded[:at] + rng.choice((b"\x91", b"\x81\xa1a", b"\x81\x01")) * rng.choice(NESTINGS[:6]) + encoded[at:]
    return encoded


def _changed(value: Any, rng: random.Random, depth: int) -> Any:
    """Return the tree with one node of it replaced, chosen on a way down."""
    if isinstance(value, dict) and value and rng.randrange(8):
        key = rng.choice(list(value))
        if key == "type" and rng.randrange(20):
            return value
        return {**value, key: _changed(value[key], rng, depth + 1)}
    if isinstance(value, list) and value and rng.randrange(8):
        at = rng.randrange(len(value))
        if depth == 0 and at == 0 and isinstance(value[0], str) and rng.randrange(20):
            return value  # the tag
        choice = rng.randrange(12)
        if choice == 0:
            return value[:at] + value[at + 1 :]
        if choice == 1:
            return value + [value[at]] * rng.choice((1, 2, 100))
        return [*value[:at], _changed(value[at], rng, depth + 1), *value[at + 1 :]]
    return _replacement(value, rng)


def _replacement(value: Any, rng: random.Random) -> Any:
    """Return another value, mostly of the same kind: values of the right type reach the cores."""
    if rng.randrange(10) == 0:
        pool: tuple[Any, ...] = rng.choice((INTEGERS, TEXTS, BYTES, OTHERS))
        return rng.choice(pool)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTEGERS, *(value + 1, value - 1, rng.randrange(8), (1 << 20) + rng.randrange(64)) * 4))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e9, 1e300, float("nan"), float("inf"), value + 1))
    if isinstance(value, str):
        return rng.choice((*TEXTS, MARK, value + "x", value[:1]))
    if isinstance(value, bytes):
        return rng.choice((*BYTES, value[:-1], value + b"\0", nested(rng.choice(NESTINGS))))
    if isinstance(value, list | dict):
        deep: Any = value
        for _ in range(rng.choice((1, 2, 30, 400))):
            deep = [deep]
        return rng.choice(([], {}, deep, value))
    return rng.choice(OTHERS)
