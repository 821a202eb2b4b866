"""Offsets of a consumer group: only offsets up to the first unfinished record may be committed.

Records of a partition finish in any order; a commit covers all earlier records. Pure logic. One thread reads records,
another one finishes them, and the caller holds the lock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

__all__ = ["Offsets", "Partition"]

Partition = tuple[str, int]  # topic and number


@dataclass(slots=True)
class _PartitionState:
    """One assigned partition."""

    unfinished: set[int] = field(default_factory=set)
    # a heap of unfinished offsets; may hold finished ones after the first
    lowest: list[int] = field(default_factory=list)
    next: int = -1  # after the highest offset read; -1: none
    committed: int = -1


class Offsets:
    """Assigned partitions and their unfinished records."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, _PartitionState] = {}
        self.finished_since = 0  # since the last ``to_commit``

    def assign(self, partition: Partition) -> None:
        """Add a partition."""
        self._partitions[partition] = _PartitionState()

    def is_assigned(self, partition: Partition) -> bool:
        """Return whether a partition is assigned."""
        return partition in self._partitions

    def read(self, partition: Partition, offset: int) -> None:
        """Record an unfinished record of an assigned partition."""
        found = self._partitions[partition]
        found.unfinished.add(offset)
        heapq.heappush(found.lowest, offset)
        found.next = max(found.next, offset + 1)

    def finish(self, partition: Partition, offset: int) -> None:
        """Record a finished record; no effect if its partition is no longer assigned."""
        found = self._partitions.get(partition)
        if found is not None and offset in found.unfinished:
            found.unfinished.discard(offset)
            self.finished_since += 1

    def open_records(self, partition: Partition) -> int:
        """Return the number of unfinished records of a partition."""
        found = self._partitions.get(partition)
        return len(found.unfinished) if found is not None else 0

    def to_commit(self) -> dict[Partition, int]:
        """Return the new offset of each partition: the first unfinished record, or after the last.

        It is returned again until ``committed`` confirms it.
        """
        self.finished_since = 0
        moved = {}
        for partition, found in self._partitions.items():
            while found.lowest and found.lowest[0] not in found.unfinished:
                heapq.heappop(found.lowest)
            offset = found.lowest[0] if found.lowest else found.next
            if offset > max(0, found.committed):
                moved[partition] = offset
        return moved

    def committed(self, offsets: dict[Partition, int]) -> None:
        """Record the committed offsets."""
        for partition, offset in offsets.items():
            if partition in self._partitions:
                self._partitions[partition].committed = offset

    def revoke(self, partition: Partition) -> None:
        """Remove a partition: another consumer reads its uncommitted records."""
        self._partitions.pop(partition, None)
