"""Scope of topics and filters under $SYS: the cluster's, or one edge's own metrics.

Two branches are routed like ordinary topics: the states of bridges, and the events of the cluster. All other topics
under $SYS stay at their edge. A filter may match both kinds, as ``$SYS/#`` does.
Decision: docs/adr/0056-sys-topics-and-events.md.
"""

__all__ = ["EVENTS", "is_routed", "matches_metrics"]

EVENTS = "$SYS/cluster/events/"
ROUTED = (["$SYS", "broker", "connection"], EVENTS.split("/")[:-1])  # topics below these


def is_routed(topic_filter: str) -> bool:
    """Return whether a filter, without a share name, may match a topic that is routed between edges."""
    if not topic_filter.startswith("$SYS"):
        return True
    levels = topic_filter.split("/")
    return any(_reaches_below(levels, branch) for branch in ROUTED)


def matches_metrics(topic_filter: str) -> bool:
    """Return whether a filter may match a $SYS topic of an edge's own."""
    return topic_filter.startswith("$SYS") and topic_filter.split("/")[:3] not in ROUTED


def _reaches_below(levels: list[str], branch: list[str]) -> bool:
    for position, name in enumerate(branch):
        if position == len(levels):
            return False
        if levels[position] == "#":
            return True
        if levels[position] not in ("+", name):
            return False
    return len(levels) > len(branch)
