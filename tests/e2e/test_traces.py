"""Traces of a real cluster: the way of a message over two edges and a storage node, a client, and bad input."""

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.operated_cluster import WAIT_S, OperatedCluster, operated_cluster
from tests.patience import PATIENCE_S

TRACES_MAX = 16


@pytest.fixture(scope="module")
def place() -> Iterator[OperatedCluster]:
    with operated_cluster("--edges", "2", "--storages", "2") as here:
        yield here


def events_of(place: OperatedCluster, name: str) -> list[dict[str, Any]]:
    code, shown, errors = place.run("trace", "export", name, "-o", "jsonl")
    assert code == 0, errors
    return [json.loads(line) for line in shown.splitlines()]


def stages(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(event["stage"], event["node"].partition("-")[0], event.get("client_id", "")) for event in events]


def test_topic_traced_over_edges_and_storage(place: OperatedCluster) -> None:
    """From received to acknowledged in order, all under one origin."""
    publisher = place.come("way-publisher", 0)
    durable = place.subscribe(place.come("way-durable", 1, expiry_s=600), "way/#")
    passing = place.subscribe(place.come("way-passing", 1), "way/#")
    publisher.publish("way/1", b"before", qos=1).wait_for_publish(WAIT_S)  # its Route is cached without a mark
    code, _, errors = place.run("trace", "start", "topic", "way/+", "--name", "way", "--payload", "head:4")
    assert code == 0, errors
    publisher.publish("way/1", b"payload", qos=1).wait_for_publish(WAIT_S)
    publisher.publish("other/1", b"untold", qos=1).wait_for_publish(WAIT_S)
    place.cluster.wait_for(lambda: len(durable) == len(passing) == 2, "delivered", WAIT_S)
    place.cluster.wait_for(
        lambda: sum(row["stage"] == "acked" for row in events_of(place, "way")) >= 3, "acked", WAIT_S
    )
    events = events_of(place, "way")
    assert {event["topic"] for event in events} == {"way/1"}
    assert len({event["origin"] for event in events}) == 1
    found = stages(events)
    assert found[0] == ("received", "edge", "way-publisher")
    for step in (
        ("forwarded", "edge", "way-publisher"),
        ("accepted", "edge", ""),
        ("queued", "storage", "way-durable"),
        ("committed", "storage", ""),
        ("pushed", "storage", "way-durable"),
        ("written", "edge", "way-durable"),
        ("written", "edge", "way-passing"),
        ("acked", "edge", "way-passing"),
        ("acked", "storage", "way-durable"),
        ("acknowledged", "edge", "way-publisher"),
    ):
        assert step in found, (step, found)
    order = [stage for stage, _, _ in found]
    assert order.index("forwarded") < order.index("queued") < order.index("committed") < order.index("pushed")
    assert order.index("pushed") < order.index("written") < order.index("acked") < order.index("acknowledged")
    assert events[0]["payload"] == b"payl".hex()
    code, shown, errors = place.run("trace", "tail", "way", "--once")
    assert code == 0 and len(shown.splitlines()) == len(events), errors
    assert place.run("trace", "stop", "way")[0] == 0
    publisher.publish("way/1", b"behind it", qos=1).wait_for_publish(WAIT_S)
    assert len(events_of(place, "way")) == len(events)


def test_client_traced(place: OperatedCluster) -> None:
    """Its publishes, deliveries, connects and disconnects; no events of other clients."""
    assert place.run("trace", "start", "client", "told-*", "--name", "client")[0] == 0
    traced, other = place.come("told-one", 0), place.come("untold", 1)
    got = place.subscribe(traced, "told/in")
    deliveries = place.subscribe(other, "told/out")
    traced.publish("told/out", b"1", qos=0)
    other.publish("told/in", b"2", qos=1).wait_for_publish(WAIT_S)
    other.publish("told/out", b"3", qos=1).wait_for_publish(WAIT_S)
    place.cluster.wait_for(lambda: len(got) == 1 and len(deliveries) == 2, "delivered", WAIT_S)
    place.cluster.wait_for(lambda: ("acked", "edge", "told-one") in stages(events_of(place, "client")), "acked", WAIT_S)
    traced.disconnect()
    place.cluster.wait_for(
        lambda: ("disconnected", "edge", "told-one") in stages(events_of(place, "client")), "gone", WAIT_S
    )
    found = stages(events_of(place, "client"))
    for stage in ("connected", "subscribed", "received", "forwarded", "written", "acked", "disconnected"):
        assert (stage, "edge", "told-one") in found, (stage, found)
    assert ("written", "edge", "untold") in found  # its message of QoS 0, at another edge
    assert sum(stage == "received" for stage, _, _ in found) == 1


