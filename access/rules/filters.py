"""Topic filters as levels: whether one contains another, whether two overlap, and a tree of many.

Linear in the levels, without search. Unions of filters are never combined: ``+/a`` and ``+/b`` together contain neither
``+/#`` nor any filter that matches both. ``mqtt/topic_trie.py`` matches topic names. Source: MQTT 5.0 section 4.7.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["LEVELS_MAX", "FilterTree", "covers", "overlaps"]

LEVELS_MAX = 128  # of a rule: the maximum that a listener may permit

Value = TypeVar("Value")


def covers(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Return whether ``outer`` matches every topic name that ``inner`` matches.

    Args:
        outer: Levels of a valid filter.
        inner: Levels of another.
    """
    if inner[0][:1] == "$" and outer[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    length = len(inner)
    for position, level in enumerate(outer):
        if level == "#":
            return True  # including the parent level (section 4.7.1.2)
        if position == length:
            return False
        given = inner[position]
        if given == "#":
            # Each topic name has a first level, so "+/#" contains "#" as well.
            return position == 0 and level == "+" and len(outer) == 2 and outer[1] == "#"
        if level not in ("+", given):
            return False
    return len(outer) == length


def overlaps(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a topic name exists that both filters match.

    Args:
        one: Levels of a valid filter.
        other: Levels of another.
    """
    if (one[0][:1] == "$" and other[0] in ("+", "#")) or (other[0][:1] == "$" and one[0] in ("+", "#")):
        return False  # [MQTT-4.7.2-1]
    for position, level in enumerate(one):
        if level == "#":
            return True
        if position == len(other):
            return False
        given = other[position]
        if given == "#":
            return True
        if level != given and level != "+" and given != "+":
            return False
    return len(one) == len(other) or (len(other) == len(one) + 1 and other[-1] == "#")


class _Node(Generic[Value]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Value]] = {}
        self.here: list[Value] = []  # of filters that end at this level
        self.below: list[Value] = []  # of filters that end with "#" below this level


class FilterTree(Generic[Value]):
    """Values under filters, found by an overlapping filter."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()

    def add(self, levels: Sequence[str], value: Value) -> None:
        """Store a value under a filter, in addition to others."""
        node = self._root
        for level in levels:
            if level == "#":
                node.below.append(value)
                return
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.here.append(value)

    def overlapping(self, levels: Sequence[str]) -> Iterator[Value]:
        """Yield the values of all filters that overlap a filter, each once, in no order.

        A caller that needs one value stops at the first. A node is visited at most once.
        """
        depth = len(levels)
        reserved = levels[0][:1] == "$"
        ahead = [(self._root, 0)]
        while ahead:
            node, position = ahead.pop()
            first = node is self._root
            if not (first and reserved):  # "#" matches no topic that begins with $ [MQTT-4.7.2-1]
                yield from node.below
            if position >= depth or levels[position] == "#":
                yield from node.here
                if position >= depth:
                    continue
                ahead += _below(node, first, depth - 1)
            elif levels[position] == "+":
                ahead += _below(node, first, position + 1)
            else:
                child = node.children.get(levels[position])
                if child is not None:
                    ahead.append((child, position + 1))
                child = node.children.get("+")
                if child is not None and not (first and reserved):
                    ahead.append((child, position + 1))


def _below(node: _Node[Value], first: bool, position: int) -> list[tuple[_Node[Value], int]]:
    """Return the children that a wildcard matches, each with the next position."""
    return [(child, position) for level, child in node.children.items() if not (first and level[:1] == "$")]
