"""Strict JSON for untrusted input: unambiguous, or refused.

Each text has a bound of bytes and nesting, checked before parsing. Repeated names, invalid numbers (NaN, Infinity,
1e999) and lone surrogates are refused, because two parsers could read them differently.
"""

import json
import math
import re
from typing import NoReturn, TypeGuard

__all__ = ["is_integer", "is_number", "read_json"]

# A complete string, or a bracket. In invalid JSON the parser stops before this count becomes wrong.
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)
DIGITS_MAX = 400  # of an integer; a float has no more before its point


def read_json(data: bytes, bytes_max: int, depth_max: int) -> object:
    """Return the decoded value.

    Raises:
        ValueError: It is not JSON in UTF-8, or beyond a bound.
    """
    if len(data) > bytes_max:
        raise ValueError(f"{len(data)} bytes of JSON, more than {bytes_max}")
    if _depth(data, depth_max) > depth_max:
        raise ValueError(f"JSON nested deeper than {depth_max}")
    try:
        text = data.decode()
        read: object = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {type(error).__name__}") from None
    if "\\u" in text and _has_half_character(read):
        raise ValueError("JSON with half a character")
    return read


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an integer or a finite number; True and False are not."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _depth(data: bytes, enough: int) -> int:
    deepest = depth = 0
    for found in TOKEN.finditer(data):
        if found[0] in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
            if deepest > enough:
                break
        elif found[0] in (b"]", b"}"):
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a name stands twice")
    return read


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number without bound")
    return value


def _int(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError("an integer without bound")
    return int(text)


def _has_half_character(value: object) -> bool:
    """Return whether a string in a value has a lone surrogate, which UTF-8 cannot encode."""
    ahead = [value]
    while ahead:
        each = ahead.pop()
        if isinstance(each, str):
            if any("\ud800" <= char <= "\udfff" for char in each):
                return True
        elif isinstance(each, list):
            ahead += each
        elif isinstance(each, dict):
            ahead += each.keys()
            ahead += each.values()
    return False
