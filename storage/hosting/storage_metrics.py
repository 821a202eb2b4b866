"""Statistics of a node's partitions for its metrics: sessions, queues, retained messages, event counts.

Only changed partitions are counted again, in slices, because a million sessions would block the loop. So the sizes of
large partitions are some seconds old when a rebalance reads them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import inf

from storage.hosting.hosted_partition import HostedPartition, PartitionCounters, PartitionPhase

__all__ = ["StorageMetrics"]

COUNTED_PER_PASS = 50_000  # sessions
COUNTED_PER_ITERATION = 500  # of a microsecond or two
PARTITION_WEIGHT = 5  # of one without any, in sessions
SLICE_S = 0.04  # interval of iterations that count
REST_S = 4.0  # pause between two passes


class StorageMetrics:
    """Totals over the partitions of one node.

    Args:
        hosted: The partitions with this node as primary.
        left: Counts of partitions that have left.

    Attributes:
        deadline: When a pass in progress continues; inf without one.
        next_count: When ``count_some`` has work.
    """

    def __init__(self, hosted: Mapping[int, HostedPartition], left: Mapping[str, int]) -> None:
        self._hosted = hosted
        self._left = left
        self._begins = 0  # number of the first partition of the next pass
        self.deadline = inf
        self.next_count = -inf
        self._counting: Iterator[int] | None = None  # the rest of the pass in progress

    def count_some(self, now: float) -> None:
        """Continue counting, if it is due, for ``HostedPartition.size``."""
        if now < self.next_count:
            return
        self._counting = self._counting or self.count()
        left = COUNTED_PER_ITERATION
        for sessions in self._counting:
            left -= sessions
            if left <= 0:
                self.deadline = self.next_count = now + SLICE_S
                return
        self._counting, self.deadline, self.next_count = None, inf, now + REST_S

    def session_counts(self) -> dict[str, int]:
        """Return durable sessions by state."""
        online = sum(tally.online for tally in self._tallies())
        known = sum(len(hosted.partition.sessions) for hosted in self._hosted.values())
        return {"connected": online, "absent": known - online}

    def queued(self) -> int:
        """Return unconsumed entries of all sessions."""
        return sum(tally.queued for tally in self._tallies())

    def event_counts(self, of_the_node: Mapping[str, int]) -> dict[str, int]:
        """Return event counts by name: of the node, its partitions and those that left, together."""
        counts = dict(of_the_node)
        for what, amount in self._left.items():
            counts[what] = counts.get(what, 0) + amount
        for hosted in self._hosted.values():
            own = hosted.partition.counts
            if own:
                for what, amount in own.items():
                    counts[what] = counts.get(what, 0) + amount
        return counts

    def count(self) -> Iterator[int]:
        """Count changed partitions again, in slices; yields the sessions of each, and the cost of a partition.

        A pass begins at the end of the previous one: else the same partitions would be counted each time.
        """
        numbers = sorted(number for number, hosted in self._hosted.items() if hosted.changed)
        at = bisect_left(numbers, self._begins)
        left = COUNTED_PER_PASS
        for number in numbers[at:] + numbers[:at]:
            hosted = self._hosted.get(number)
            if (
                hosted is None or hosted.phase is PartitionPhase.LOADING
            ):  # it has left, or counts itself when it is read
                continue
            if left <= 0:
                self._begins = number
                return
            left -= len(hosted.partition.sessions)
            yield from hosted.count()
            yield PARTITION_WEIGHT

    def _tallies(self) -> list[PartitionCounters]:
        for _ in self.count():
            pass
        return [hosted.tally for hosted in self._hosted.values()]
