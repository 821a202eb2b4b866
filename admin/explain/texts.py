"""Numbers, durations and times in sentences: exact and readable.

Times of day are marked as UTC. A duration of two minutes or more is written in its largest units, followed by the
seconds.
"""

import datetime

__all__ = ["clock", "count", "number", "since", "span"]

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
UNITS_MAX = 3  # units of one duration
LONG_S = 120
DAY_MS = 86_400_000


def number(value: float) -> str:
    """Return a number with spaces between thousands."""
    return f"{int(value):,}".replace(",", " ") if value == int(value) else f"{value:g}"


def count(value: float, word: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number(value)} {word if value == 1 else plural or word + 's'}"


def span(seconds: float) -> str:
    """Return a duration as "4.2 s", "90 s" or "6 d 23 h 59 min (604 784 s)"."""
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
    text = " ".join(f"{amount} {unit}" for amount, unit in parts[:UNITS_MAX] if amount)
    return f"{text} ({number(whole)} s)"


def clock(at_ms: int, now_ms: int | None = None) -> str:
    """Return a time of day, with its date if it is a day or more from now.

    A value outside the calendar, which a node may send, is printed as a number.
    """
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms (outside the calendar)"
    is_far = now_ms is not None and abs(now_ms - at_ms) >= DAY_MS
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if is_far else f"{at:%H:%M:%S} UTC"


def since(at_ms: int | None, now_ms: int) -> str:
    """Return " since 14:02:48 UTC, for 30 s" for a time, "" for None."""
    return "" if at_ms is None else f" since {clock(at_ms, now_ms)}, for {span(max(0, now_ms - at_ms) / 1000)}"
