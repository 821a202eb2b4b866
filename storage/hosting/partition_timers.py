"""Timers of idle partitions: which are due, and the time of the next one.

Timers use a partition's served clock, which may have stopped: a time here may be too early, and is then set again. The
served clock itself is saved periodically.
"""

from collections.abc import Iterable

from storage.hosting.deadlines import Deadlines
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions

__all__ = ["SWEEP_S", "PartitionTimers"]

SWEEP_S = 0.02  # interval of checks for due partitions: the maximum delay of timers
DUE_PER_ITERATION = 500  # of due partitions; the others follow in the next checks


class PartitionTimers:
    """The times at which each partition of a node has timers due."""

    def __init__(self, iteration: Iteration, partitions: Partitions) -> None:
        self._iteration = iteration
        self._partitions = partitions
        self._due = Deadlines()

    @property
    def next(self) -> float:
        """The earliest time; infinity while there is none."""
        return self._due.next

    def run_due(self) -> None:
        """Run the timers that are due, and save clocks, of some partitions."""
        for number in self._due.take(self._iteration.now, DUE_PER_ITERATION):
            hosted = self._partitions.hosted.get(number)
            if hosted is not None and hosted.serving:
                self._run(number, hosted)

    def _run(self, number: int, hosted: HostedPartition) -> None:
        """Run a partition's timers, or save its served clock; neither is due if the clock was stopped."""
        self._partitions.tick(hosted)
        if hosted.partition.next_due_s() == 0.0:
            hosted.run_timers()
            self._partitions.touch(number, hosted)
        elif hosted.partition.clock_due:
            self._partitions.touch(number, hosted, changed=False)
        else:
            self._note(number, hosted)

    def note(self, numbers: Iterable[int]) -> None:
        """Set the next deadline of each of these partitions that serves."""
        for number in numbers:
            hosted = self._partitions.hosted.get(number)
            if hosted is not None and hosted.serving:
                self._note(number, hosted)

    def _note(self, number: int, hosted: HostedPartition) -> None:
        when = hosted.partition.clock_deadline
        if when == float("inf"):
            return  # no timer either
        now, due_s = self._iteration.now, hosted.partition.next_due_s()
        if due_s is not None:
            when = min(when, now + due_s)
        self._due.set(number, max(when, now + SWEEP_S) if when <= now else when)
