"""Timestamps for programs, the same in the command line and the HTTP service.

Nodes send times as numbers of milliseconds or microseconds; the suffix of the column's name is the unit. Programs get
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
    """Return whether a column holds a timestamp."""
    return name.endswith(TIME_ENDS) or name == TIME_US


def plain_name(name: str) -> str:
    """Return a column's name for programs: timestamps lose the unit."""
    return name.rpartition("_")[0] if is_time(name) else name


def scale_of(name: str) -> float:
    """Return how many of a column's units are a second; 0 if it is not a timestamp."""
    return (1e6 if name == TIME_US else 1e3) if is_time(name) else 0.0


def iso(seconds: float) -> str:
    """Return a time as text, to the millisecond; a number outside the calendar stays a number."""
    try:
        whole, thousandths = divmod(math.floor(seconds * 1e3 + 1e-4), 1000)  # 0.1 us: rounding error of a float
        return f"{_second(whole)}.{thousandths:03d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


def ms_of(text: str) -> int:
    """Return the milliseconds since 1970 of a text of ``iso``.

    Raises:
        ValueError: The text is not a timestamp.
    """
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)


def iso_us(at_us: int) -> str:
    """Return a time as text, to the microsecond; a number outside the calendar stays a number."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_us // 1_000_000)) + f".{at_us % 1_000_000:06d}Z"
    except (ValueError, OverflowError, OSError):
        return str(at_us)


@lru_cache(4096)
def _second(whole: int) -> str:
    """Return a whole second as text; cached, because rows of a list share seconds."""
    return datetime.datetime.fromtimestamp(whole, datetime.UTC).isoformat(timespec="seconds")[:19]
