"""Edges that the map declared dead; a partition ends their connections in slices."""

from collections import deque
from collections.abc import Iterator

from storage.state.partition import Partition
from storage.state.timers import EndConnections

__all__ = ["DeadEdges"]

STEPS_AT_ONCE = 20  # of about ten microseconds, before other work of the partition


class DeadEdges:
    """The dead edges of one partition, in the order of their deaths."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._ends: deque[Iterator[int]] = deque()

    def add(self, end: Iterator[int]) -> None:
        """Add an edge; ``end`` ends its connections and yields the steps of each, never 0."""
        self._ends.append(end)
        self._partition.work.append(EndConnections())

    def end_some(self) -> int:
        """End some connections; return the steps that it took."""
        steps = 0
        while self._ends and steps < STEPS_AT_ONCE:
            step = next(self._ends[0], 0)
            steps += step
            if not step:
                self._ends.popleft()
                return 1 + steps
        self._partition.work.append(EndConnections())
        return steps
