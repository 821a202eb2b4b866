"""Offsets of a consumer group: what may be committed is the first record that is not finished, never the highest.

Records of a partition are finished in any order; a commit says that all below it are. Pure logic; one thread reads
records, another one finishes them, and the caller has the lock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

__all__ = ["Offsets", "Partition"]

Partition = tuple[str, int]  # topic and number


@dataclass(slots=True)
class _Open:
    """One assigned partition."""

    unfinished: set[int] = field(default_factory=set)
    lowest: list[int] = field(default_factory=list)  # a heap of those, and of finished ones behind the first
    next: int = -1  # behind the highest that was read; -1: none was
    committed: int = -1


class Offsets:
    """Assigned partitions and their unfinished records."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, _Open] = {}
        self.finished_since = 0  # since the last ``to_commit``

    def assign(self, partition: Partition) -> None:
        """Begin with a partition."""
        self._partitions[partition] = _Open()

    def is_assigned(self, partition: Partition) -> bool:
        """Return whether a partition was begun with and not ended."""
        return partition in self._partitions

    def read(self, partition: Partition, offset: int) -> None:
        """Note a record of an assigned partition that is not finished."""
        found = self._partitions[partition]
        found.unfinished.add(offset)
        heapq.heappush(found.lowest, offset)
        found.next = max(found.next, offset + 1)

    def finish(self, partition: Partition, offset: int) -> None:
        """Note that a record was taken; one of a partition that is assigned no more means nothing."""
        found = self._partitions.get(partition)
        if found is not None and offset in found.unfinished:
            found.unfinished.discard(offset)
            self.finished_since += 1

    def open_records(self, partition: Partition) -> int:
        """Return how many records of a partition are not finished."""
        found = self._partitions.get(partition)
        return len(found.unfinished) if found is not None else 0

    def to_commit(self) -> dict[Partition, int]:
        """Return the offset of each partition that moved: the first unfinished record, or behind the last.

        It is returned again until ``committed`` says that the group has it.
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
        """Note what the group has."""
        for partition, offset in offsets.items():
            if partition in self._partitions:
                self._partitions[partition].committed = offset

    def revoke(self, partition: Partition) -> None:
        """End with a partition: another consumer reads what is not committed."""
        self._partitions.pop(partition, None)
