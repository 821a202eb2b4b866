"""The line with the reason why a node waits, and its log interval."""

import logging

import pytest

from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry
from wire.messages.map_pages import map_pages
from wire.messages.nodes import RequestRefused
from wire.node.lease_holder import LeaseHolder
from wire.node.startup_log import MapGaps, WaitingLog, missing_from_map, missing_from_routers


def node(name: str, tier: str, state: str = NodeState.ACTIVE) -> NodeEntry:
    return NodeEntry(name, tier, 1, f"10.0.0.1:{len(name)}", state=state)


def cluster_map(*nodes: NodeEntry, partitions: list[PartitionEntry], replicas: int = 3) -> ClusterMap:
    return ClusterMap("c", 1, {entry.node: entry for entry in nodes}, partitions, replicas=replicas)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (
            cluster_map(node("s", "storage"), partitions=[PartitionEntry()] * 256),
            "256 partitions have no place: 3 copies wanted, 1 storage node",
        ),
        (
            cluster_map(node("e", "edge"), partitions=[PartitionEntry()], replicas=1),
            "1 partition has no place: 1 copy wanted, 0 storage nodes",
        ),
        (
            cluster_map(
                node("s", "storage", NodeState.DEAD), partitions=[PartitionEntry(2, "", ("s", "t"))] * 2, replicas=1
            ),
            "2 partitions have no primary: the copies are on s, t",
        ),
        (cluster_map(node("s", "storage"), partitions=[PartitionEntry(1, "s", ("s",))], replicas=1), ""),
    ],
)
def test_missing_from_map_names_the_first_gap(made: ClusterMap, line: str) -> None:
    """Partitions without a place, then those without a primary."""
    assert missing_from_map(made) == line
    gaps = MapGaps()
    assert gaps.reason(made) == line and gaps.primaries(made) == sorted({p.primary for p in made.partitions})


def test_missing_from_routers_names_the_first_gap() -> None:
    """No router, no map, no registration, no lease: the first of these."""
    holder = LeaseHolder(node("edge-0", "edge"), lambda *_: True, lambda _: None)
    assert missing_from_routers(holder, 0.0, ()) == "no router is known: node.seeds is empty"
    assert missing_from_routers(holder, 0.0, ("a:1", "b:2")) == "no router answers at a:1, b:2"
    holder.router_up("router-0", 0.0)
    assert missing_from_routers(holder, 0.0, ("a:1",)).startswith("router-0 sent no map yet: a majority")
    holder.beat(0.0)
    holder.handle(0.0, "router-0", RequestRefused(1, "invalid", "the name is taken"))
    assert missing_from_routers(holder, 0.0, ("a:1",)) == "the routers do not let this node in: the name is taken"
    holder.handle(0.0, "router-0", map_pages(cluster_map(node("edge-0", "edge"), partitions=[]))[0])
    assert missing_from_routers(holder, 0.0, ("a:1",)).startswith("no lease from router-0: a majority")
    holder.lease_until = 5.0
    assert missing_from_routers(holder, 0.0, ("a:1",)) == ""


def test_waiting_log_logs_at_start_and_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """A normal start logs no line; a long wait one line in ten seconds, and one at its end."""
    log = WaitingLog(logging.getLogger("test"))
    with caplog.at_level("INFO", logger="test"):
        for tenth in range(250):
            log.look(tenth / 10, "for a friend")
        assert [record.getMessage() for record in caplog.records] == ["waiting: for a friend"] * 3
        log.look(25.0, "")
        assert caplog.records[-1].getMessage() == "waits no longer"
        log.look(26.0, "again")
        log.look(26.5, "")
        assert len(caplog.records) == 4
