"""The routes of a shard by topic filter, with a bounded match cost for any filters.

A shard holds the filters of all clients. The delivery nodes bound theirs, but many of them together may still make a
match expensive, and the subscriptions exist already, so a refusal is too late. A filter that would exceed the bound is
stored as a *coarse* one, its first level and "#": its sender receives surplus messages and drops them. A shared group
must receive only matching messages, so each of its coarse entries is compared.
"""

from itertools import islice

from mqtt.topic_trie import TopicTrie
from mqtt.topics import matches

__all__ = ["ROUTE_VISITS_MAX", "RouteTrie", "Sender", "Value"]

ROUTE_VISITS_MAX = 20_000  # nodes that one topic may visit: under a millisecond
REFINED_PER_REMOVAL = 16  # coarse entries that are retried when the bound may allow exact ones

Sender = tuple[str, int]  # (edge name, -1) or ("", partition)
Key = Sender | tuple[str, int, str]  # the sender, with the share name of a group
Value = Sender | tuple[str, int, str, int]  # the sender, with "share name/filter" and members of a group


class RouteTrie:
    """Destinations under topic filters, without share names; a key occurs once per filter."""

    def __init__(self, visits_max: int = ROUTE_VISITS_MAX) -> None:
        self._visits_max = visits_max
        self._exact = TopicTrie()
        self._coarse = TopicTrie()
        self._coarse_keys: dict[tuple[str, Key], Value] = {}  # (filter, key) of entries under a coarse filter
        self._held: dict[tuple[str, Key], int] = {}  # (coarse filter, key) -> number of its filters

    @property
    def coarse(self) -> int:
        """Number of entries under a coarse filter."""
        return len(self._coarse_keys)

    def add(self, topic_filter: str, key: Key, value: Value) -> None:
        """Store a destination, replacing an older value."""
        if "+" not in topic_filter and "#" not in topic_filter:  # found by name: no cost for a match
            self._exact.add(topic_filter, key, value)
            return
        name = (topic_filter, key)
        visits = self._exact.visits_with(topic_filter)
        if name not in self._coarse_keys and (visits <= self._visits_max or visits <= self.visits()):
            self._exact.add(topic_filter, key, value)
            return
        if len(value) == 4:
            self._coarse.add(_coarse(topic_filter), name, value)
        elif name not in self._coarse_keys:
            wide = (_coarse(topic_filter), key)
            self._held[wide] = self._held.get(wide, 0) + 1
            self._coarse.add(wide[0], key, value)
        self._coarse_keys[name] = value

    def remove(self, topic_filter: str, key: Key) -> None:
        """Remove a destination."""
        name = (topic_filter, key)
        value = self._coarse_keys.pop(name, None)
        if value is not None:
            self._remove_coarse(name, value)
            return
        self._exact.remove(topic_filter, key)
        if self._coarse_keys and self.visits() < self._visits_max:
            self._refine()

    def _remove_coarse(self, name: tuple[str, Key], value: Value) -> None:
        topic_filter, key = name
        if len(value) == 4:
            self._coarse.remove(_coarse(topic_filter), name)
            return
        wide = (_coarse(topic_filter), key)
        self._held[wide] -= 1
        if not self._held[wide]:
            del self._held[wide]
            self._coarse.remove(*wide)

    def _refine(self) -> None:
        """Make some coarse entries exact; answers given before reach too far, which is harmless."""
        for name in list(islice(self._coarse_keys, REFINED_PER_REMOVAL)):
            if self._exact.visits_with(name[0]) > self._visits_max:
                return
            value = self._coarse_keys.pop(name)
            self._exact.add(*name, value)
            self._remove_coarse(name, value)

    def visits(self) -> int:
        """Return the largest number of nodes that a match of the exact filters visits."""
        return self._exact.visits()

    def match(self, topic: str) -> list[Value]:
        """Return the destinations of a topic, unordered, with duplicates; of plain senders maybe too many."""
        found: list[Value] = self._exact.match(topic)
        if self._coarse_keys:
            for value in self._coarse.match(topic):
                if len(value) == 2 or matches(value[2].partition("/")[2], topic):
                    found.append(value)
        return found


def _coarse(topic_filter: str) -> str:
    """Return a wider filter, whose own cost in a trie is negligible."""
    first, _, _ = topic_filter.partition("/")
    return "#" if first in ("+", "#") else first + "/#"
