"""Timers of partitions that nobody asks: which are due, and when the next one is.

Timers run by a partition's served clock, which may have stood: a time that is kept here may be too early, and is then
set anew. A partition's served clock itself is saved now and then.
"""

from collections.abc import Iterable

from storage.hosting.deadlines import Deadlines
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions

__all__ = ["SWEEP_S", "PartitionTimers"]

SWEEP_S = 0.02  # between two looks at the partitions whose time has come: what timers may be late by
DUE_PER_TURN = 500  # of those: all others have their turn in the next looks


class PartitionTimers:
    """When each partition of a node has something to do of itself."""

    def __init__(self, turn: Iteration, partitions: Partitions) -> None:
        self._turn = turn
        self._partitions = partitions
        self._due = Deadlines()

    @property
    def next(self) -> float:
        """The earliest time; infinity while there is none."""
        return self._due.next

    def run_due(self) -> None:
        """Run the timers that are due, and save clocks, of some partitions."""
        for number in self._due.take(self._turn.now, DUE_PER_TURN):
            hosted = self._partitions.hosted.get(number)
            if hosted is not None and hosted.serving:
                self._run(number, hosted)

    def _run(self, number: int, hosted: HostedPartition) -> None:
        """Run a partition's timers, or save its served clock; neither is due yet where the clock has stood."""
        self._partitions.tick(hosted)
        if hosted.partition.next_due_s() == 0.0:
            hosted.run_timers()
            self._partitions.touch(number, hosted)
        elif hosted.partition.clock_due:
            self._partitions.touch(number, hosted, changed=False)
        else:
            self._note(number, hosted)

    def note(self, numbers: Iterable[int]) -> None:
        """Keep when each of these partitions has something to do next, if it serves."""
        for number in numbers:
            hosted = self._partitions.hosted.get(number)
            if hosted is not None and hosted.serving:
                self._note(number, hosted)

    def _note(self, number: int, hosted: HostedPartition) -> None:
        when = hosted.partition.clock_deadline
        if when == float("inf"):
            return  # no timer either
        now, due_s = self._turn.now, hosted.partition.next_due_s()
        if due_s is not None:
            when = min(when, now + due_s)
        self._due.set(number, max(when, now + SWEEP_S) if when <= now else when)
