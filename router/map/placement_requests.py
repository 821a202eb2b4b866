"""Placement requests of storage nodes in one iteration, joined into as few commands as possible.

A death concerns every partition with a copy there. A command for each would cost one commit each, and every node would
scan its partitions for each of them. Sans-IO.
"""

from router.map.command_bounds import out_of_range
from router.map.commands import PlacePartitions
from router.placement.changes import placement_change
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.nodes import RequestChange

__all__ = ["PlacementRequests"]

CHANGES_MAX = 1_024  # placements of one command: fits a log entry with the longest names

Requesters = tuple[tuple[str, RequestChange], ...]  # node, its request


class PlacementRequests:
    """The first request for each partition in this iteration; nodes repeat the others."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[PartitionEntry, str, RequestChange]] = {}  # partition -> entry, node, request

    def add(self, cluster_map: ClusterMap, node: str, message: RequestChange) -> str | None:
        """Queue a request; return its refusal, None if it was queued."""
        entry, refusal = placement_change(cluster_map, node, message)
        if entry is not None:
            refusal = out_of_range(PlacePartitions({message.partition: entry}), cluster_map)
        if entry is None or refusal:
            return refusal
        self._requests.setdefault(message.partition, (entry, node, message))
        return None

    def take(self) -> list[tuple[PlacePartitions, Requesters]]:
        """Remove the queued requests; return their commands, each with the nodes to answer."""
        if not self._requests:
            return []
        requests, self._requests = list(self._requests.items()), {}
        commands = []
        for at in range(0, len(requests), CHANGES_MAX):
            some = requests[at : at + CHANGES_MAX]
            entries = {partition: entry for partition, (entry, _, _) in some}
            requesters = tuple((node, request) for _, (_, node, request) in some)
            commands.append((PlacePartitions(entries, each=True), requesters))
        return commands

    def clear(self) -> None:
        """Drop all requests when leadership ends: the nodes repeat them at the next leader."""
        self._requests = {}
