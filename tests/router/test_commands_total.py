"""Every committed command is applied or refused, alike on all routers, and the resulting map can be sent."""

import math
import random
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import RouterCore
from router.events import Applied
from router.map import shard_rules
from router.map.commands import (
    Bootstrap,
    Command,
    DeclareDead,
    Delegate,
    Order,
    PlacePartitions,
    RegisterNode,
    StartRebalance,
    decode_command,
    encode_command,
    is_readable,
)
from router.map.machine import JOB_RULES, MAP_RULES, MapMachine
from router.placement.plan import MOVES_MAX, Move, RebalancePlan, make_plan
from router.raft.events import RaftConfig
from router.raft.log import RaftLog, create_log
from router.raft.messages import LogEntry
from router.raft.node import RaftNode
from router.settings import RouterLimits
from tests.patience import PATIENCE_S
from tests.router.random_commands import commands
from wire.messages.cluster_map import ClusterMap, NodeEntry, PartitionEntry
from wire.messages.control import encode_control
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.map_pages import MAP_BYTES_MAX, MapReader, map_pages
from wire.messages.ranges import MAP_PAGE_BYTES, PARTITIONS_MAX

BEGIN = Bootstrap("c", 8, 4, 2, 1, 2.0)


def entry(node: str, tier: str, **fields: Any) -> NodeEntry:
    return msgspec.structs.replace(NodeEntry(node, tier, 1, "h:1"), **fields)


def sent(cluster_map: ClusterMap) -> ClusterMap | None:
    """Return a map as a follower assembles it."""
    reader, read = MapReader(), None
    for page in map_pages(cluster_map):
        assert len(encode_control(page)) < MAP_PAGE_BYTES + 100
        read = reader.take(page)
    return read


POISON: list[Command] = [
    *(RegisterNode(entry("r9", "router", weight=weight)) for weight in (0, -3, 10**9)),
    RegisterNode(entry("s9", "storage", zone="z" * 5_000_000)),
    RegisterNode(entry("s9", "storage", address="h" * 1_000_000)),
    RegisterNode(entry("s9", "storage", clients={"m" * 9_000: "h:1"})),
    RegisterNode(entry("n" * 1_000_000, "edge")),
    RegisterNode(entry("x", "king")),
    RegisterNode(entry("x", "edge", incarnation=-1)),
    PlacePartitions({8: PartitionEntry(1, "s1", ("s1",))}),
    PlacePartitions({-1: PartitionEntry(1, "s1", ("s1",))}),
    PlacePartitions({0: PartitionEntry(1 << 62, "s1", ("s1",))}),
    PlacePartitions({0: PartitionEntry(2, "s1", ("s1", "s" * 1_000_000))}),
    PlacePartitions({0: PartitionEntry(2, "s1", ("s1", *(f"s{at}" for at in range(20, 40))))}),
    Delegate("p" * 1_000_000, 1),
    Delegate("p", 10**9),
    StartRebalance(RebalancePlan(2, (Move("shard", 0, (), ()),))),
    StartRebalance(RebalancePlan(2, (Move("partition", 9, (), ()),))),
    StartRebalance(RebalancePlan(2, (Move("partition", 0, (), ("s1",)),))),
    StartRebalance(RebalancePlan(2, (Move("primary", 0, ("s1",), ("s1",), ("s1",)),) * (MOVES_MAX + 1))),
    StartRebalance(RebalancePlan(2), -5),
    Bootstrap("again", 1, 1, 1, 1, 1.0),
]


@pytest.mark.parametrize("command", POISON, ids=lambda command: type(command).__name__)
def test_out_of_range_command_is_refused_without_change(command: Command) -> None:
    """By the machine, and by a router that finds it in its log; the next command is applied."""
    core = RouterCore(entry("r1", "router"), RouterLimits())
    for good in (BEGIN, RegisterNode(entry("r1", "router")), RegisterNode(entry("s1", "storage"))):
        core.handle(0.0, [Applied(encode_command(good))])
    before = core.machine.snapshot()
    assert core.machine.suppose(command).refusal and core.machine.apply(command).refusal
    core.handle(0.0, [Applied(encode_command(command))])
    assert core.machine.snapshot() == before
    core.handle(0.0, [Applied(encode_command(RegisterNode(entry("s2", "storage"))))])
    assert core.machine.map.has_live("s2")


@pytest.mark.parametrize(
    "bootstrap",
    [
        Bootstrap("c", 0, 4, 2, 1, 2.0),
        Bootstrap("c", 65_536, 4, 2, 1, 2.0),
        Bootstrap("c", 10**9, 4, 2, 1, 2.0),
        Bootstrap("c", 8, 10**9, 2, 1, 2.0),
        Bootstrap("c", 8, 4, 0, 1, 2.0),
        Bootstrap("c", 8, 4, 2, 10**9, 2.0),
        Bootstrap("c", 8, 4, 2, 1, math.nan),
        Bootstrap("c" * 1_000_000, 8, 4, 2, 1, 2.0),
        Bootstrap("", 8, 4, 2, 1, 2.0),
    ],
)
def test_bootstrap_out_of_range_is_refused(bootstrap: Bootstrap) -> None:
    """A billion partitions would exhaust every router's memory."""
    machine = MapMachine()
    assert machine.apply(bootstrap).refusal and not machine.map.cluster
    assert not machine.apply(BEGIN).refusal


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa2\xff\xfe", b"\x91" * 100_000, b"\x80", b"\x93\x01"])
def test_undecodable_log_entry_is_skipped(data: bytes) -> None:
    """It is counted, and the router continues."""
    core = RouterCore(entry("r1", "router"), RouterLimits())
    core.handle(0.0, [Applied(encode_command(BEGIN)), Applied(data)])
    assert core.counts["commands_unreadable"] == 1 and core.machine.map.cluster == "c"


