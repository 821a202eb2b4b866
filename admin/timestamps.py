"""Moments as programs get them, from the command line and from the HTTP service: one name, and one text.

Nodes tell times as numbers, in milliseconds or microseconds, and the end of a column's name says so. A program gets
ISO 8601 in UTC, under the name without the unit.
"""

import datetime
import math
import time
from functools import lru_cache

__all__ = ["TIME_US", "is_time", "iso", "iso_us", "ms_of", "plain_name", "scale_of"]

TIME_ENDS = ("at_ms", "since_ms", "until_ms", "not_after_ms")
TIME_US = "at_us"


def is_time(name: str) -> bool:
    """Return whether a column holds a moment."""
    return name.endswith(TIME_ENDS) or name == TIME_US


def plain_name(name: str) -> str:
    """Return a column's name for programs: a time's says no unit."""
    return name.rpartition("_")[0] if is_time(name) else name


def scale_of(name: str) -> float:
    """Return how many of a column's unit are a second; 0 of what is no moment."""
    return (1e6 if name == TIME_US else 1e3) if is_time(name) else 0.0


def iso(seconds: float) -> str:
    """Return a time as text, to the millisecond; what no calendar has as the number."""
    try:
        whole, thousandths = divmod(math.floor(seconds * 1e3 + 1e-4), 1000)  # 0.1 us: what a float of now is short of
        return f"{_second(whole)}.{thousandths:03d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


def ms_of(text: str) -> int:
    """Return the milliseconds since 1970 of a text of ``iso``.

    Raises:
        ValueError: It is none.
    """
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)


def iso_us(at_us: int) -> str:
    """Return a time as text, to the microsecond; what no calendar has as the number."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_us // 1_000_000)) + f".{at_us % 1_000_000:06d}Z"
    except (ValueError, OverflowError, OSError):
        return str(at_us)


@lru_cache(4096)
def _second(whole: int) -> str:
    """Return a whole second as text: a long list has many times of one."""
    return datetime.datetime.fromtimestamp(whole, datetime.UTC).isoformat(timespec="seconds")[:19]
