"""The routes of a shard as a topic finds them, at a bounded cost whatever filters there are.

A shard holds the filters of all clients. The delivery nodes bound theirs, but many of them together may still make a
match expensive, and a refusal here would come too late: the subscription stands. So a filter that would lift the bound
stands under a *coarse* one, its first level and "#": its sender gets more than it asked for, and drops that itself.
A shared group gets what its filter matches and nothing else, so each of its coarse entries is compared.
"""

from itertools import islice

from mqtt.topic_trie import TopicTrie
from mqtt.topics import matches

__all__ = ["ROUTE_VISITS_MAX", "RouteTrie", "Sender", "Value"]

ROUTE_VISITS_MAX = 20_000  # nodes that one topic may touch: under a millisecond
REFINED_PER_REMOVAL = 16  # coarse entries that are tried again when there may be room

Sender = tuple[str, int]  # (edge name, -1) or ("", partition)
Key = Sender | tuple[str, int, str]  # the sender, with the share name of a group
Value = Sender | tuple[str, int, str, int]  # the sender, with "share name/filter" and members of a group


class RouteTrie:
    """Destinations under topic filters, without share names; a key occurs once per filter."""

    def __init__(self, visits_max: int = ROUTE_VISITS_MAX) -> None:
        self._visits_max = visits_max
        self._exact = TopicTrie()
        self._coarse = TopicTrie()
        self._coarse_keys: dict[tuple[str, Key], Value] = {}  # (filter, key) of what stands under a coarse filter
        self._held: dict[tuple[str, Key], int] = {}  # (coarse filter, key) -> filters that it stands for

    @property
    def coarse(self) -> int:
        """Entries that stand under a coarse filter."""
        return len(self._coarse_keys)

    def add(self, topic_filter: str, key: Key, value: Value) -> None:
        """Store a destination, replacing an older value."""
        if "+" not in topic_filter and "#" not in topic_filter:  # found by its name: costs a match nothing
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
        """Forget a destination."""
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
        """Make some coarse entries exact: answers that were given before reach too far, which is no harm."""
        for name in list(islice(self._coarse_keys, REFINED_PER_REMOVAL)):
            if self._exact.visits_with(name[0]) > self._visits_max:
                return
            value = self._coarse_keys.pop(name)
            self._exact.add(*name, value)
            self._remove_coarse(name, value)

    def visits(self) -> int:
        """Return how many nodes a match visits at most for the filters that are exact."""
        return self._exact.visits()

    def match(self, topic: str) -> list[Value]:
        """Return the destinations of a topic, in no order, duplicates included; of senders maybe too many."""
        found: list[Value] = self._exact.match(topic)
        if self._coarse_keys:
            for value in self._coarse.match(topic):
                if len(value) == 2 or matches(value[2].partition("/")[2], topic):
                    found.append(value)
        return found


def _coarse(topic_filter: str) -> str:
    """Return a filter that matches more; its own place in a trie costs next to nothing."""
    first, _, _ = topic_filter.partition("/")
    return "#" if first in ("+", "#") else first + "/#"
