"""Placements that storage nodes asked the leader for in one turn, joined into as few commands as fit.

A death concerns every partition that had a copy there. A command for each would cost a commit each, and every node a
walk over its partitions for each of them. Sans-IO.
"""

from router.map.command_bounds import out_of_range
from router.map.commands import PlacePartitions
from router.placement.changes import placement_change
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.nodes import RequestChange

__all__ = ["PlacementRequests"]

CHANGES_MAX = 1_024  # placements of one command: it fits a log entry, whatever their names

Askers = tuple[tuple[str, RequestChange], ...]  # node, its request


class PlacementRequests:
    """The requests of this turn, one for each partition: the first; the others are repeated by their nodes."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[PartitionEntry, str, RequestChange]] = {}  # partition -> entry, node, request

    def add(self, cluster_map: ClusterMap, node: str, message: RequestChange) -> str | None:
        """Take a request; return why it is refused, None if it is not."""
        entry, refusal = placement_change(cluster_map, node, message)
        if entry is not None:
            refusal = out_of_range(PlacePartitions({message.partition: entry}), cluster_map)
        if entry is None or refusal:
            return refusal
        self._requests.setdefault(message.partition, (entry, node, message))
        return None

    def take(self) -> list[tuple[PlacePartitions, Askers]]:
        """Return the commands for what was asked, each with the nodes to answer, and begin anew."""
        if not self._requests:
            return []
        requests, self._requests = list(self._requests.items()), {}
        commands = []
        for at in range(0, len(requests), CHANGES_MAX):
            some = requests[at : at + CHANGES_MAX]
            entries = {partition: entry for partition, (entry, _, _) in some}
            askers = tuple((node, request) for _, (_, node, request) in some)
            commands.append((PlacePartitions(entries, each=True), askers))
        return commands

    def clear(self) -> None:
        """Forget all, because this router leads no more: the nodes ask the next leader."""
        self._requests = {}
