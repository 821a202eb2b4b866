"""Figures of a node's partitions, as its metrics show them: sessions, queues, retained messages, counts of events.

Only partitions that changed are counted anew, some sessions at a time, for a million would keep the loop: what many
sessions hold is some seconds old where a rebalance looks at it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import inf

from storage.hosting.hosted_partition import HostedPartition, PartitionCounters, PartitionPhase

__all__ = ["StorageMetrics"]

COUNTED_PER_LOOK = 50_000  # sessions
COUNTED_PER_TURN = 500  # of a microsecond or two
PARTITION_WEIGHT = 5  # of one without any, in sessions
SLICE_S = 0.04  # from one turn that counts to the next
REST_S = 4.0  # from one look to the next


class StorageMetrics:
    """Totals over the partitions of one node.

    Args:
        hosted: Those whose primary is this node.
        left: Counts of those that have left.

    Attributes:
        deadline: When a look that has begun goes on; inf without one.
        next_turn: When ``turn`` has something to do.
    """

    def __init__(self, hosted: Mapping[int, HostedPartition], left: Mapping[str, int]) -> None:
        self._hosted = hosted
        self._left = left
        self._begins = 0  # number of the partition with which the next look begins
        self.deadline = inf
        self.next_turn = -inf
        self._counting: Iterator[int] | None = None  # what is left of the look under way

    def turn(self, now: float) -> None:
        """Go on counting, if it is time, for what ``HostedPartition.size`` tells."""
        if now < self.next_turn:
            return
        self._counting = self._counting or self.count()
        left = COUNTED_PER_TURN
        for sessions in self._counting:
            left -= sessions
            if left <= 0:
                self.deadline = self.next_turn = now + SLICE_S
                return
        self._counting, self.deadline, self.next_turn = None, inf, now + REST_S

    def session_counts(self) -> dict[str, int]:
        """Return durable sessions by state."""
        online = sum(tally.online for tally in self._tallies())
        known = sum(len(hosted.partition.sessions) for hosted in self._hosted.values())
        return {"connected": online, "absent": known - online}

    def queued(self) -> int:
        """Return unconsumed entries of all sessions."""
        return sum(tally.queued for tally in self._tallies())

    def event_counts(self, of_the_node: Mapping[str, int]) -> dict[str, int]:
        """Return counts of events by name: the node's own, and those of its partitions, now and before, together."""
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
        """Count partitions that changed anew, in slices; yields the sessions of each, and what a partition costs.

        A look goes on where the one before came to its end: else the same ones would be counted each time.
        """
        numbers = sorted(number for number, hosted in self._hosted.items() if hosted.changed)
        at = bisect_left(numbers, self._begins)
        left = COUNTED_PER_LOOK
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
