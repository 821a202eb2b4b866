"""Apply a schedule to a cluster, with a mark in the history for every action.

The cluster is a Protocol: real processes with fault proxies, or a fake. Every
fault is undone before this returns, because the checkers need the quiet phase that follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from stratamq.history.operations import Kind
from tests.chaos.schedule import Fault, Schedule, Verb

RECOVERY_S = 30.0  # longest wait for a recovery between two faults; then the schedule ends with a report
UNDO_S = 20.0  # longest time for putting one thing right

DISK_VERBS = frozenset(
    (
        Verb.SLOW_SYNC,
        Verb.FAIL_SYNC,
        Verb.FILL_DISK,
        Verb.FLIP_BITS,
        Verb.WIPE_DISK,
        Verb.CRASH_POINT,
        Verb.LOSE_POWER,
    )
)
KILLED = frozenset((Verb.KILL, Verb.KILL_TWICE, Verb.FLIP_BITS, Verb.WIPE_DISK, Verb.LOSE_POWER))  # at first
LEAVES_RUNNING = frozenset(
    (Verb.STOP, Verb.ISOLATE, Verb.MUTE, Verb.DEAFEN, Verb.PART, Verb.FLAP, Verb.SLOW, Verb.SLOW_SYNC, Verb.SHIFT_CLOCK)
)

__all__ = ["Cluster", "Marks", "run_schedule"]


class Marks(Protocol):
    """Where deeds are written down; ``stratamq.history.run.Run`` is one."""

    def mark(self, kind: Kind, target: str = "", reason: str = "") -> None: ...


class Cluster(Protocol):
    """Actions of a schedule on a cluster. Every call returns when it is done."""

    def nodes(self) -> list[str]: ...

    async def kill(self, node: str) -> None: ...

    async def restart(self, node: str) -> None: ...

    async def stop(self, node: str) -> None: ...

    async def cont(self, node: str) -> None: ...

    def cut(self, sender: str, receiver: str) -> None:
        """Block all traffic from sender to receiver until ``heal_links``."""

    def delay(self, sender: str, receiver: str, seconds: float) -> None: ...

    def half_open(self, node: str) -> None: ...

    def heal_links(self) -> None: ...

    async def disk(self, node: str, verb: Verb, amount: float) -> None:
        """Break the disk of a node; ``FLIP_BITS``, ``WIPE_DISK`` and ``LOSE_POWER`` find it down."""

    async def heal_disk(self, node: str) -> None: ...

    async def shift_clock(self, node: str, seconds: float) -> None: ...

    async def recovered(self) -> None:
        """Return when every node serves again and every partition has its copies."""


async def run_schedule(schedule: Schedule, cluster: Cluster, marks: Marks, seconds: float = float("inf")) -> list[str]:
    """Run all faults in order, up to one that does not recover in time; return that for the report.

    Args:
        seconds: No fault begins later, because recoveries take time too.
    """
    slow: list[str] = []
    end = trio.current_time() + seconds
    for number, fault in enumerate(schedule.faults, 1):
        if number > 1 and trio.current_time() + fault.after_s > end:
            break
        await trio.sleep(fault.after_s)
        target = ", ".join(fault.nodes)
        try:
            marks.mark(Kind.KILL if fault.verb in (Verb.KILL, Verb.KILL_TWICE) else Kind.FAULT, target, str(fault))
            await _do(fault, cluster)
        finally:
            with trio.move_on_after(UNDO_S, shield=True):
                await _undo(fault, cluster)
            marks.mark(Kind.HEAL, target, fault.verb)
        with trio.move_on_after(RECOVERY_S) as patience:
            await cluster.recovered()
        if patience.cancelled_caught:
            slow.append(f"{number}. {fault}: not recovered after {RECOVERY_S:g} s")
            break  # no guarantee covers a second fault at the same time
    return slow


async def _do(fault: Fault, cluster: Cluster) -> None:
    """Begin a fault and hold it."""
    nodes, verb = fault.nodes, fault.verb
    if verb in KILLED:
        await _each(cluster.kill, nodes)
    if verb is Verb.KILL_TWICE:
        await _each(cluster.restart, nodes)
        await trio.sleep(fault.amount)
        await _each(cluster.kill, nodes)
    elif verb is Verb.STOP:
        await _each(cluster.stop, nodes)
    elif verb is Verb.SHIFT_CLOCK:
        for node in nodes:
            await cluster.shift_clock(node, fault.amount)
    elif verb is Verb.FLAP:
        await _flap(fault, cluster)
        return
    elif verb is Verb.HALF_OPEN:
        for node in nodes:
            cluster.half_open(node)
    elif verb in DISK_VERBS:
        for node in nodes:
            await cluster.disk(node, verb, fault.amount)
    elif verb is not Verb.KILL:
        _break_links(fault, cluster)
    await trio.sleep(fault.hold_s)


async def _undo(fault: Fault, cluster: Cluster) -> None:
    nodes, verb = fault.nodes, fault.verb
    if verb is Verb.STOP:
        await _each(cluster.cont, nodes)
    elif verb is Verb.SHIFT_CLOCK:
        for node in nodes:
            await cluster.shift_clock(node, 0.0)
    elif verb in DISK_VERBS:
        for node in nodes:
            await cluster.heal_disk(node)
    elif verb not in (Verb.KILL, Verb.KILL_TWICE):
        cluster.heal_links()
    # A node with a failed sync has ended itself, and one with a full disk may have: start the stopped ones. A half-open
    # connection is one whose other end was killed without FIN or RST.
    if verb not in LEAVES_RUNNING:
        await _each(cluster.restart, nodes)


def _break_links(fault: Fault, cluster: Cluster) -> None:
    inside = set(fault.nodes)
    for node in fault.nodes:
        for other in cluster.nodes():
            if other == node:
                continue
            if fault.verb is Verb.SLOW:
                cluster.delay(node, other, fault.amount)
                cluster.delay(other, node, fault.amount)
            elif fault.verb is Verb.PART:
                if node == fault.nodes[0] and other in inside:  # the first from each of the others
                    cluster.cut(node, other)
                    cluster.cut(other, node)
            elif other not in inside:
                if fault.verb is not Verb.DEAFEN:
                    cluster.cut(node, other)
                if fault.verb is not Verb.MUTE:
                    cluster.cut(other, node)


async def _flap(fault: Fault, cluster: Cluster) -> None:
    """Cut and heal alternately; ``amount`` is the duration of each."""
    end = trio.current_time() + fault.hold_s
    while trio.current_time() < end:
        _break_links(fault, cluster)
        await trio.sleep(fault.amount)
        cluster.heal_links()
        await trio.sleep(fault.amount)


async def _each(deed: Callable[[str], Awaitable[None]], nodes: tuple[str, ...]) -> None:
    """Do it to all nodes at once: a tier that is killed goes down together."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(deed, node)
