"""Map changes that partitions act on: shards with another owner, and edges that died."""

from typing import NamedTuple

from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.hello import TIER_EDGE

__all__ = ["MapChanges", "MapDifference"]


class MapDifference(NamedTuple):
    """Differences between a map and the one before it."""

    shards: set[int]
    edges_gone: list[tuple[str, int]]  # edge, incarnation
    edges_came: bool  # an incarnation is alive that was not before


class MapChanges:
    """The part of the map that partitions processed last."""

    def __init__(self) -> None:
        self._shards: list[ShardEntry] = []
        self._edges: dict[str, int] = {}  # live ones: their incarnations

    def follow(self, cluster_map: ClusterMap) -> MapDifference:
        """Return the differences to the previous map; the next call compares with this map."""
        shards = {
            number
            for number, shard in enumerate(cluster_map.shards)
            if number >= len(self._shards) or self._shards[number] != shard
        }
        self._shards = list(cluster_map.shards)
        edges = {entry.node: entry.incarnation for entry in cluster_map.live(TIER_EDGE)}
        gone = [(edge, incarnation) for edge, incarnation in self._edges.items() if edges.get(edge) != incarnation]
        came = any(self._edges.get(edge) != incarnation for edge, incarnation in edges.items())
        self._edges = edges
        return MapDifference(shards, gone, came)
