"""Metrics of the whole cluster from those of its nodes, with one hour of history in bounded memory.

Rates are computed from two samples of one incarnation's counters; a restarted node adds none until its second sample.
Sans-IO.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from wire.messages.node_rows import StatsRow

__all__ = ["CERTIFICATES", "POINTS_MAX", "ClusterMetrics", "MetricHistory", "cluster_metrics_of", "finite"]

POINTS_MAX = 720  # an hour, one per 5 s
PREFIX = "stratamq_"  # of each family on a node's metrics page
IN_NAMES = ("messages_received_total",)
OUT_NAMES = ("messages_delivered_total",)
PRESENT = ("clients", "sessions")
CERTIFICATES = PREFIX + "tls_cert_not_after_seconds"
DROPS = PREFIX + "messages_dropped_total{"


class ClusterMetrics(msgspec.Struct):
    """Metrics of the cluster at one time. None: not reported."""

    at_ms: int = 0
    nodes: int = 0
    nodes_ready: int = 0
    connections: int = 0
    sessions: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    queue_oldest_s: float | None = None
    copies_met: bool = True
    disk_free_bytes: int | None = None
    tls_not_after_ms: int | None = None


def cluster_metrics_of(now_ms: int, rows: Iterable[StatsRow], nodes: int, copies_met: bool) -> ClusterMetrics:
    """Return the combined metrics of the nodes, without rates."""
    known = list(rows)
    gauges = [sums(row.gauges or {}, PRESENT) for row in known]
    oldest = [row.queue_oldest_s for row in known if row.queue_oldest_s is not None]
    disks = [row.disk_free_bytes for row in known if row.disk_free_bytes is not None]
    ends = [end for row in known if (end := _ends_ms(row))]
    return ClusterMetrics(
        at_ms=now_ms,
        nodes=nodes,
        nodes_ready=sum(bool(row.ready) for row in known),
        connections=int(sum(total(one, ("clients",)) for one in gauges)),
        sessions=int(sum(total(one, ("sessions",)) for one in gauges)),
        queue_oldest_s=max(oldest, default=None),
        copies_met=copies_met,
        disk_free_bytes=min(disks, default=None),
        tls_not_after_ms=min(ends, default=None),
    )


def finite(row: StatsRow) -> StatsRow:
    """Replace values that are not finite: one node's must not spoil the sums."""
    for name in ("counters", "gauges"):
        series = getattr(row, name) or {}
        if not all(map(math.isfinite, series.values())):
            setattr(row, name, {key: value for key, value in series.items() if math.isfinite(value)})
    return row


def _ends_ms(row: StatsRow) -> int:
    """Return the earliest certificate expiry of a node, 0 if it has none."""
    ends = [value for key, value in (row.gauges or {}).items() if key.startswith(CERTIFICATES)]
    return int(min(ends, default=0.0) * 1000)


def sums(series: Mapping[str, float], names: tuple[str, ...] = ("",)) -> dict[str, float]:
    """Return the sum of each family over its labels, for families with a prefix in ``names``."""
    found: dict[str, float] = {}
    begins = tuple(PREFIX + name for name in names)
    for key, value in series.items():
        if not key.startswith(begins):  # a node has hundreds of families, most of them not needed here
            continue
        name = key.partition("{")[0]
        found[name] = found.get(name, 0.0) + value
    return found


def total(families: Mapping[str, float], names: Iterable[str]) -> float:
    """Return the sum of some families of ``sums``."""
    return sum(families.get(PREFIX + name, 0.0) for name in names)


def drops_of(rows: Iterable[StatsRow]) -> dict[str, int]:
    """Return dropped messages by reason, of all nodes since their start."""
    found: dict[str, int] = {}
    for row in rows:
        for key, value in (row.counters or {}).items():
            if value and key.startswith(DROPS):
                reason = key.partition('reason="')[2].partition('"')[0]
                found[reason] = found.get(reason, 0) + int(value)
    return dict(sorted(found.items()))


class MetricHistory:
    """The last hour of the cluster.

    Attributes:
        rates: Messages in and out per second, by node, of the last sample.
    """

    def __init__(self) -> None:
        self._points: deque[ClusterMetrics] = deque(maxlen=POINTS_MAX)
        self.rates: dict[str, tuple[float, float]] = {}
        self._before: dict[tuple[str, int], tuple[int, float, float]] = {}  # node, incarnation -> at, in, out

    def take(self, metrics: ClusterMetrics, rows: Iterable[StatsRow]) -> ClusterMetrics:
        """Add a sample; return its metrics with rates."""
        seen: dict[tuple[str, int], tuple[int, float, float]] = {}
        self.rates = {}
        for row in rows:
            counters = sums(row.counters or {}, IN_NAMES + OUT_NAMES)
            key = (row.node or "", row.incarnation or 0)
            seen[key] = row.at_ms or metrics.at_ms, total(counters, IN_NAMES), total(counters, OUT_NAMES)
            before = self._before.get(key)
            if before is None or seen[key][0] <= before[0]:
                continue
            seconds = (seen[key][0] - before[0]) / 1000
            rate_in, rate_out = (max(0.0, seen[key][at] - before[at]) / seconds for at in (1, 2))
            self.rates[key[0]] = rate_in, rate_out
            metrics.in_per_s += rate_in
            metrics.out_per_s += rate_out
        self._before = seen
        return metrics

    def keep(self, metrics: ClusterMetrics) -> None:
        """Append a point to the history."""
        self._points.append(metrics)

    def columns(self) -> dict[str, list[Any]]:
        """Return the history as lists, for charts; ``at`` is in seconds."""
        points = list(self._points)
        return {
            "at": [point.at_ms / 1000 for point in points],
            "in_per_s": [round(point.in_per_s, 1) for point in points],
            "out_per_s": [round(point.out_per_s, 1) for point in points],
            "connections": [point.connections for point in points],
        }
