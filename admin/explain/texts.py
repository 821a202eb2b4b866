"""Numbers, spans of time and moments in sentences: exact, and as people read them.

Times of day are UTC and say so. A span from two minutes on is told in its greatest units, with the seconds behind it.
"""

import datetime

__all__ = ["clock", "count", "number", "since", "span"]

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
SHOWN = 3  # units of one span
LONG_S = 120
DAY_MS = 86_400_000


def number(value: float) -> str:
    """Return a number with a space between its thousands."""
    return f"{int(value):,}".replace(",", " ") if value == int(value) else f"{value:g}"


def count(value: float, word: str, plural: str = "") -> str:
    """Return a number with its word, in the plural where it is not one."""
    return f"{number(value)} {word if value == 1 else plural or word + 's'}"


def span(seconds: float) -> str:
    """Return a span as "4.2 s", "90 s" or "6 d 23 h 59 min (604 784 s)"."""
    if seconds < 10 and seconds != int(seconds):
        return f"{max(0.0, seconds):.1f} s"
    whole = max(0, int(seconds))
    if whole < LONG_S:
        return f"{whole} s"
    left = whole
    parts: list[tuple[int, str]] = []
    for unit, of in UNITS:
        amount, left = divmod(left, of)
        if amount or parts:
            parts.append((amount, unit))
    told = " ".join(f"{amount} {unit}" for amount, unit in parts[:SHOWN] if amount)
    return f"{told} ({number(whole)} s)"


def clock(at_ms: int, now_ms: int | None = None) -> str:
    """Return a moment's time of day, with its date where that is not within a day of now.

    What no calendar has, a node may still tell: it is shown as it is.
    """
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms of no calendar"
    is_far = now_ms is not None and abs(now_ms - at_ms) >= DAY_MS
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if is_far else f"{at:%H:%M:%S} UTC"


def since(at_ms: int | None, now_ms: int) -> str:
    """Return " since 14:02:48 UTC, for 30 s" of a moment, "" of none."""
    return "" if at_ms is None else f" since {clock(at_ms, now_ms)}, for {span(max(0, now_ms - at_ms) / 1000)}"
