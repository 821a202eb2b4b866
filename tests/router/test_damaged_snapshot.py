"""A decodable but inconsistent snapshot of the map is refused as a whole, with one line."""

from typing import Any

import msgspec
import pytest

from router.core import RouterCore
from router.map.commands import Bootstrap, Delegate, RegisterNode
from router.map.machine import MapMachine
from router.settings import RouterLimits
from wire.decoding import Unreadable
from wire.messages.cluster_map import NodeEntry


def entry(node: str, tier: str) -> NodeEntry:
    return NodeEntry(node, tier, 1, "127.0.0.1:1")


def snapshot() -> dict[str, Any]:
    """Return the snapshot of a small cluster as plain values."""
    machine = MapMachine()
    for command in (
        Bootstrap("c", 4, 2, 1, 1, 2.0),
        RegisterNode(entry("r1", "router")),
        RegisterNode(entry("s1", "storage")),
        Delegate("plant", 2, "r1"),
    ):
        assert not machine.apply(command).refusal
    plain: dict[str, Any] = msgspec.msgpack.decode(machine.snapshot())
    return plain


DAMAGED: dict[str, dict[str, Any]] = {
    "no partition": {"partitions": []},
    "no shard": {"shards": [], "base_shards": 0, "delegations": []},
    "shards that are none": {"base_shards": 4},
    "no base shard": {"base_shards": 0},
    "a node under another's name": {
        "nodes": {"x": {"node": "r1", "tier": "router", "incarnation": 1, "address": "a:1"}}
    },
    "a node of no tier": {"nodes": {"x": {"node": "x", "tier": "xs", "incarnation": 1, "address": "a:1"}}},
    "a delegation to no shard": {"delegations": [{"prefix": "a", "depth": 1, "pin": "r1", "shard": 9}]},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_inconsistent_map_is_refused(damage: str) -> None:
    """Otherwise a later lookup would raise, at every start."""
    plain = snapshot()
    core = RouterCore(entry("r1", "router"), RouterLimits())
    core.restore(msgspec.msgpack.encode(plain))
    before = core.machine.snapshot()
    plain["map"] |= DAMAGED[damage]
    with pytest.raises(Unreadable, match="snapshot of the map"):
        core.restore(msgspec.msgpack.encode(plain))
    assert core.machine.snapshot() == before


JOBS: dict[str, dict[str, Any]] = {
    "a shard's move to nobody": {"moves": [{"kind": "shard", "number": 0, "source": ["r1"], "target": []}]},
    "a move of no partition": {"moves": [{"kind": "partition", "number": 4, "source": [], "target": []}]},
    "a partition's move to nowhere": {"moves": [{"kind": "primary", "number": 0, "source": [], "target": []}]},
}


@pytest.mark.parametrize("plan", JOBS)
def test_rebalance_that_no_command_can_start_is_refused(plan: str) -> None:
    """Otherwise every leader would raise at its next step."""
    plain = snapshot() | {"job": {"number": 1, "plan": {"map_epoch": 1, **JOBS[plan]}}}
    with pytest.raises(Unreadable, match="snapshot of the map"):
        MapMachine().restore(msgspec.msgpack.encode(plain))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91" * 5000, b"\x81\xa3map\xc0", b"\x81\xa3map\x81\xa1\xff\xc0"])
def test_undecodable_bytes_are_refused(data: bytes) -> None:
    """With one error type for any failure of the decoder."""
    with pytest.raises(Unreadable, match="snapshot of the map"):
        MapMachine().restore(data)


def test_snapshot_of_an_empty_group_is_accepted() -> None:
    """Routers may take one before the bootstrap."""
    machine = MapMachine()
    machine.restore(MapMachine().snapshot())
    assert machine.map.cluster == ""
