"""Fuzz target of committed commands: any log entry is applied or refused, and its map can be sent."""

from router.map.commands import (
    AcceptLoss,
    Bootstrap,
    Command,
    DeclareDead,
    Delegate,
    ForgetNode,
    Order,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    SetAdminState,
    SetRebalance,
    StartRebalance,
    decode_command,
    encode_command,
)
from router.map.machine import MapMachine
from router.placement.plan import Move, RebalancePlan
from wire.decoding import Unreadable
from wire.messages.cluster_map import NodeEntry, PartitionEntry
from wire.messages.map_pages import MapReader, map_pages

__all__ = ["COMMANDS", "committed"]


def _base() -> bytes:
    machine = MapMachine()
    nodes = (("r1", "router"), ("s1", "storage"), ("s2", "storage"), ("s3", "storage"), ("e1", "edge"))
    commands: list[Command] = [Bootstrap("c", 4, 4, 2, 1, 2.0)]
    commands += [RegisterNode(NodeEntry(node, tier, 1, "h:1")) for node, tier in nodes]
    commands += [Delegate("plant", 2, "r1"), DeclareDead("s3", 1), DeclareDead("e1", 1)]
    for command in commands:
        assert not machine.apply(command).refusal
    return machine.snapshot()


_BASE = _base()
_EPOCH = MapMachine()
_EPOCH.restore(_BASE)
_AT = _EPOCH.map.epoch
COMMANDS = tuple(
    encode_command(command)
    for command in (
        Bootstrap("c", 4, 4, 2, 1, 2.0),
        RegisterNode(NodeEntry("s4", "storage", 2, "h:1", zone="z", weight=2)),
        RegisterNode(NodeEntry("r1", "router", 2, "h:1")),
        DeclareDead("s1", 1),
        PlacePartitions({0: PartitionEntry(2, "s1", ("s1",), ("s2",))}, each=True),
        AcceptLoss({1: 1}, "s1"),
        PlaceShards({1: "r1"}, {1: 2}),
        Delegate("plant/a", 3, "r1"),
        Delegate("plant", 0),
        SetAdminState("s1", "draining"),
        ForgetNode("e1"),
        StartRebalance(RebalancePlan(_AT, (Move("partition", 0, ("s1",), ("s2",), ("s2", "s1"), 1, 1),))),
        SetRebalance(1, "paused"),
        Order("first", Delegate("order", 1)),
    )
)


def committed(data: bytes) -> None:
    """Apply it to a cluster as every router would."""
    try:
        command = decode_command(data)
    except Unreadable:
        return
    machine = MapMachine()
    machine.restore(_BASE)
    supposed = machine.suppose(command)
    outcome = machine.apply(command)
    assert supposed.refusal == outcome.refusal
    snapshot = machine.snapshot()
    if outcome.refusal and not isinstance(command, Order):
        assert snapshot == _BASE
    machine.restore(snapshot)
    reader, read = MapReader(), None
    for page in map_pages(machine.map):
        read = reader.take(page)
    assert read == machine.map
