# cython: annotation_typing=False
"""Matching a topic name against many topic filters.

``TopicTrie`` finds the entries of a topic. Filters without a wildcard, the most by far, are found with one hash lookup;
only those with a wildcard are in the tree, one node per level. The owner defines the stored values (sessions, nodes,
shared subscriptions) and the meaning of overlapping filters. Source: MQTT 5.0 section 4.7.

A match never fails. Each node keeps the exact maximum of nodes that a match below it can touch. With it, an owner can
refuse a filter before it makes matching too expensive (docs/adr/0022-cost-of-filters.md).

Compiled (``mqtt/topic_trie.pxd`` types the nodes), with the same results uncompiled. Compiled indexing does not wrap
around, so indexes must not be negative.
"""

from collections.abc import Iterator
from sys import intern
from typing import Any

__all__ = ["TopicTrie"]

# Number of children above which a node counts their weights: below it, a scan is cheaper than a dict.
FEW_CHILDREN = 16


class Entries:
    """Entries under one filter: one key and value in place, or a dict of more."""

    __slots__ = ("key", "many", "value")

    def __init__(self, key: Any, value: Any) -> None:
        self.key = key
        self.value = value
        self.many: dict[Any, Any] | None = None


class Node:
    """One level of filters with a wildcard."""

    __slots__ = ("children", "heaviest", "here", "multi_level", "single_level", "visits", "weights")

    def __init__(self) -> None:
        self.visits = 1  # most nodes that a match touches from here: 1 + visits of "+" + heaviest
        self.heaviest = 0  # largest visits of a literal child
        self.weights: dict[int, int] | None = None  # visits -> number of literal children; None while few
        self.children: dict[str, Node] | None = None  # by literal level
        self.single_level: Node | None = None  # "+"
        self.here: Entries | None = None  # filters that end at this level
        self.multi_level: Entries | None = None  # filters that end with "#" below this level


