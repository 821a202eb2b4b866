"""The copies of partitions at one running node, as operators' verbs see them: which there are, and how far they are.

Reads ``Placements`` and changes nothing, so that an export needs no core.
"""

from collections.abc import Callable, Iterable

from storage.hosting.placements import Placements
from storage.state.rows import MetaRow
from wire.messages.cluster_map import ClusterMap

__all__ = ["LiveCopies"]

NO_LIMIT = 1 << 62  # a backup applies what is committed and nothing else


class LiveCopies:
    """The copies of one node, which go on meanwhile.

    Args:
        node: The node's name.
        placements: Its primaries and backups.
        cluster_map: Returns the map as this node has it now.
        served_ms: Returns the served clock, now, of a partition whose primary is this node.
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
        """Return the partitions whose primary is this node, ascending."""
        return sorted(self._placements.hosted)

    def in_sync(self) -> list[int]:
        """Return the partitions that the map calls in sync at this node, ascending."""
        return [number for number, placement in enumerate(self._map().partitions) if self.node in placement.in_sync]

    def committed(self, number: int, *, was_primary: bool) -> int:
        """Return the op_index up to which operations are committed; -1 while it is not known, or moved away.

        Args:
            was_primary: The partition was served here when the export of it began.
        """
        hosted = self._placements.hosted.get(number)
        if hosted is None:
            return -1 if was_primary else NO_LIMIT
        return hosted.partition.commit_index if self._placements.loaded(number) else -1

    def served_ms(self, number: int, meta: MetaRow) -> int:
        """Return the served clock of a partition now; of a backup, as its META row has it."""
        return self._served_ms(number) if number in self._placements.hosted else meta.served_ms

    def describe(self, numbers: Iterable[int]) -> dict[str, str]:
        """Return what this node's copies of partitions are worth, by number."""
        return self._placements.describe(numbers)
