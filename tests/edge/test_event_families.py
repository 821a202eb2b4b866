"""Metric families of an edge's events: labels, and each drop once by its reason."""

from conf.drop_reasons import REASONS
from conf.metrics import Metrics
from edge.event_families import expose_events
from mqtt.packets import Disconnect
from tests.edge.edge_harness import Edge


def families(edge: Edge) -> dict[str, object]:
    metrics = Metrics("edge", "e0", "1")
    expose_events(metrics, lambda: edge.core.counts, edge.core.hot.counters)
    return metrics.read()


def test_connects_disconnects_and_takeovers_have_labels() -> None:
    edge = Edge()
    edge.client("a").send(Disconnect(0, {}))
    edge.client("b").publish("a/" * 40)  # beyond the levels of a topic: 0x90
    refused = edge.accept()
    refused.connect("x" * 60_000)
    found = families(edge)
    connects = found["connects_total"]
    assert isinstance(connects, dict)
    assert connects["accepted", "0x00"] == 2.0
    assert sum(count for (result, _), count in connects.items() if result == "refused") == 1.0
    assert found["disconnects_total"] == {("0x90",): 1.0}
    assert found["takeovers_total"] == 0.0
    events = found["edge_events_total"]
    assert isinstance(events, dict)
    assert not [name for (name,) in events if name.startswith(("connects_", "disconnects_", "dropped_"))]


def test_drops_of_loop_and_core_share_a_family() -> None:
    edge = Edge()
    edge.client("c").publish("$SYS/x")
    edge.core.counts.add("dropped_retained_rights", 2)
    edge.core.counts.add("dropped_events")
    found = families(edge)
    dropped = found["messages_dropped_total"]
    assert isinstance(dropped, dict)
    assert dropped.keys() == {(reason,) for reason in REASONS}
    assert (dropped["not_authorized",], dropped["rate_limited",], found["repeats_total"]) == (3.0, 1.0, 0.0)
