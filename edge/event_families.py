"""Families of an edge's events on its metrics page: connects, disconnects, takeovers, drops, and all others by name."""

from collections.abc import Callable, Mapping

from conf.drop_reasons import REASON_OF, REPEATS, count_drops, count_repeats
from conf.metrics import Histogram, Metrics, PowersOfTwo
from edge.hot.engine import Engine

__all__ = ["expose_durations", "expose_events"]

CONNECTS, DISCONNECTS, TAKEN_OVER = "connects_", "disconnects_", "disconnects_taken_over"
ACCEPTED = "0x00"


def expose_events(
    metrics: Metrics, events: Callable[[], Mapping[str, int]], of_loop: Callable[[], Mapping[str, int]]
) -> None:
    """Show what an edge and its loop counted.

    Args:
        metrics: The page.
        events: Counts of the core by name.
        of_loop: Counters of the loop.
    """
    metrics.counter(
        "messages_dropped_total",
        "Copies of messages that somebody should have had and did not get, by reason.",
        lambda: count_drops(_together(events(), of_loop())),
        ("reason",),
    )
    metrics.counter(
        "repeats_total",
        "Messages that came again and were dropped: nobody misses them.",
        lambda: count_repeats(_together(events(), of_loop())),
    )
    metrics.counter(
        "connects_total",
        "Answers to CONNECT, by reason code.",
        lambda: {
            ("accepted" if code == ACCEPTED else "refused", code): count
            for (code,), count in _family(events(), CONNECTS).items()
        },
        ("result", "reason_code"),
    )
    metrics.counter(
        "disconnects_total",
        "Connections that this edge ended, by reason: a reason code, or what no code says.",
        lambda: _family(events(), DISCONNECTS),
        ("reason",),
    )
    metrics.counter(
        "takeovers_total",
        "Connections that a newer one of their client ID ended.",
        lambda: float(events().get(TAKEN_OVER, 0)),
    )
    metrics.counter(
        "edge_events_total",
        "All other events of this edge by name, refusals among them.",
        lambda: {(name,): float(amount) for name, amount in events().items() if not _has_family(name)},
        ("event",),
    )


def expose_durations(metrics: Metrics, hot: Engine, subscribed: Histogram) -> None:
    """Show what the loop measured, and the times of SUBSCRIBEs."""

    def acknowledged() -> PowersOfTwo:
        found = PowersOfTwo()
        found.counts = hot.acks_in.counted()
        found.counts[0] += max(0, hot.acknowledged - sum(found.counts))  # answered at once
        found.total = hot.acks_in.sum_ns / 1e9
        return found

    metrics.show(
        "publish_ack_seconds", "From a PUBLISH of QoS 1 or 2 being read to its PUBACK or PUBREC.", acknowledged
    )
    metrics.show("subscribe_ack_seconds", "From a SUBSCRIBE being read to its SUBACK.", lambda: subscribed)


def _together(*counts: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for name, amount in each.items():
            found[name] = found.get(name, 0) + amount
    return found


def _family(events: Mapping[str, int], prefix: str) -> dict[tuple[str, ...], float]:
    return {(name.removeprefix(prefix),): float(count) for name, count in events.items() if name.startswith(prefix)}


def _has_family(name: str) -> bool:
    return name.startswith((CONNECTS, DISCONNECTS)) or name in REASON_OF or name in REPEATS
