"""Rates of a node: differences of its counters between two samples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.messages.node_rows import StatsRow

__all__ = ["DELIVERED", "RECEIVED", "cpu_of", "rate_of"]

RECEIVED, DELIVERED = "stratamq_messages_received_total", "stratamq_messages_delivered_total"


def rate_of(family: str, first: "StatsRow | None", second: "StatsRow | None") -> float | None:
    """Return the increase of a counter per second; None if the node has no value or restarted."""
    if first is None or second is None:
        return None
    return _rise(_sum(family, first.counters), _sum(family, second.counters), first, second)


def cpu_of(first: "StatsRow | None", second: "StatsRow | None") -> float | None:
    """Return the number of busy cores of a node; None if the node does not report it or restarted."""
    return _rise(first.cpu_s, second.cpu_s, first, second, 3) if first is not None and second is not None else None


def _rise(
    before: float | None, after: float | None, first: "StatsRow", second: "StatsRow", digits: int = 1
) -> float | None:
    span_ms = (second.at_ms or 0) - (first.at_ms or 0)
    if first.incarnation != second.incarnation or span_ms <= 0 or before is None or after is None:
        return None
    return round((after - before) * 1000 / span_ms, digits)


def _sum(family: str, figures: Mapping[str, float] | None) -> float | None:
    found = [value for name, value in (figures or {}).items() if name.partition("{")[0] == family]
    return sum(found) if found else None
