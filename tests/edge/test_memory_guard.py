"""Memory of clients is bounded in all: new ones are refused, then those with the most memory are disconnected."""

from pathlib import Path

import pytest

from edge.clients.memory_guard import available_bytes
from edge.node.limits import EdgeLimits
from mqtt.codec import encode_packet
from mqtt.packets import Connack, Disconnect, Publish
from tests.edge.edge_harness import Edge, Session

KIB = 1024


def half_a_packet(size: int) -> bytes:
    return encode_packet(Publish("t", b"x" * 500 * KIB, properties={}), 5)[:size]


def held(edge: Edge, client_id: str, size: int, version: int = 5) -> Session:
    session = edge.client(client_id, version)
    session.send(half_a_packet(size))
    return session


@pytest.mark.parametrize(("version", "refusal"), [(5, 0x89), (4, 3)])
def test_new_clients_are_refused_above_seventy_percent(version: int, refusal: int) -> None:
    edge = Edge(EdgeLimits(sys_interval_s=0, memory_max=1000 * KIB))
    served = edge.client("served")
    holder = held(edge, "holder", 400 * KIB)
    other = held(edge, "other", 320 * KIB)
    refused = edge.accept()
    refused.connect("refused", version)
    (connack,) = refused.read()
    assert isinstance(connack, Connack) and connack.reason_code == refusal
    assert edge.core.counts["memory_refused"] == 1
    assert not holder.closed and not other.closed
    served.subscribe("a", qos=0)  # connected clients are served
    assert served.read()[0].reason_codes == [0]
    other.drop()
    edge.client("welcome")


def test_largest_holders_are_disconnected_above_eightyfive_percent() -> None:
    """Until a quarter is free; counted by reason, MQTT 5 clients get it."""
    edge = Edge(EdgeLimits(sys_interval_s=0, memory_max=1000 * KIB))
    small = [held(edge, f"small-{number}", 60 * KIB) for number in range(5)]
    large = held(edge, "large", 300 * KIB)
    old = held(edge, "old", 90 * KIB, 4)
    assert not large.closed
    last = edge.client("last")
    last.send(half_a_packet(200 * KIB))
    edge.turn()
    assert large.closed and not last.closed and not old.closed and not any(session.closed for session in small)
    assert [packet.reason_code for packet in large.read() if isinstance(packet, Disconnect)] == [0x97]
    assert edge.core.counts["disconnects_memory"] == 1
    assert edge.core.hot.held_bytes <= 750 * KIB


def test_default_bound_follows_cgroup_or_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree: 5 kB\n")
    limit = tmp_path / "memory.max"
    assert available_bytes(limit, meminfo) == 1_024_000
    limit.write_text("max\n")
    assert available_bytes(limit, meminfo) == 1_024_000
    limit.write_text("500000\n")
    assert available_bytes(limit, meminfo) == 500_000
    assert available_bytes() > 1024 * 1024
