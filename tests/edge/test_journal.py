"""The journal of an edge records refusals, ends and drops by client."""

import re
from pathlib import Path

from edge.loop import layout
from edge.node.limits import EdgeLimits
from tests.edge.edge_harness import START_UTC, Edge
from tests.edge.test_queries import rows
from wire.messages.sessions import KickSession


def written(edge: Edge) -> list[tuple[str, str, str, str]]:
    """Return (event, reason, client, topic) of the journal."""
    return [
        (row.event, row.reason or "", row.client_id or "", row.topic or "") for row in rows(edge, "journal", limit=1000)
    ]


def test_protocol_error_is_journaled() -> None:
    edge = Edge()
    session = edge.client("good")
    session.publish("bad/+", qos=1, identifier=1)
    edge.turn()
    (row,) = rows(edge, "journal")
    assert (row.event, row.reason, row.client_id) == ("ended", "0x81", "good")
    assert abs(row.at_ms - START_UTC * 1000) < 1000 and row.node == "e0"


def test_takeover_is_journaled() -> None:
    edge = Edge()
    client = edge.client("twice")
    held = edge.core.clients.get(client.client.number)
    assert held is not None
    edge.storage(KickSession(held.partition, "twice", held.number, held.owner_epoch))
    edge.turn()
    assert ("takeover", "taken_over", "twice", "") in written(edge)


def test_drops_of_the_loop_are_journaled_by_client_once_a_second() -> None:
    edge = Edge(pending_messages_max=3)
    edge.client("slow", properties={33: 1}).subscribe("a/#", qos=1)
    publisher = edge.client("p")
    for number in range(12):
        publisher.publish("a/b", qos=1, identifier=number + 1)
    edge.turn()
    assert written(edge) == [("drop", "window", "slow", "a/b")]
    dropped = edge.core.hot.counters()["dropped_pending"]
    assert edge.core.node.journal.left_out() == dropped - 1 > 1


def test_many_drops_make_bounded_entries_per_iteration() -> None:
    edge = Edge(pending_messages_max=1)
    for number in range(40):
        edge.client(f"slow{number}", properties={33: 1}).subscribe("a", qos=1)
    publisher = edge.client("p")
    for number in range(3):
        publisher.publish("a", qos=1, identifier=number + 1)
    assert edge.core.hot.counters()["dropped_pending"] >= 40
    found = written(edge)
    assert 16 <= len(found) < 40
    assert edge.core.node.journal.left_out() == edge.core.hot.counters()["dropped_pending"] - len(found)


def test_refused_filter_is_journaled() -> None:
    edge = Edge(EdgeLimits(sys_interval_s=0, topic_levels_max=3))
    edge.client("s").subscribe("a/b/c/d", "ok", qos=1)
    edge.turn()
    assert written(edge) == [("refused", "0x8f", "s", "a/b/c/d")]


def test_every_drop_of_the_loop_is_journaled() -> None:
    """A drop counter is raised next to a journal call, except for repeats."""
    folder = Path(layout.__file__).parent
    bare = []
    for file in sorted(folder.glob("*.py")):
        lines = file.read_text().splitlines()
        for at, line in enumerate(lines):
            is_drop = re.search(r"\.dropped_\w+ \+= ", line) and "dropped_repeated" not in line
            if is_drop and not any(re.search(r"note_drops?\(", near) for near in lines[max(0, at - 1) : at + 4]):
                bare.append(f"{file.name}:{at + 1}")
    assert not bare


def test_too_large_packet_is_journaled_with_its_bound() -> None:
    """A 3.1.1 client gets no reason and reconnects forever: its operator needs the entry."""
    edge = Edge()
    session = edge.client("zigbee", version=4)
    session.publish("t", bytes(1_200_000))
    assert session.closed and session.read() == []
    (row,) = [row for row in rows(edge, "journal") if row.event == "ended"]
    assert (row.client_id, row.reason) == ("zigbee", "0x95")
    assert row.detail is not None and row.detail.startswith("packet above 1114112 bytes (edge.maximum_packet_size")