class TopicTrie:
    """Entries (key, value) under topic filters; a key occurs once per filter.

    Filters must be valid and without a share name. Values of None are not allowed, because ``get`` returns None.
    """

    __slots__ = ("_concrete", "_root", "_size")

    def __init__(self) -> None:
        self._concrete: dict[str, Entries] = {}
        self._root = Node()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of entries, of all filters."""
        return self._size

    def add(self, topic_filter: str, key: Any, value: Any) -> bool:
        """Store value under filter and key, replacing an older one; return True if the filter had no entry before."""
        if "+" not in topic_filter and "#" not in topic_filter:
            entries = self._concrete.get(topic_filter)
            if entries is None:
                self._concrete[topic_filter] = Entries(key, value)
        else:
            node = self._make_node(topic_filter)
            multi_level = topic_filter.endswith("#")
            entries = node.multi_level if multi_level else node.here
            if entries is None:
                if multi_level:
                    node.multi_level = Entries(key, value)
                else:
                    node.here = Entries(key, value)
        if entries is None:
            self._size += 1
            return True
        self._size += _put(entries, key, value)
        return False

    def remove(self, topic_filter: str, key: Any) -> bool:
        """Remove an entry; return True if that was its filter's last one."""
        if "+" not in topic_filter and "#" not in topic_filter:
            entries = self._concrete.get(topic_filter)
            if entries is None or not _holds(entries, key):
                return False
            self._size -= 1
            if not _discard(entries, key):
                return False
            del self._concrete[topic_filter]
            return True
        path = self._path(topic_filter)
        if path is None:
            return False
        node = path[len(path) - 1]
        multi_level = topic_filter.endswith("#")
        entries = node.multi_level if multi_level else node.here
        if entries is None or not _holds(entries, key):
            return False
        self._size -= 1
        if not _discard(entries, key):
            return False
        if multi_level:
            node.multi_level = None
        else:
            node.here = None
        self._prune(path, topic_filter.split("/"))
        return True

    def get(self, topic_filter: str, key: Any) -> Any:
        """Return the value stored under filter and key, or None."""
        entries = self._find(topic_filter)
        if entries is None:
            return None
        if entries.many is not None:
            return entries.many.get(key)
        return entries.value if entries.key == key else None

    def entries(self, topic_filter: str) -> list[tuple[Any, Any]]:
        """Return the (key, value) pairs of one filter."""
        entries = self._find(topic_filter)
        if entries is None:
            return []
        return [(entries.key, entries.value)] if entries.many is None else list(entries.many.items())

    def match(self, topic: str) -> list[Any]:
        """Return the values of all entries whose filter matches a topic name, in no order, duplicates included."""
        found: list[Any] = []
        entries = self._concrete.get(topic)
        if entries is not None:
            _collect(entries, found)
        node = self._root
        if node.children is None and node.single_level is None and node.multi_level is None:
            return found
        levels = topic.split("/")
        depth = len(levels)
        # Reached nodes with their depths: an explicit stack, so no topic can exhaust Python's.
        nodes: list[Node] = []
        depths: list[int] = []
        if topic[:1] == "$":  # wildcards at the first level do not match it [MQTT-4.7.2-1]
            first = None if node.children is None else node.children.get(levels[0])
            if first is None:
                return found
            nodes.append(first)
            depths.append(1)
        else:
            nodes.append(node)
            depths.append(0)
        while nodes:
            node = nodes.pop()
            position = depths.pop()
            # Walk down the literal levels; only a "+" beside them needs the stack.
            while True:
                if node.multi_level is not None:  # the parent level included (section 4.7.1.2)
                    _collect(node.multi_level, found)
                if position == depth:
                    if node.here is not None:
                        _collect(node.here, found)
                    break
                child = None if node.children is None else node.children.get(levels[position])
                position += 1
                beside = node.single_level
                if beside is not None:
                    if child is None:
                        node = beside
                        continue
                    nodes.append(beside)
                    depths.append(position)
                if child is None:
                    break
                node = child
        return found

    def visits(self) -> int:
        """Return the maximum of nodes that one match may touch, for any topic."""
        return self._root.visits

    def visits_with(self, topic_filter: str) -> int:
        """Return the value of ``visits`` after adding a filter; the trie is unchanged."""
        if "+" not in topic_filter and "#" not in topic_filter:
            return self._root.visits
        path = [self._root]
        levels = topic_filter.split("/")
        count = len(levels) - 1 if topic_filter.endswith("#") else len(levels)
        for position in range(count):
            child = _child(path[position], levels[position])
            if child is None:
                break
            path.append(child)
        at = len(path) - 1
        if at == count:
            return self._root.visits
        before = 0
        after = count - at  # the missing nodes would form a chain
        while at >= 0:
            node = path[at]
            grown = after - (before if levels[at] == "+" else node.heaviest)
            if grown <= 0:
                return self._root.visits
            before = node.visits
            after = before + grown
            at -= 1
        return after

    def filters(self) -> Iterator[str]:
        """Iterate over all filters with an entry, unordered; the trie must not change meanwhile."""
        return iter(list(self._concrete) + self._wildcard_filters())

    def _wildcard_filters(self) -> list[str]:
        filters: list[str] = []
        stack: list[tuple[Node, str]] = [(self._root, "")]
        while stack:
            node, prefix = stack.pop()
            if node.here is not None:
                filters.append(prefix[: len(prefix) - 1])
            if node.multi_level is not None:
                filters.append(prefix + "#")
            if node.single_level is not None:
                stack.append((node.single_level, prefix + "+/"))
            if node.children is not None:
                for level, child in node.children.items():
                    stack.append((child, prefix + level + "/"))
        return filters

    def _make_node(self, topic_filter: str) -> Node:
        node = self._root
        path = [node]
        old = 0  # number of existing nodes of the path; 0: all
        levels = topic_filter.split("/")
        for level in levels:
            if level == "#":
                break
            child = _child(node, level)
            if child is None:
                if not old:
                    old = len(path)
                child = Node()
                if level == "+":
                    node.single_level = child
                else:
                    if node.children is None:
                        node.children = {}
                    node.children[intern(level)] = child  # levels repeat: "temperature" should exist once
            node = child
            path.append(node)
        if old:
            self._weigh(path, levels, old)
        return node

    def _weigh(self, path: list[Node], levels: list[str], old: int) -> None:
        """Add the new nodes of a path, those after the first ``old`` ones, to the visits of all nodes above them."""
        before = 0
        for position in range(len(path) - 1, 0, -1):
            parent = path[position - 1]
            visits = parent.visits
            _changed(parent, levels[position - 1], before, path[position].visits)
            if position <= old:
                if parent.visits == visits:
                    return
                before = visits

    def _path(self, topic_filter: str) -> list[Node] | None:
        """Return the nodes from the root to that of a filter with a wildcard."""
        path = [self._root]
        for level in topic_filter.split("/"):
            if level == "#":
                break
            child = _child(path[len(path) - 1], level)
            if child is None:
                return None
            path.append(child)
        return path

    def _find(self, topic_filter: str) -> Entries | None:
        if "+" not in topic_filter and "#" not in topic_filter:
            return self._concrete.get(topic_filter)
        path = self._path(topic_filter)
        if path is None:
            return None
        node = path[len(path) - 1]
        return node.multi_level if topic_filter.endswith("#") else node.here

    def _prune(self, path: list[Node], levels: list[str]) -> None:
        """Unlink the empty nodes at the end of path, and subtract them from the visits of those above."""
        before = path[len(path) - 1].visits
        for position in range(len(path) - 1, 0, -1):
            node = path[position]
            parent = path[position - 1]
            level = levels[position - 1]
            after = node.visits
            if node.here is None and node.multi_level is None and node.single_level is None and node.children is None:
                after = 0
                if level == "+":
                    parent.single_level = None
                elif parent.children is not None:
                    del parent.children[level]
                    if not parent.children:
                        parent.children = None
            if after == before:
                return
            visits = parent.visits
            _changed(parent, level, before, after)
            before = visits


