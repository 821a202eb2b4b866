"""Rows of `bridge status`, and Prometheus metrics of bridges."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from conf.metrics import Metrics
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.running import Bridge

__all__ = ["Rates", "register_metrics", "status_rows"]


class Rates:
    """Messages per second of each direction, from periodic counts."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], tuple[float, int, float]] = {}  # -> timestamp, count, rate

    def update(self, bridges: Sequence[Bridge], now: float) -> None:
        """Read the counts."""
        for bridge in bridges:
            for flow in bridge.flows:
                key = (bridge.name, flow.direction)
                count = flow.pump.counts["delivered"]
                at, before, _ = self._samples.get(key, (now, count, 0.0))
                rate = (count - before) / (now - at) if now > at else 0.0
                self._samples[key] = (now, count, rate)

    def get_rate(self, bridge: str, direction: str) -> float:
        """Return the latest rate."""
        return self._samples.get((bridge, direction), (0.0, 0, 0.0))[2]


def status_rows(bridges: Sequence[Bridge], rates: Rates) -> list[dict[str, Any]]:
    """Return one row for each direction of each bridge."""
    rows: list[dict[str, Any]] = []
    for bridge in bridges:
        for flow in bridge.flows:
            counts = flow.pump.counts
            error = flow.error
            at = ""
            if error.at_ms:
                timestamp = datetime.datetime.fromtimestamp(error.at_ms / 1000, datetime.UTC)
                at = timestamp.isoformat(timespec="seconds")
            rows.append(
                {
                    "bridge": bridge.name,
                    "kind": bridge.kind,
                    "direction": flow.direction,
                    "state": bridge.state,
                    "waits_for": bridge.waits_for,
                    "lag": flow.pump.waiting,
                    "window": flow.pump.open_messages,
                    "window_bytes": flow.pump.open_bytes,
                    "rate": round(rates.get_rate(bridge.name, flow.direction), 1),
                    "delivered": counts["delivered"],
                    "retries": sum(count for name, count in counts.items() if name.startswith("retried_")),
                    "rejected": sum(count for name, count in counts.items() if name.startswith("rejected_")),
                    "dropped": sum(count for name, count in counts.items() if name.startswith("dropped_")),
                    "last_error": error.text,
                    "last_error_at": at,
                }
            )
    return rows


def register_metrics(metrics: Metrics, bridges: Sequence[Bridge]) -> None:
    """Register the metrics of every bridge, with a reason on each counter."""

    def flows() -> Iterator[tuple[str, BridgeFlow]]:
        return ((bridge.name, flow) for bridge in bridges for flow in bridge.flows)  # a standby replaces its flows

    metrics.counter(
        "bridge_messages_total",
        "Messages and records, by result.",
        lambda: {
            (name, flow.direction, result): float(count)
            for name, flow in flows()
            for result, count in flow.pump.counts.items()
        },
        ("bridge", "direction", "result"),
    )
    labels = ("bridge", "direction")
    metrics.gauge(
        "bridge_lag_messages",
        "Records that are not at the sink yet.",
        lambda: {(name, flow.direction): float(flow.pump.waiting) for name, flow in flows()},
        labels,
    )
    metrics.gauge(
        "bridge_unacknowledged",
        "Messages received and not acknowledged.",
        lambda: {(name, flow.direction): float(flow.pump.open_messages) for name, flow in flows()},
        labels,
    )
    metrics.gauge(
        "bridge_retry_seconds",
        "Delay before the latest retry; 0 after an accepted record.",
        lambda: {(name, flow.direction): flow.pump.retry_s for name, flow in flows()},
        labels,
    )
    metrics.counter(
        "bridge_references_total",
        "Server References of brokers, by result.",
        lambda: {
            (bridge.name, name.removeprefix("references_")): float(sum(each.counts[name] for each in bridge.clients))
            for bridge in bridges
            for name in ("references_followed", "references_refused")
        },
        ("bridge", "result"),
    )
    for bridge in bridges:
        metrics.check(bridge.name, partial(getattr, bridge, "is_ready"))
    metrics.explain(lambda: next((bridge.waits_for for bridge in bridges if not bridge.is_ready), ""))
