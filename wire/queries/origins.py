"""Text form of message origins for operators: ``edge-1/1795358845149/4711``, ``session/252-17/9``."""

from wire.messages.batches import OriginKind
from wire.messages.cluster_map import ClusterMap

__all__ = ["origin_text", "parse_origin", "session_text"]

COUNTER = (1 << 48) - 1  # of a session number, below its partition


def origin_text(kind: int, a: int, b: int, cluster_map: ClusterMap) -> str:
    """Return the origin of a message as text; an edge is named if the map has its incarnation."""
    if kind == OriginKind.EDGE:
        name = next((name for name, entry in cluster_map.nodes.items() if entry.incarnation == a), "edge")
        return f"{name}/{a}/{b}"
    if kind == OriginKind.SESSION:
        return f"session/{a >> 48}-{a & COUNTER}/{b}"
    return f"will/{a}/{b}"


def parse_origin(text: str) -> tuple[int, int, int]:
    """Return kind, a and b of an origin; an edge's name is ignored.

    Raises:
        ValueError: The text is not an origin.
    """
    first, a, b = text.split("/")
    partition, dash, number = a.partition("-")
    whole = int(partition) << 48 | int(number) if dash else int(a)
    kinds = {"session": OriginKind.SESSION, "will": OriginKind.WILL}
    return kinds.get(first, OriginKind.EDGE), whole, int(b)


def session_text(number: int) -> str:
    """Return a session's number as its partition and its number within it."""
    return f"session {number >> 48}-{number & COUNTER}"
