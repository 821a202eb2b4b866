"""Formatting of row values for people and for programs.

Programs get times as ISO 8601 in UTC, durations in seconds and sizes in bytes, under the names of the HTTP service.
Tables get times as ages, durations in two units and sizes in binary units; long values are cut, with their length.
A column's name gives its type: ``_at_ms`` is a time, ``_s`` seconds, ``bytes`` a size.
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
NEVER = -1  # value of a column that holds an expiry time
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
    """Return the heading of a table column."""
    if name in HEADINGS:
        return HEADINGS[name]
    if is_time(name):
        return name.removesuffix("_at_ms").removesuffix("_ms").removesuffix("at_us").upper() or "AGE"
    return name.removesuffix("_s").upper()


def fact_name(name: str) -> str:
    """Return the name of a field without its unit, for a cell that shows the unit."""
    return plain_name(name) if is_time(name) else name.removesuffix("_s")


def fields_of(row: Any) -> dict[str, Any] | None:
    """Return the known fields of a row; None if there is no row."""
    import msgspec

    if row is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(row, builtin_types=(bytes,))
    if row.__struct_config__.omit_defaults:  # None is the default of all fields of a query's row
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
    """Return the names for programs, and the names of timestamps with their units per second."""
    columns = [_plain_column(name) for name in names]
    return [told for told, _ in columns], [(told, scale) for told, scale in columns if scale]


@lru_cache(256)
def _plain_column(name: str) -> tuple[str, float]:
    """Return a column's name for programs and its units per second; 0 if it is not a time."""
    return plain_name(name), scale_of(name)


def shown_cell(name: str, value: Any, now_s: float) -> object:
    """Return a value for a table."""
    return cell_maker(name, now_s)(value)


def cell_maker(name: str, now_s: float) -> Callable[[Any], object]:
    """Return the cell formatter of a column; the column's name is parsed once per table."""
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


def age_of(time_s: float, now_s: float) -> str:
    """Return the age of a time, or the time left until it."""
    ahead = time_s - now_s
    return f"in {duration(ahead)}" if ahead > 0.5 else f"{duration(max(0.0, -ahead))} ago"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
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
