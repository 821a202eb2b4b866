"""The copies of partitions at a running node for operators' commands: their list and their progress.

Reads ``Placements`` without changes, so that an export needs no core.
"""

from collections.abc import Callable, Iterable

from storage.hosting.placements import Placements
from storage.state.rows import MetaRow
from wire.messages.cluster_map import ClusterMap

__all__ = ["LiveCopies"]

NO_LIMIT = 1 << 62  # a backup applies only committed operations


class LiveCopies:
    """The copies of one node, which change meanwhile.

    Args:
        node: The node's name.
        placements: Its primaries and backups.
        cluster_map: Returns the map that this node has applied.
        served_ms: Returns the current served clock of a partition with this node as primary.
    """

    def __init__(
        self,
        node: str,
        placements: Placements,
        cluster_map: Callable[[], ClusterMap],
        served_ms: Callable[[int], int],
    ) -> None:
        self.node = node
        self._placements = placements
        self._map = cluster_map
        self._served_ms = served_ms

    def served(self) -> list[int]:
        """Return the partitions with this node as primary, ascending."""
        return sorted(self._placements.hosted)

    def in_sync(self) -> list[int]:
        """Return the partitions that the map lists as in sync at this node, ascending."""
        return [number for number, placement in enumerate(self._map().partitions) if self.node in placement.in_sync]

    def committed(self, number: int, *, was_primary: bool) -> int:
        """Return the commit index; -1 while it is unknown, or after the partition moved away.

        Args:
            was_primary: The partition was served here when its export began.
        """
        hosted = self._placements.hosted.get(number)
        if hosted is None:
            return -1 if was_primary else NO_LIMIT
        return hosted.partition.commit_index if self._placements.loaded(number) else -1

    def served_ms(self, number: int, meta: MetaRow) -> int:
        """Return the current served clock of a partition; of a backup, the value in its META row."""
        return self._served_ms(number) if number in self._placements.hosted else meta.served_ms

    def describe(self, numbers: Iterable[int]) -> dict[str, str]:
        """Return a text about the state of each of this node's copies, by number."""
        return self._placements.describe(numbers)