def _child(node: Node, level: str) -> Node | None:
    if level == "+":
        return node.single_level
    return None if node.children is None else node.children.get(level)


def _changed(parent: Node, level: str, before: int, after: int) -> None:
    """Update a node after the visits of its child at ``level`` changed; 0 is no child."""
    if level == "+":
        parent.visits += after - before
    else:
        _count_weights(parent, before, after)
        heaviest = parent.heaviest
        if after > heaviest:
            heaviest = after
        elif before == heaviest:
            heaviest = _heaviest(parent)
        parent.visits += heaviest - parent.heaviest
        parent.heaviest = heaviest


def _count_weights(parent: Node, before: int, after: int) -> None:
    """Update the counts of children by weight, so that the next heaviest is found without a scan."""
    children = parent.children
    weights = parent.weights
    if children is None or len(children) <= FEW_CHILDREN // 2:
        parent.weights = None
    elif weights is not None:
        if before:
            left = weights[before] - 1
            if left:
                weights[before] = left
            else:
                del weights[before]
        if after:
            weights[after] = weights.get(after, 0) + 1
    elif len(children) > FEW_CHILDREN:
        weights = parent.weights = {}
        for child in children.values():
            weights[child.visits] = weights.get(child.visits, 0) + 1


def _heaviest(parent: Node) -> int:
    if parent.weights is not None:
        if parent.heaviest in parent.weights:
            return parent.heaviest
        return max(parent.weights)
    heaviest = 0
    if parent.children is not None:
        for child in parent.children.values():
            if child.visits > heaviest:
                heaviest = child.visits
    return heaviest


def _put(entries: Entries, key: Any, value: Any) -> int:
    """Store an entry beside others; return the number of added ones, 0 or 1."""
    many = entries.many
    if many is None:
        if entries.key == key:
            entries.value = value
            return 0
        entries.many = {entries.key: entries.value, key: value}
        entries.key = entries.value = None
        return 1
    added = 0 if key in many else 1
    many[key] = value
    return added


def _holds(entries: Entries, key: Any) -> bool:
    return key in entries.many if entries.many is not None else bool(entries.key == key)


def _discard(entries: Entries, key: Any) -> bool:
    """Remove an existing key; return whether no entry is left."""
    many = entries.many
    if many is None:
        return True
    del many[key]
    if len(many) == 1:
        entries.key, entries.value = many.popitem()
        entries.many = None
    return False


def _collect(entries: Entries, found: list[Any]) -> None:
    if entries.many is None:
        found.append(entries.value)
    else:
        found.extend(entries.many.values())
