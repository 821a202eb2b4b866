"""Subtrees of topics: membership of topics and filters, and restriction of filters.

A subtree is named by its topmost topic, which belongs to it; "" is all topics. Topics that begin with $ belong to no
subtree: they are reserved for brokers.
"""

from access.rules.filters import overlaps

__all__ = ["is_inside", "is_within", "restrict", "touches"]


def is_within(topic: str, subtree: str) -> bool:
    """Return whether a topic name, or the name of another subtree, lies in a subtree."""
    return not subtree or topic == subtree or topic.startswith(subtree + "/")


def is_inside(topic_filter: str, subtree: str) -> bool:
    """Return whether each topic that a filter matches lies in a subtree."""
    if not subtree:
        return True
    given, wanted = topic_filter.split("/"), subtree.split("/")
    return given[: len(wanted)] == wanted or given == [*wanted, "#"]


def touches(topic_filter: str, subtree: str) -> bool:
    """Return whether a filter matches a topic of a subtree."""
    return not subtree or overlaps(topic_filter.split("/"), [*subtree.split("/"), "#"])


def restrict(topic_filter: str, subtree: str) -> str:
    """Return the part of a filter that matches within a subtree that it touches."""
    if not subtree:
        return topic_filter
    given, wanted = topic_filter.split("/"), subtree.split("/")
    rest = given[len(wanted) :]
    if not rest and given[-1] == "#":
        rest = ["#"]
    return "/".join([*wanted, *rest])
