"""Commands that a hostile router could commit: mostly near the valid ranges, some far outside."""

from typing import Any

from hypothesis import strategies as st

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
    StopNodes,
)
from router.placement.plan import Move, RebalancePlan
from wire.messages.cluster_map import NodeEntry, PartitionEntry

__all__ = ["commands"]

FAR = st.sampled_from([-(1 << 63), -3, -1, 65_535, 10**9, (1 << 62) + 5, (1 << 64) - 1])
LONG = st.sampled_from([64, 65, 1_000_000]).map(lambda length: "z" * length)
STORAGES = ["s1", "s2", "s3", "s4"]
ROUTERS = ["r1", "r2"]


def number(*near: int) -> Any:
    """Mostly one of the given values, sometimes a distant one."""
    usual = st.sampled_from(near)
    return st.one_of(usual, usual, usual, usual, FAR)


def name(*usual: str) -> Any:
    """Mostly one of the given names, sometimes an empty or very long one."""
    known = st.sampled_from(usual)
    return st.one_of(known, known, known, known, st.sampled_from(["", "x", "é" * 40, "a/b"]), LONG)


ANY = name(*STORAGES, *ROUTERS, "e1")
EPOCHS = number(0, 1, 2, 3)
PARTITIONS = number(0, 1, 2, 7)
COPIES = st.lists(name(*STORAGES), max_size=4).map(tuple)
ENTRIES = st.builds(
    NodeEntry,
    ANY,
    st.sampled_from(["storage", "router", "edge", "storage", "router", "", "king"]),
    number(1, 2, 3),
    name("h:1"),
    st.dictionaries(name("mqtt"), name("h:2"), max_size=2),
    zone=name("", "z1", "z2"),
    weight=number(1, 1, 2, 100),
    state=st.sampled_from(["joining", "active", "dead", "odd"]),
    admin_state=st.sampled_from(["", "draining", "odd"]),
)
GOOD = st.sampled_from([*STORAGES, *ROUTERS]).map(
    lambda known: NodeEntry(known, "storage" if known in STORAGES else "router", 1, "h:1")
)
MOVES = st.builds(
    Move,
    st.sampled_from(["shard", "partition", "primary", "nothing"]),
    PARTITIONS,
    COPIES,
    COPIES,
    COPIES,
    number(0),
    number(0, 1000),
)
OPERATORS = st.one_of(
    st.builds(Delegate, name("plant", "plant/a", "a/+"), number(0, 1, 2), name("", "r1")),
    st.builds(SetAdminState, ANY, st.sampled_from(["", "draining", "gone", "x" * 5000])),
    st.builds(ForgetNode, ANY),
    st.builds(AcceptLoss, st.dictionaries(PARTITIONS, EPOCHS, max_size=3), ANY),
    st.builds(
        StartRebalance, st.builds(RebalancePlan, EPOCHS, st.lists(MOVES, max_size=3).map(tuple), number(16)), number(0)
    ),
    st.builds(SetRebalance, number(1, 2), st.sampled_from(["paused", "running", "done", "", "odd"]), name("")),
)


def commands() -> Any:
    """Return a strategy of commands."""
    registrations = st.one_of(GOOD, ENTRIES).map(RegisterNode)
    built: list[st.SearchStrategy[Command]] = [
        registrations,
        registrations,
        st.builds(
            Bootstrap, name("c"), number(8), number(4), number(1, 2), number(1), st.sampled_from([2.0, -1.0, 1e300])
        ),
        st.builds(DeclareDead, ANY, number(1, 2, 3)),
        st.builds(StopNodes, st.dictionaries(ANY, number(1, 2, 3), max_size=4)),
        st.builds(
            PlacePartitions,
            st.dictionaries(PARTITIONS, st.builds(PartitionEntry, EPOCHS, name(*STORAGES), COPIES, COPIES), max_size=3),
            st.booleans(),
        ),
        st.builds(
            PlaceShards, st.dictionaries(number(0, 1, 3), ANY, max_size=3), st.dictionaries(number(0, 1), EPOCHS)
        ),
        OPERATORS,
        st.builds(Order, name("first", "second", "third"), OPERATORS),
    ]
    return st.one_of(built)
