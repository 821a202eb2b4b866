"""Filters of invalidations, until every cached topic was checked against them.

An invalidation is in force as soon as its filters are stored: a topic is checked at its next use. So its cost depends
on its filters, not on the size of the cache. A sweep checks the unused topics, and then the filters are deleted.
Decision: docs/adr/0023-work-in-slices.md.
"""

from mqtt.topic_trie import TopicTrie

__all__ = ["Invalidations"]

FILTERS_MAX = 10_000  # above it all older answers are void for topics with as many levels as the filters
VISITS_MAX = 1_000  # trie nodes that a match may visit, with the same effect
LEVELS_MAX = 1_024  # maximum of topic levels in the settings; deeper topics count as this depth


class _Filters:
    """Filters, and the numbers of levels of topics that they can match."""

    def __init__(self) -> None:
        self.trie = TopicTrie()
        self.levels: set[int] = set()
        self.levels_from = LEVELS_MAX + 1  # minimum of levels for filters that end in #

    def add(self, topic_filter: str, number: int) -> None:
        self.trie.add(topic_filter, 0, number)
        levels = min(topic_filter.count("/") + 1, LEVELS_MAX)
        if topic_filter.endswith("#"):
            self.levels_from = min(self.levels_from, levels - 1)
        else:
            self.levels.add(levels)


class Invalidations:
    """Numbered invalidations, and the filters of the newer ones.

    Filters that are too many or too expensive to match void all topics with as many levels. Expensive filters need ten
    levels. So a client that registers them does not evict the shorter topics of others.

    Attributes:
        done: Number of the newest completed invalidation.
    """

    def __init__(self) -> None:
        self.done = 0
        self.is_open = False  # an invalidation is in progress
        self._floors = [0] * (LEVELS_MAX + 1)  # by levels of a topic: answers with an older number are void
        self._number = 0  # of the filters of the invalidation in progress
        self._new = _Filters()
        self._old = _Filters()  # filters that the running sweep checks

    def begin(self) -> None:
        """Start an invalidation; the former one has ended."""
        self._number = self.done + 1
        self.is_open = True

    def add(self, topic_filter: str) -> None:
        """Void all topics that a filter matches, once ``complete`` is called."""
        self._new.add(topic_filter, self._number)

    def complete(self) -> int:
        """Apply the filters to every later use of a topic; return the number of the invalidation."""
        number = self.done = self._number
        new = self._new.trie
        if len(new) + len(self._old.trie) > FILTERS_MAX or new.visits() > VISITS_MAX:
            self._void(self._new.levels | self._old.levels, min(self._new.levels_from, self._old.levels_from))
        return number

    def end(self) -> None:
        """End the invalidation; ``is_matched`` is not called for it again."""
        self.is_open = False

    def void_all(self) -> None:
        """Void every answer received or requested so far."""
        self._void(set(), 0)

    def _void(self, levels: set[int], levels_from: int) -> None:
        """Void the answers of topics with these numbers of levels, or at least ``levels_from``; delete all filters."""
        self.done += 1
        for count in levels:
            self._floors[count] = self.done
        self._floors[levels_from:] = [self.done] * len(self._floors[levels_from:])
        self._number = self.done + 1  # of the filters still to come, if an invalidation is in progress
        self._new = _Filters()
        self._old = _Filters()

    def _floor(self, topic: str) -> int:
        return self._floors[min(topic.count("/") + 1, LEVELS_MAX)]

    def is_matched(self, topic: str, number: int) -> bool:
        """Return whether an invalidation matches a topic; valid before its ``end``."""
        return self._floor(topic) >= number or self._newest(topic) >= number

    def is_void(self, topic: str, number: int) -> bool:
        """Return whether an answer for a topic is void; ``number`` was ``done`` when it was received."""
        return number < self.done and (number < self._floor(topic) or self._newest(topic) > number)

    def _newest(self, topic: str) -> int:
        """Return the number of the newest invalidation that matches a topic, 0 if there is none."""
        found = self._new.trie.match(topic) if len(self._new.trie) else []
        if len(self._old.trie):
            found += self._old.trie.match(topic)
        return max(found, default=0)

    # --- the sweep

    @property
    def has_filters(self) -> bool:
        """Whether there are filters that a sweep would delete."""
        return bool(len(self._new.trie) or len(self._old.trie))

    def begin_sweep(self) -> int:
        """Start a sweep over all answers; return the number that each must be checked against.

        Not while an invalidation is in progress, because its filters are not in force yet.
        """
        self._old, self._new = self._new, self._old
        return self.done

    def end_sweep(self) -> None:
        """End a sweep: every answer has the number that ``begin_sweep`` returned, or a later one."""
        self._old = _Filters()
