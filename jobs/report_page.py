"""The audit's page: one HTML file with inline SVG, without external resources, for light and dark themes.

Converts the summary into plots for the template ``jobs/report_page.html``, which has texts and styles and escapes every
value.
"""

from __future__ import annotations

import datetime
import importlib.util
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wire.sstable.schema import RowKind

__all__ = ["page", "page_unavailable_reason"]

_BAR_HEIGHT = 18
_WIDTH = 640
_LABEL = 150
_TEXT = 110  # width after the longest bar for its number; doubled if the previous number is shown too
_ROWS_MAX = 40  # bars per plot: the largest ones
_FINDINGS_MAX = 500

_Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class _Bar:
    """One row of a plot; lengths in the units of its SVG."""

    y: int
    label: str
    text: str
    width: str
    before_width: str
    text_x: str


@dataclass(frozen=True, slots=True)
class _Bars:
    """One SVG: a bar per row, with a paler one behind it for the state before."""

    width: int
    height: int
    inset: int  # of a bar within the one behind it
    rows: list[_Bar]
    x: int = _LABEL
    label_x: int = _LABEL - 8
    bar_height: int = _BAR_HEIGHT


@dataclass(frozen=True, slots=True)
class _Plot:
    """A titled plot; ``bars`` is None if there is no such data."""

    title: str
    bars: _Bars | None
    note: str = ""
    compared: bool = False  # with the state before the compaction


def page_unavailable_reason() -> str:
    """Return the missing dependency of the page and how to install it, or an empty string."""
    if importlib.util.find_spec("jinja2") is None:
        return "jinja2 is not installed, which the page of --output needs: pip install 'stratamq[jobs]'"
    return ""


def page(summary: dict[str, Any], findings: Sequence[dict[str, Any]]) -> str:
    """Return the page.

    Args:
        summary: ``jobs.report.summary``.
        findings: Rows of the findings table.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(number=_number, bytes=_bytes, utc=_utc)
    text = pkgutil.get_data("jobs", "report_page.html")  # also works from spark-submit's archive
    assert text is not None
    counts = sorted(((name, float(count)) for name, count in summary["counts"].items()), key=lambda bar: -bar[1])
    return environment.from_string(text.decode()).render(
        summary=summary,
        clean=summary["exit_code"] == 0,
        findings_by_name=_bars(counts, _number) if counts else None,
        plots=[*_partition_plots(summary["partitions"]), *_table_plots(summary["tables"])],
        queues=[row for row in summary["tables"].get("longest_queues", []) if row["depth"]],
        findings=list(findings[:_FINDINGS_MAX]),
        findings_more=max(0, len(findings) - _FINDINGS_MAX),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _utc(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _partition_plots(partitions: list[dict[str, Any]]) -> list[_Plot]:
    plots = []
    for column, title, show in (
        ("bytes", "Size per partition", _bytes),
        ("garbage", "Known garbage per partition: tombstones and expired rows", _number),
        ("generations", "Generations per partition", _number),
    ):
        pairs = [(f"partition {p['partition']}", float(p[column]), p.get(f"{column}_before")) for p in partitions]
        shown = sorted(pairs, key=lambda bar: -max(bar[1], bar[2] or 0))[:_ROWS_MAX]
        shown.sort(key=lambda bar: int(bar[0].split()[1]))
        if not any(now or old for _, now, old in shown):
            plots.append(_Plot(title, None))
            continue
        before = [old for _, _, old in shown]
        known = any(old is not None for old in before)
        note = f"the largest {_ROWS_MAX} of {len(pairs)}" if len(pairs) > _ROWS_MAX else ""
        bars = _bars([(label, now) for label, now, _ in shown], show, before if known else None)
        plots.append(_Plot(title, bars, note, compared=known))
    return plots


def _table_plots(tables: dict[str, list[dict[str, Any]]]) -> list[_Plot]:
    plots = []
    if tables.get("session_ages"):
        count = {row["tenth"]: row["sessions"] for row in tables["session_ages"]}
        bars = [(f"{10 * n} to {10 * n + 10} % ago", float(count.get(n, 0))) for n in range(10)]
        note = "last change of the session, in operations of its partition"
        plots.append(_Plot("Sessions by age", _bars(bars, _number), note))
    if tables.get("session_expiries"):
        names = {-2: "connected, or never", 0: "expired", -1: "later"}
        rows = sorted(tables["session_expiries"], key=lambda row: (row["hours"] < 0, -row["hours"] if row["hours"] < 0
                      else row["hours"]))  # fmt: skip
        bars = [(names.get(r["hours"], f"within {_hours(r['hours'])}"), float(r["sessions"])) for r in rows]
        plots.append(_Plot("Sessions by time until they expire", _bars(bars, _number)))
    if tables.get("queue_depths"):
        rows = sorted(tables["queue_depths"], key=lambda row: math.inf if row["up_to"] < 0 else row["up_to"])
        bars = [(_depth(row["up_to"]), float(row["sessions"])) for row in rows]
        plots.append(_Plot("Sessions by queue depth", _bars(bars, _number)))
    if tables.get("kinds"):
        bars = [(_kind_name(row["kind"]), float(row["rows"])) for row in tables["kinds"]]
        plots.append(_Plot("Live rows by kind", _bars(bars, _number)))
    return plots


def _hours(hours: int) -> str:
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"


def _depth(up_to: int) -> str:
    return "more" if up_to < 0 else "empty" if up_to == 0 else f"up to {_number(up_to)}"


def _kind_name(kind: int) -> str:
    try:
        return RowKind(kind).name.lower().replace("_", " ")
    except ValueError:
        return f"kind {kind}"


def _bars(bars: Sequence[tuple[str, float]], show: _Show, before: Sequence[float | None] | None = None) -> _Bars:
    """Return horizontal bars, with a paler one behind each for the state before.

    Args:
        bars: (label, value), in drawing order.
        show: Formats a value.
        before: A value per bar, None if unknown; None instead of a list: no previous state.
    """
    old = [value or 0.0 for value in before] if before else [0.0] * len(bars)
    largest = max([value for _, value in bars] + old + [1e-9])
    room = _WIDTH - _LABEL - _TEXT
    rows = []
    for number, ((label, value), earlier) in enumerate(zip(bars, old, strict=True)):
        width, old_width = room * value / largest, room * earlier / largest
        rows.append(
            _Bar(
                y=number * (_BAR_HEIGHT + 6),
                label=label,
                text=show(value) + (f" (before {show(earlier)})" if before else ""),
                width=f"{width:.1f}",
                before_width=f"{old_width:.1f}",
                text_x=f"{_LABEL + max(width, old_width) + 6:.1f}",
            )
        )
    height = max(1, len(bars)) * (_BAR_HEIGHT + 6)
    return _Bars(width=_WIDTH + (_TEXT if before else 0), height=height, inset=4 if before else 0, rows=rows)