def test_rule_that_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state stays unchanged, and all routers return the same."""
    machine = MapMachine()
    machine.apply(BEGIN)

    def broken(*_: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(shard_rules, "propose_owners", broken)
    before = machine.snapshot()
    assert machine.apply(RegisterNode(entry("r1", "router"))).refusal == (
        "RegisterNode cannot be carried out: ZeroDivisionError"
    )
    assert machine.snapshot() == before


@settings(max_examples=80, deadline=None)
@given(st.lists(commands(), max_size=25), st.integers(0, 24))
def test_apply_never_raises_and_all_routers_agree(log: list[Command], restored_at: int) -> None:
    """One router applies, one evaluates each command first, one starts from a snapshot, and one is a router's core."""
    one, two, three = MapMachine(), MapMachine(), MapMachine()
    core = RouterCore(entry("r1", "router"), RouterLimits())
    for at, command in enumerate([BEGIN, *log]):
        data = encode_command(command)
        before = one.snapshot()
        core.handle(at / 10, [Applied(data)])
        if at == restored_at:
            three.restore(before)
        if not is_readable(data):
            continue
        outcome = one.apply(decode_command(data))
        assert (not outcome.refusal) or outcome.order is not None or one.snapshot() == before
        assert two.suppose(decode_command(data)).refusal == outcome.refusal
        assert two.apply(decode_command(data)) == outcome
        if at >= restored_at:
            assert three.apply(decode_command(data)) == outcome
    assert one.snapshot() == two.snapshot() == core.machine.snapshot()
    assert sent(one.map) == one.map


def placed(partitions: int) -> MapMachine:
    """Return a map with this number of partitions and the longest names."""
    machine = MapMachine()
    assert not machine.apply(Bootstrap("c", partitions, 64, 3, 2, 2.0)).refusal
    for number in range(4):
        command = RegisterNode(entry(f"storage-{number}-".ljust(64, "x"), "storage"))
        assert not machine.apply(decode_command(encode_command(command))).refusal
    return machine


@pytest.mark.parametrize("partitions", [4_096, pytest.param(PARTITIONS_MAX, marks=pytest.mark.slow)])
def test_the_largest_map_works(partitions: int) -> None:
    """Every partition is placed, passes through pages and snapshots, and survives the death of a node."""
    machine = placed(partitions)
    assert all(placement.epoch == 1 and len(placement.in_sync) == 3 for placement in machine.map.partitions)
    assert sent(machine.map) == machine.map
    pages = map_pages(machine.map)
    assert MAP_PAGE_BYTES < pages[0].size < MAP_BYTES_MAX and len(encode_control(pages[0])) < FRAME_BYTES_MAX
    dead = machine.map.nodes["storage-0-".ljust(64, "x")]
    outcome = machine.apply(DeclareDead(dead.node, dead.incarnation))
    assert outcome.delta is not None and len(outcome.delta.partitions) > partitions // 2
    other = MapMachine()
    other.restore(machine.snapshot())
    assert other.map == machine.map
    plan = make_plan(machine.map)
    cut = msgspec.structs.replace(plan, moves=plan.moves[:MOVES_MAX])
    assert len(plan.moves) > MOVES_MAX
    assert not machine.apply(decode_command(encode_command(StartRebalance(cut)))).refusal


async def test_invalid_log_entries_are_skipped_at_every_start(tmp_path: Path) -> None:
    """On a real disk: a router that committed them under an older version continues after them."""
    create_log(tmp_path / "raft", 7)
    poison = encode_command(RegisterNode(entry("r9", "router", weight=-3)))
    for incarnation in (1, 2):
        core = RouterCore(entry("r1", "router", incarnation=incarnation), RouterLimits())
        apply = partial(_applied, core)
        node = RaftNode(
            RaftConfig(id="r1", voters=("r1",)),
            RaftLog(tmp_path / "raft"),
            send=lambda *_: None,
            apply=apply,
            take_snapshot=core.capture,
            restore=core.restore,
            rng=random.Random(incarnation),
            incarnation=incarnation,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            with trio.fail_after(PATIENCE_S):
                if incarnation == 1:
                    while not node.is_leader:
                        await trio.sleep(0.005)
                    for data in (encode_command(BEGIN), poison, b"\xc1"):
                        await node.propose(data)
                await node.propose(encode_command(RegisterNode(entry("s1", "storage", incarnation=incarnation))))
            assert core.counts["commands_unreadable"] == 2
            assert list(core.machine.map.nodes) == ["s1"] and core.machine.map.has_live("s1")
            nursery.cancel_scope.cancel()


def _applied(core: RouterCore, item: LogEntry) -> None:
    core.handle(0.0, [Applied(item.data)])


def test_every_command_has_one_rule() -> None:
    """Bootstrap creates the map, and an order uses the rule of its command."""
    assert MAP_RULES.keys() | JOB_RULES.keys() | {Bootstrap, Order} == set(get_args(Command))
    assert not MAP_RULES.keys() & JOB_RULES.keys()
