"""Algebra of topic filters: overlap, hull of two filters, and disjoint hulls of many.

A hull matches at least the topics of its filters. Pure functions over valid filters that do not begin with ``$``, since
such topics are not federated; so a wildcard in the first level matches every topic.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["DisjointHulls", "hull", "overlaps"]


def overlaps(one: str, other: str) -> bool:
    """Return whether a topic can match both filters."""
    return _overlap(one.split("/"), other.split("/"))


def _overlap(one: list[str], other: list[str]) -> bool:
    for position in range(max(len(one), len(other))):
        mine = one[position] if position < len(one) else None
        theirs = other[position] if position < len(other) else None
        if mine == "#" or theirs == "#":
            return True  # the parent level matches too
        if mine is None or theirs is None:
            return False
        if mine != theirs and mine != "+" and theirs != "+":
            return False
    return True


def hull(one: str, other: str) -> str:
    """Return a filter that matches all topics of two overlapping filters."""
    mine, theirs = one.split("/"), other.split("/")
    found: list[str] = []
    for position in range(max(len(mine), len(theirs))):
        left = mine[position] if position < len(mine) else "#"
        right = theirs[position] if position < len(theirs) else "#"
        if left == "#" or right == "#":
            found.append("#")
            break
        found.append(left if left == right else "+")
    return "/".join(found)


class _Node:
    """One level of the hulls."""

    __slots__ = ("children", "is_end")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.is_end = False


class DisjointHulls:
    """A set of filters without overlaps; adding an overlapping filter widens it."""

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self.filters: set[str] = set()
        self._root = _Node()
        for each in sorted(filters):
            self.add(each)

    def add(self, topic_filter: str) -> None:
        """Add a filter, merged with overlapping ones."""
        wanted = topic_filter
        while (other := self.overlapping(wanted)) is not None:
            if other == wanted:
                return
            self._remove(other)
            wanted = hull(wanted, other)
        node = self._root
        for level in wanted.split("/"):
            node = node.children.setdefault(level, _Node())
        node.is_end = True
        self.filters.add(wanted)

    def overlapping(self, topic_filter: str) -> str | None:
        """Return one filter that overlaps another filter, None if none does."""
        found = _find(self._root, topic_filter.split("/"), 0)
        return "/".join(found) if found is not None else None

    def _remove(self, topic_filter: str) -> None:
        self.filters.discard(topic_filter)
        path = [self._root]
        levels = topic_filter.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        path[-1].is_end = False
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            child = node.children[level]
            if child.is_end or child.children:
                break
            del node.children[level]


def _find(node: _Node, wanted: list[str], position: int) -> list[str] | None:
    """Return the levels of a filter below a node that overlaps the rest of another filter."""
    if "#" in node.children:
        return ["#"]
    if position == len(wanted):
        return [] if node.is_end else None
    level = wanted[position]
    if level == "#":
        return _first_filter(node)
    for name in sorted(node.children) if level == "+" else (level, "+"):
        child = node.children.get(name)
        found = _find(child, wanted, position + 1) if child is not None else None
        if found is not None:
            return [name, *found]
    return None


def _first_filter(node: _Node) -> list[str] | None:
    if node.is_end:
        return []
    for name in sorted(node.children):
        found = _first_filter(node.children[name])
        if found is not None:
            return [name, *found]
    return None