def test_sent_message_prints_its_trace(place: OperatedCluster) -> None:
    """`msg send --trace` prints a tree of its own message only, and leaves no trace running."""
    place.subscribe(place.come("sent-durable", 1, expiry_s=600), "sent/#")
    place.subscribe(place.come("sent-member", 1), "$share/g/sent/#")
    code, shown, errors = place.run("msg", "send", "sent/1", "hello", "--trace", "--node", "edge-0")
    assert code == 0, errors
    lines = shown.splitlines()
    received = next(line for line in lines if " received " in line)
    pushed = next(line for line in lines if " pushed " in line)
    assert "edge-0" in received and "by this node" in received
    assert "'sent-durable'" in pushed and pushed.index("└") > received.index("└")
    for client in ("sent-durable", "sent-member"):
        assert any(f" written '{client}'" in line and "edge-1" in line for line in lines), client
    assert not [row for row in _traces(place, "send-*") if row["state"] == "running"]


def test_tail_ends_with_the_trace(place: OperatedCluster) -> None:
    """It prints events until the trace ends; a trace ends at its number of events."""
    assert place.run("trace", "start", "topic", "tail/#", "--name", "tail", "--events", "2", "--for", "60s")[0] == 0
    command = [*place.cluster.command_line(), "trace", "tail", "tail", "--data", str(place.cluster.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        publisher = place.come("tail-publisher", 0)
        publisher.publish("tail/1", b"x", qos=1).wait_for_publish(WAIT_S)
        publisher.publish("tail/2", b"x", qos=1).wait_for_publish(WAIT_S)
        assert place.run("trace", "stop", "tail")[0] == 0
        shown, _ = running.communicate(timeout=PATIENCE_S)
    assert "received" in shown and "tail/1" in shown
    (row,) = [row for row in _traces(place, "tail") if row["node"] == "edge-0"]
    assert (row["state"], row["events"]) == ("events", 2)


def test_bad_input_is_one_line_and_changes_no_state(place: OperatedCluster) -> None:
    """No pattern, a wrong kind, an unknown trace, and the seventeenth."""
    for words, part in (
        (("start", "topic"), "wants a pattern"),
        (("start", "topic", "a/#/b"), "no topic filter"),
        (("start", "address", "here"), "no network"),
        (("start", "user", "x"), "no trace of kind"),
        (("start", "origin", "x"), "no origin"),
        (("start", "topic", "a", "--for", "2h"), "at most 1h"),
        (("start", "topic", "a", "--payload", "head:65"), "1 to 64 bytes"),
        (("stop", "nowhere"), "no trace 'nowhere'"),
        (("tail", "nowhere"), "no node has a trace"),
        (("export", "nowhere"), "no node has a trace"),
    ):
        code, shown, errors = place.run("trace", *words)
        assert code in (1, 2) and part in errors, (words, errors)
        assert not shown and errors.count("\n") == 1, errors
    running = {row["trace"] for row in _traces(place, "*") if row["state"] == "running"}
    for number in range(TRACES_MAX - len(running)):
        assert place.run("trace", "start", "client", f"c{number}", "--name", f"full-{number}")[0] == 0
    code, _, errors = place.run("trace", "start", "client", "c", "--name", "seventeenth")
    assert code == 1 and f"{TRACES_MAX} traces run" in errors
    names = {row["trace"] for row in _traces(place, "*")}
    assert "seventeenth" not in names and len(names) == TRACES_MAX


def _traces(place: OperatedCluster, name: str) -> list[dict[str, Any]]:
    until = time.monotonic() + WAIT_S
    while True:
        code, shown, errors = place.run("trace", "list", "--filter", f"trace={name}", "-o", "jsonl", "--all")
        if code == 0 or time.monotonic() > until:
            assert code == 0, errors
            return [json.loads(line) for line in shown.splitlines()]


def _acknowledged(place: OperatedCluster, name: str) -> int:
    return sum(row["stage"] == "acked" for row in events_of(place, name))
