"""Figures of a node's partitions, as its metrics show them: sessions, queues, retained messages, counts of events.

Only partitions that changed are counted anew, up to a number of sessions in one look: a million would keep the loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from storage.hosting.hosted_partition import HostedPartition, Tally

__all__ = ["Figures"]

COUNTED_PER_LOOK = 50_000  # sessions


class Figures:
    """Totals over the partitions of one node.

    Args:
        hosted: Those whose primary is this node.
        left: Counts of those that have left.
    """

    def __init__(self, hosted: Mapping[int, HostedPartition], left: Mapping[str, int]) -> None:
        self._hosted = hosted
        self._left = left
        self._begins = 0  # number of the partition with which the next look begins

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
            for what, amount in hosted.partition.counts.items():
                counts[what] = counts.get(what, 0) + amount
        return counts

    def count(self) -> Iterator[int]:
        """Count partitions that changed anew, in slices; yields the sessions of each.

        A look goes on where the one before came to its end: else the same ones would be counted each time.
        """
        numbers = sorted(number for number, hosted in self._hosted.items() if hosted.changed)
        at = bisect_left(numbers, self._begins)
        left = COUNTED_PER_LOOK
        for number in numbers[at:] + numbers[:at]:
            hosted = self._hosted.get(number)
            if hosted is None:  # it has left meanwhile
                continue
            if left <= 0:
                self._begins = number
                return
            left -= len(hosted.partition.sessions)
            yield from hosted.count()

    def _tallies(self) -> list[Tally]:
        for _ in self.count():
            pass
        return [hosted.tally for hosted in self._hosted.values()]
