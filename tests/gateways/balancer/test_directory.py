"""Candidate edges and the choice among them: each rule separately."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from gateways.balancer.directory import Directory, DirectoryRules, Forward, PlacementRequest
from gateways.balancer.edge import Edge
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry
from wire.messages.socket_handoff import HAND_OVER

TLS = PlacementRequest("tls")


def entry(node: str, **changes: object) -> NodeEntry:
    number = int(node[-1])
    known: dict[str, object] = {
        "node": node,
        "tier": "edge",
        "incarnation": 1,
        "address": f"10.0.0.{number}:7949",
        "clients": {"tls": f"10.0.0.{number}:8883"},
        "state": NodeState.ACTIVE,
    }
    return NodeEntry(**(known | changes))  # type: ignore[arg-type]


def map_of(*entries: NodeEntry, epoch: int = 1, partitions: list[PartitionEntry] | None = None) -> ClusterMap:
    return ClusterMap("c", epoch, nodes={each.node: each for each in entries}, partitions=partitions or [])


def directory(*entries: NodeEntry, local: Mapping[str, str] | None = None, **rules: object) -> Directory:
    made = Directory(
        DirectoryRules(("tls",), **rules),  # type: ignore[arg-type]
        lambda address: (local or {}).get(address, ""),
        Random(1),
    )
    made.map_moved(0.0, map_of(*entries))
    return made


def spread(made: Directory, count: int, now: float = 100.0, wanted: PlacementRequest = TLS) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(count):
        edge = made.choose(now, wanted)
        assert edge is not None
        edge.took()
        found[edge.node] += 1
    return found


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": NodeState.JOINING}, "joining"),
        ({"state": NodeState.DEAD}, "dead"),
        ({"state": NodeState.DRAINING}, "draining"),
        ({"admin_state": "draining"}, "draining"),
        ({"clients": {"plain": "10.0.0.2:1883"}}, "no listener tls"),
        (
            {"clients": {"tls": "0.0.0.0:8883"}},
            "address 0.0.0.0:8883 is not dialable: set advertise of its listener",
        ),
        ({"clients": {"tls": "[::]:8883"}}, "address [::]:8883 is not dialable: set advertise of its listener"),
        ({"clients": {"tls": "10.0.0.1:8883"}}, "has the address of e1, 10.0.0.1:8883"),
    ],
)
def test_directory_only_map_adds_candidates(changes: dict[str, object], why: str) -> None:
    """Gossip alone adds no candidate; routers and storage nodes are no candidates."""
    made = directory(entry("e1"), entry("e2", **changes), entry("s3", tier="storage"))
    for node in ("e1", "e2", "e9"):
        made.member_seen(0.0, node, "alive", 0)
    assert [edge.node for edge in made.candidates("tls")] == ["e1"]
    assert made.left_out("tls") == {"e2": why}
    assert spread(made, 20) == {"e1": 20}


@pytest.mark.parametrize(
    ("forward", "candidates"), [("auto", ["e1", "e2"]), ("hand_over", ["e1"]), ("relay", ["e2"]), ("redirect", ["e2"])]
)
def test_an_edge_of_this_host_needs_no_address(forward: Forward, candidates: list[str]) -> None:
    mine = {"tls": "0.0.0.0:8883", HAND_OVER: "unix:boot:/e1"}
    made = directory(entry("e1", clients=mine), entry("e2"), local={"unix:boot:/e1": "/e1"}, forward=forward)
    assert [edge.node for edge in made.candidates("tls")] == candidates
    assert all(edge.socket == ("/e1" if edge.node == "e1" else "") for edge in made.candidates("tls"))


def test_directory_clear_client_skips_edges_without_dialable_address() -> None:
    mine = {"tls": "0.0.0.0:8883", HAND_OVER: "unix:boot:/e1"}
    made = directory(entry("e1", clients=mine), entry("e2"), local={"unix:boot:/e1": "/e1"})
    assert spread(made, 10, wanted=PlacementRequest("tls", in_clear=True)) == {"e2": 10}


def test_edge_after_failure_is_skipped_with_doubling_delay() -> None:
    """1 s, 2 s, 4 s, 5 s; after a success 1 s again."""
    made = directory(entry("e1"))
    now = 100.0
    for wait_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        edge = made.choose(now, TLS)
        assert edge is not None
        made.failed(now, edge)
        assert made.choose(now + wait_s - 0.01, TLS) is None and edge.clients == 0
        now += wait_s
    edge = made.choose(now, TLS)
    assert edge is not None
    edge.took()
    made.failed(now, edge)
    assert made.choose(now + 1.0, TLS) is not None


def test_directory_without_live_edge_uses_suspect_edge() -> None:
    made = directory(entry("e1"), entry("e2"))
    made.member_seen(0.0, "e1", "suspect", None)
    assert spread(made, 10) == {"e2": 10}
    made.member_seen(0.0, "e2", "dead", None)
    assert set(spread(made, 30)) == {"e1", "e2"}
    made.members_are([])
    assert set(spread(made, 10)) == {"e1", "e2"}


def test_least_connections_respects_weights_and_alternates() -> None:
    made = directory(entry("e1"), entry("e2"), entry("e3"))
    assert set(spread(made, 3_000).values()) == {1_000}
    heavy = directory(entry("e1", weight=2), entry("e2"))
    assert spread(heavy, 300) == {"e1": 200, "e2": 100}
    reported = directory(entry("e1"), entry("e2"))
    reported.member_seen(0.0, "e1", "alive", 50)
    assert spread(reported, 60) == {"e1": 5, "e2": 55}


def test_edge_estimate_ignores_stale_gossip_value() -> None:
    """A gossip value is older than the last picks; only the part that those cannot explain changes the estimate."""
    made = directory(entry("e1"), entry("e2"))
    for step in range(300):
        now = 100.0 + step / 100
        edge = made.choose(now, TLS)
        assert edge is not None
        if step % 20 == 0:
            made.member_seen(now, "e1", "alive", max(0, step // 2 - 40))  # about 0.8 s old
    assert [edge.clients for edge in made.candidates("tls")] == [150, 150]
    made.member_seen(120.0, "e1", "alive", 20)
    made.member_seen(120.0, "e2", "alive", 400)
    assert [edge.clients for edge in made.candidates("tls")] == [20, 400]


def test_round_robin_is_exact() -> None:
    made = directory(entry("e1"), entry("e2"), entry("e3"), policy="round_robin")
    assert set(spread(made, 3_000).values()) == {1_000}
    heavy = directory(entry("e1", weight=3), entry("e2"), policy="round_robin")
    picks = [edge.node for _ in range(8) if (edge := heavy.choose(1.0, TLS)) is not None]
    assert picks == ["e1", "e1", "e2", "e1"] * 2


def test_two_balancers_compare_two_random_edges() -> None:
    """Otherwise both would send all clients to the edge that was empty last."""
    made = directory(entry("e1"), entry("e2"), entry("e3"))
    made.member_seen(0.0, "e2", "alive", 100)
    made.member_seen(0.0, "e3", "alive", 100)
    made.has_peers = True
    found = spread(made, 60)
    assert 0 < found["e2"] + found["e3"] < 30  # e1 is not in the sample
    other = directory(entry("e1"), entry("e2"), entry("e3"))
    other.has_peers = True
    both = spread(other, 3_000)
    assert max(both.values()) - min(both.values()) <= 150


def test_sticky_choice_is_stable_and_bounds_load() -> None:
    edges = [entry(f"e{number}") for number in range(1, 6)]
    made = directory(*edges, policy="sticky")
    first = {key: made.choose(100.0, PlacementRequest("tls", key)) for key in map(str, range(2_000))}
    counts = Counter(edge.node for edge in first.values() if edge is not None)
    assert max(counts.values()) <= 1.25 * 400 + 1
    again = directory(*edges[:-1], policy="sticky")
    moved = [
        key
        for key, edge in first.items()
        if (other := again.choose(100.0, PlacementRequest("tls", key)))
        and edge
        and other.node != edge.node
        and edge.node != "e5"
    ]
    assert len(moved) < 200  # only clients of the removed edge, and those moved by the load bound


def test_directory_prefers_zone_of_clients_partition() -> None:
    stores = [entry(f"s{n}", tier="storage", zone=zone) for n, zone in ((7, "a"), (8, "b"))]
    placed = [PartitionEntry(1, "s7", ("s7",)), PartitionEntry(1, "s8", ("s8",))]
    made = directory(near=True, zone="b")
    both = map_of(entry("e1", zone="a"), entry("e2", zone="b"), *stores, partitions=placed)
    made.map_moved(0.0, both)
    for client_id in map(str, range(20)):
        edge = made.choose(100.0, PlacementRequest("tls", client_id, client_id))
        assert edge is not None
        assert edge.node == ("e1" if both.partition_for(client_id) == 0 else "e2")
    assert spread(made, 5) == {"e2": 5}  # the balancer's own zone, for an unknown client ID
    made.map_moved(0.0, map_of(entry("e1", zone="a"), *stores, partitions=placed))
    assert spread(made, 5) == {"e1": 5}


def test_directory_new_edge_receives_at_most_twice_its_share() -> None:
    """With the fewest clients it would receive all new ones."""
    made = directory(entry("e1"), entry("e2"))
    for node in ("e1", "e2"):
        made.member_seen(50.0, node, "alive", 5_000)
    spread(made, 600, now=100.0)
    made.map_moved(101.0, map_of(entry("e1"), entry("e2"), entry("e3"), epoch=2))
    assert spread(made, 500, now=101.5)["e3"] == 400  # of the 600 of the previous second
    assert spread(made, 400, now=101.6)["e3"] <= 200  # of the 900 of this second
    quiet = directory(entry("e1"))
    quiet.map_moved(101.0, map_of(entry("e1"), entry("e2"), epoch=2))
    assert 0 < spread(quiet, 10, now=105.0)["e2"] <= 10
    alone = directory()
    alone.map_moved(50.0, map_of(epoch=1))
    alone.map_moved(101.0, map_of(entry("e1"), epoch=2))
    assert spread(alone, 100, now=101.0) == {"e1": 100}  # there is no other edge


def test_directory_new_incarnation_clears_skip_time() -> None:
    made = directory(entry("e1"), entry("e2"))
    edge = made.choose(100.0, TLS)
    assert edge is not None
    made.failed(100.0, edge)
    made.map_moved(100.1, map_of(entry(edge.node, incarnation=2), epoch=2))
    assert made.choose(100.2, TLS) is not None
    assert isinstance(made.candidates("tls")[0], Edge) and made.candidates("tls")[0] is not edge


def test_directory_clock_jump_keeps_edges_usable() -> None:
    """The boot clock does not jump, but a jump must not exclude edges."""
    made = directory(entry("e1"), entry("e2"))
    for now in (100.0, 3_700.0, 50.0, 50.1):
        assert sum(spread(made, 10, now=now).values()) == 10
