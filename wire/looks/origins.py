"""Origins of messages as operators read and write them: ``edge-1/1795358845149/4711``, ``session/252-17/9``."""

from wire.messages.batches import OriginKind
from wire.messages.cluster_map import ClusterMap

__all__ = ["origin_text"]

COUNTER = (1 << 48) - 1  # of a session number, below its partition


def origin_text(kind: int, a: int, b: int, cluster_map: ClusterMap) -> str:
    """Return the origin of a message; of an edge by its name where the map has that incarnation."""
    if kind == OriginKind.EDGE:
        name = next((name for name, entry in cluster_map.nodes.items() if entry.incarnation == a), "edge")
        return f"{name}/{a}/{b}"
    if kind == OriginKind.SESSION:
        return f"session/{a >> 48}-{a & COUNTER}/{b}"
    return f"will/{a}/{b}"
