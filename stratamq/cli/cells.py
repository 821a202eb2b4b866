"""Values of rows as people and programs read them.

A program gets times as ISO 8601 in UTC, durations in seconds, sizes in bytes, under the names that the HTTP service
has. A table gets times as ages, durations in two units, sizes in binary units, and long names cut, with their length.
The name of a column tells what it holds: ``_at_ms`` a time, ``_s`` seconds, ``bytes`` a size.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from admin.timestamps import TIME_US, is_time, iso, iso_us, plain_name, scale_of

__all__ = [
    "NEVER",
    "TIME_US",
    "age_of",
    "cell_maker",
    "duration",
    "fact_name",
    "fields_of",
    "heading",
    "is_time",
    "iso",
    "iso_us",
    "plain_name",
    "plain_row",
    "plain_value",
    "shown_cell",
    "size",
]

CELL_MAX = 120  # characters of one value in a table; -o json has all of it
NEVER = -1  # of what expires
HEADINGS = {
    "address": "IP:PORT",
    "keep_alive_s": "KEEPALIVE",
    "no_local": "NL",
    "retain_as_published": "RAP",
    "retain_handling": "RH",
    "identifier": "SUB_ID",
    "receive_maximum": "RECV_MAX",
    "subscriptions": "SUBS",
    "rtt_p99_ms": "RTT_P99_MS",
    "queue_oldest_s": "OLDEST",
    "rss_bytes": "RSS",
    "disk_bytes": "DISK",
    "disk_free_bytes": "DISK_FREE",
}


def heading(name: str) -> str:
    """Return the head of a column in a table."""
    if name in HEADINGS:
        return HEADINGS[name]
    if is_time(name):
        return name.removesuffix("_at_ms").removesuffix("_ms").removesuffix("at_us").upper() or "AGE"
    return name.removesuffix("_s").upper()


def fact_name(name: str) -> str:
    """Return the name of a fact about one thing, beside a cell that has its unit."""
    return plain_name(name) if is_time(name) else name.removesuffix("_s")


def fields_of(row: Any) -> dict[str, Any] | None:
    """Return the fields of a row that the node knows; None of no row."""
    import msgspec

    if row is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(row, builtin_types=(bytes,))
    if row.__struct_config__.omit_defaults:  # None is the default of all fields of a look's row
        return found
    return {name: value for name, value in found.items() if value is not None}


def plain_value(name: str, value: object) -> object:
    """Return a value for programs."""
    _, scale = _plain_column(name)
    return iso(value / scale) if scale and isinstance(value, int | float) else value


def plain_row(row: Mapping[str, Any]) -> dict[str, object]:
    """Return a row for programs."""
    told, moments = _plain_columns(tuple(row))
    plain = dict(zip(told, row.values(), strict=True))
    for name, scale in moments:
        if isinstance(value := plain[name], int | float):
            plain[name] = iso(value / scale)
    return plain


@lru_cache(64)
def _plain_columns(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, float]]]:
    """Return the names for programs, and those that are moments with how many of each are a second."""
    columns = [_plain_column(name) for name in names]
    return [told for told, _ in columns], [(told, scale) for told, scale in columns if scale]


@lru_cache(256)
def _plain_column(name: str) -> tuple[str, float]:
    """Return a column's name for programs, and how many of it are a second, 0 of what is no time."""
    return plain_name(name), scale_of(name)


def shown_cell(name: str, value: Any, now_s: float) -> object:
    """Return a value for a table."""
    return cell_maker(name, now_s)(value)


def cell_maker(name: str, now_s: float) -> Callable[[Any], object]:
    """Return what makes the cells of one column: a long table looks at the column's name once."""
    if is_time(name):
        scale = scale_of(name)
        of_number: Callable[[float], object] = lambda value: age_of(value / scale, now_s)  # noqa: E731
    elif name.endswith("_s"):
        expires = "expir" in name
        of_number = lambda value: "never" if value == NEVER and expires else duration(value)  # noqa: E731
    elif name.endswith(("bytes", "bytes_max")):
        of_number = size
    else:
        return _text_of

    def made(value: Any) -> object:
        kind = type(value)
        return of_number(value) if kind is int or kind is float else _text_of(value)

    return made


def _text_of(value: Any) -> object:
    if isinstance(value, str) and len(value) > CELL_MAX:
        return f"{value[:CELL_MAX]}... ({len(value)} characters)"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def age_of(moment_s: float, now_s: float) -> str:
    """Return how long ago a moment was, or in how long it will be."""
    ahead = moment_s - now_s
    return f"in {duration(ahead)}" if ahead > 0.5 else f"{duration(max(0.0, -ahead))} ago"


def duration(seconds: float) -> str:
    """Return a duration in its two greatest units."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return _whole_seconds(int(seconds))


@lru_cache(4096)
def _whole_seconds(whole: int) -> str:
    parts: list[str] = []
    for unit, of in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        amount, whole = divmod(whole, of)
        if amount or parts:
            parts.append(f"{amount}{unit}" if amount else "")
    return "".join(parts[:2]) or "0s"


def size(count: float) -> str:
    """Return a size in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
