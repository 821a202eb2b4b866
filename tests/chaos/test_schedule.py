"""Schedules are data from a seed, and undo all their faults."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from stratamq.history.operations import Kind
from tests.chaos.chaos_run import run_schedule
from tests.chaos.schedule import ROWS, Fault, Schedule, Verb, draw

NODES = [f"{tier}-{number}" for tier in ("edge", "router", "storage") for number in (1, 2, 3)]


class FakeCluster:
    """Records active faults, and rejects invalid actions."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.stopped: set[str] = set()
        self.links: set[tuple[str, str]] = set()
        self.disks: set[str] = set()
        self.clocks: set[str] = set()
        self.deeds: list[str] = []
        self.worst = 0

    def nodes(self) -> list[str]:
        return list(NODES)

    async def kill(self, node: str) -> None:
        assert node not in self.down
        self.down.add(node)
        self._note(f"kill {node}")

    async def restart(self, node: str) -> None:
        self.down.discard(node)
        self._note(f"restart {node}")

    async def stop(self, node: str) -> None:
        self.stopped.add(node)
        self._note(f"stop {node}")

    async def cont(self, node: str) -> None:
        self.stopped.remove(node)
        self._note(f"cont {node}")

    def cut(self, sender: str, receiver: str) -> None:
        self.links.add((sender, receiver))
        self._note(f"cut {sender} {receiver}")

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        assert seconds > 0
        self.cut(sender, receiver)

    def half_open(self, node: str) -> None:
        self.links.add((node, "*"))

    def heal_links(self) -> None:
        self.links.clear()

    async def disk(self, node: str, verb: Verb, amount: float) -> None:
        assert (verb in (Verb.FLIP_BITS, Verb.WIPE_DISK, Verb.LOSE_POWER)) == (node in self.down)
        self.disks.add(node)
        self._note(f"{verb} {node} {amount:g}")

    async def heal_disk(self, node: str) -> None:
        self.disks.remove(node)

    async def shift_clock(self, node: str, seconds: float) -> None:
        (self.clocks.add if seconds else self.clocks.discard)(node)

    async def recovered(self) -> None:
        assert self.broken() == 0

    def broken(self) -> int:
        return len(self.down | self.stopped | self.disks | self.clocks) + len(self.links)

    def _note(self, deed: str) -> None:
        self.deeds.append(deed)
        self.worst = max(self.worst, self.broken())


class Marks:
    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def mark(self, kind: Kind, target: str = "", reason: str = "") -> None:
        assert target
        assert reason
        self.kinds.append(kind)


@pytest.mark.parametrize("row", list(ROWS))
async def test_every_row_applies_and_undoes_faults(row: str, autojump_clock: MockClock) -> None:
    cluster, marks = FakeCluster(), Marks()
    schedule = draw(row, seed=4, nodes=NODES, seconds=60)
    start = trio.current_time()
    assert await run_schedule(schedule, cluster, marks) == []
    assert cluster.broken() == 0
    assert marks.kinds[1::2] == [Kind.HEAL] * len(schedule.faults)
    assert 60 <= trio.current_time() - start < 120
    del autojump_clock


def test_same_seed_gives_same_schedule_in_any_order_of_names() -> None:
    for row in ROWS:
        assert draw(row, 7, NODES, 60) == draw(row, 7, NODES[::-1], 60)
        assert str(draw(row, 7, NODES, 60)) != str(draw(row, 8, NODES, 60))


def test_schedule_is_readable_and_shortenable() -> None:
    faults = (Fault(Verb.KILL, ("edge-1",), 1.0, 2.0), Fault(Verb.SLOW, ("edge-2",), 1.0, 2.0, 0.25))
    schedule = Schedule("F01", 3, faults)
    assert str(schedule).splitlines() == [
        "F01 seed 3, 2 faults",
        "  1. +1.000 s kill edge-1 for 2.000 s",
        "  2. +1.000 s slow 0.25 edge-2 for 2.000 s",
    ]
    assert schedule.without(1).faults == faults[1:]


async def test_links_of_each_kind_of_partition(autojump_clock: MockClock) -> None:
    """A mute node only receives; an isolated pair stays connected; a parted pair reaches all other nodes."""
    cases = [
        (Verb.MUTE, ("router-1",), {("router-1", "router-2"), ("router-1", "edge-1")}, {("router-2", "router-1")}),
        (Verb.DEAFEN, ("router-1",), {("router-2", "router-1")}, {("router-1", "router-2")}),
        (
            Verb.ISOLATE,
            ("router-1", "router-2"),
            {("router-1", "router-3"), ("router-3", "router-1")},
            {("router-1", "router-2")},
        ),
        (
            Verb.PART,
            ("edge-1", "storage-1", "storage-2"),
            {("edge-1", "storage-2"), ("storage-1", "edge-1")},
            {("storage-1", "storage-2"), ("edge-1", "router-1")},
        ),
    ]
    for verb, nodes, broken, whole in cases:
        cluster = FakeCluster()
        schedule = Schedule("test", 1, (Fault(verb, nodes, 1.0, 1.0),))
        await run_schedule(schedule, cluster, Marks())
        cuts = {(deed.split()[1], deed.split()[2]) for deed in cluster.deeds}
        assert broken <= cuts
        assert not whole & cuts
    del autojump_clock


async def test_cancelled_run_still_heals(autojump_clock: MockClock) -> None:
    cluster = FakeCluster()
    with trio.move_on_after(2.0):
        await run_schedule(Schedule("F07", 1, (Fault(Verb.STOP, ("edge-1",), 1.0, 60.0),)), cluster, Marks())
    assert cluster.deeds == ["stop edge-1", "cont edge-1"]
    del autojump_clock


def test_unknown_rows_and_missing_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="no row"):
        draw("F99", 1, NODES, 1)
    with pytest.raises(ValueError, match="no node"):
        draw("F11", 1, ["storage-1"], 1)
