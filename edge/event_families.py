"""Metric families of an edge's events: connects, disconnects, takeovers, drops, and all others by name."""

from collections.abc import Callable, Mapping

from conf.drop_reasons import REASON_OF, REPEATS, count_drops, count_repeats
from conf.metrics import Histogram, Metrics, PowersOfTwo
from edge.loop.broker_loop import BrokerLoop
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions

__all__ = ["expose_durations", "expose_events", "expose_traffic"]

CONNECTS, DISCONNECTS, TAKEN_OVER = "connects_", "disconnects_", "disconnects_taken_over"
ACCEPTED = "0x00"
PROTOCOLS = {3: "3.1", 4: "3.1.1", 5: "5.0"}  # by protocol level


def expose_events(
    metrics: Metrics, events: Callable[[], Mapping[str, int]], of_loop: Callable[[], Mapping[str, int]]
) -> None:
    """Register the events that an edge and its loop counted.

    Args:
        metrics: The registry.
        events: Counts of the core by name.
        of_loop: Counters of the loop.
    """
    metrics.counter(
        "messages_dropped_total",
        "Message copies dropped before delivery, by reason.",
        lambda: count_drops(_together(events(), of_loop())),
        ("reason",),
    )
    metrics.counter(
        "repeats_total",
        "Repeated messages that were discarded; each was delivered before.",
        lambda: count_repeats(_together(events(), of_loop())),
    )
    metrics.counter(
        "connects_total",
        "CONNACKs, by reason code.",
        lambda: {
            ("accepted" if code == ACCEPTED else "refused", code): count
            for (code,), count in _family(events(), CONNECTS).items()
        },
        ("result", "reason_code"),
    )
    metrics.counter(
        "disconnects_total",
        "Connections that this edge ended, by reason code or by reason.",
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
        "All other events of this edge by name, including refusals.",
        lambda: {(name,): float(amount) for name, amount in events().items() if not _has_family(name)},
        ("event",),
    )


def expose_traffic(
    metrics: Metrics,
    doors: Mapping[tuple[str, int], int],
    counters: Callable[[], Mapping[str, int]],
    local: EphemeralSubscriptions,
) -> None:
    """Register the metrics of connections and messages.

    Args:
        metrics: The registry.
        doors: Open connections by listener and MQTT version.
        counters: Those of the loop.
        local: Subscriptions of ephemeral sessions.
    """
    metrics.gauge(
        "connections",
        "Connected clients, by listener and MQTT version.",
        lambda: {(name, PROTOCOLS.get(version, "")): float(count) for (name, version), count in doors.items()},
        ("listener", "protocol"),
    )
    metrics.counter(
        "messages_received_total",
        "PUBLISH packets of clients by QoS.",
        lambda: {(str(qos),): float(counters()[f"publish_in_qos{qos}"]) for qos in range(3)},
        ("qos",),
    )
    metrics.counter(
        "messages_delivered_total",
        "PUBLISH packets to clients by QoS.",
        lambda: {(str(qos),): float(counters()[f"publish_out_qos{qos}"]) for qos in range(3)},
        ("qos",),
    )
    metrics.counter(
        "payload_bytes_total",
        "Payload bytes of these PUBLISH packets, counted for each copy.",
        lambda: {
            ("in",): float(counters()["publish_bytes_in"]),
            ("out",): float(counters()["publish_bytes_out"]),
        },
        ("direction",),
    )
    metrics.counter(
        "packets_total",
        "Packets of clients: PUBLISH, its acknowledgements (out: PUBACK and PUBREC), all others (in).",
        lambda: _packets(counters()),
        ("direction", "type"),
    )
    metrics.counter(
        "bytes_total",
        "Bytes of clients and links.",
        lambda: {("in",): float(counters()["bytes_in"]), ("out",): float(counters()["bytes_out"])},
        ("direction",),
    )
    metrics.gauge(
        "read_ahead_bytes",
        "Bytes read from clients after packets that wait.",
        lambda: float(counters()["read_ahead_bytes"]),
    )
    metrics.gauge(
        "subscriptions",
        "Subscriptions of the ephemeral sessions here.",
        lambda: {("ephemeral",): float(len(local) - local.shared), ("ephemeral_shared",): float(local.shared)},
        ("kind",),
    )


def _packets(counted: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    read = sum(counted[f"publish_in_qos{qos}"] for qos in range(3))
    return {
        ("in", "publish"): float(read),
        ("in", "other"): float(counted["packets_in"] - read),
        ("out", "publish"): float(sum(counted[f"publish_out_qos{qos}"] for qos in range(3))),
        ("out", "acknowledgement"): float(counted["acknowledged"]),
    }


def expose_durations(metrics: Metrics, hot: BrokerLoop, subscribed: Histogram) -> None:
    """Register the durations that the loop measures, and those of SUBSCRIBEs."""

    def delivered() -> PowersOfTwo:
        found = PowersOfTwo()
        found.counts = hot.delivered.counted()
        found.total = hot.delivered.sum_ns / 1e9
        return found

    def acknowledged() -> PowersOfTwo:
        found = PowersOfTwo()
        found.counts = hot.acks_in.counted()
        found.counts[0] += max(0, hot.acknowledged - sum(found.counts))  # acknowledged at once
        found.total = hot.acks_in.sum_ns / 1e9
        return found

    metrics.show(
        "publish_ack_seconds", "Time from reading a PUBLISH of QoS 1 or 2 to its PUBACK or PUBREC.", acknowledged
    )
    metrics.show(
        "delivery_seconds",
        "Time from the read of a loop iteration to its writes of PUBLISH packets to clients.",
        delivered,
    )
    metrics.show("subscribe_ack_seconds", "Time from reading a SUBSCRIBE to its SUBACK.", lambda: subscribed)


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
