"""Filters whose cached answers are void, until every cached topic was checked against them.

An order to drop answers is in force as soon as its filters are here: a topic is checked when it is next used. So an
order costs what its filters cost, not what is cached. Meanwhile a sweep checks the topics that nobody uses, and then
the filters are forgotten. Decision: docs/adr/0023-work-in-slices.md.
"""

from mqtt.topic_trie import TopicTrie

__all__ = ["Invalidations"]

FILTERS_MAX = 10_000  # beyond it everything older is void, at once, of topics with so many levels as the filters have
VISITS_MAX = 1_000  # likewise: that a match may touch
LEVELS_MAX = 1_024  # of topics, by the settings; deeper ones count as these


class _Filters:
    """Filters, and how many levels the topics have that they could match."""

    def __init__(self) -> None:
        self.trie = TopicTrie()
        self.levels: set[int] = set()
        self.levels_from = LEVELS_MAX + 1  # of filters that end in #, which match from here on

    def note(self, topic_filter: str, number: int) -> None:
        """Add a filter."""
        self.trie.add(topic_filter, 0, number)
        levels = min(topic_filter.count("/") + 1, LEVELS_MAX)
        if topic_filter.endswith("#"):
            self.levels_from = min(self.levels_from, levels - 1)
        else:
            self.levels.add(levels)


class Invalidations:
    """Numbered orders, and the filters of the newer ones.

    Filters that are too many, or too expensive to match, void all topics with as many levels as they have. So whoever
    makes filters that hurt, which takes ten levels, has no answers asked again for the short topics of others.

    Attributes:
        done: Number of the newest order that is complete.
    """

    def __init__(self) -> None:
        self.done = 0
        self.is_open = False  # an order is being taken
        self._floors = [0] * (LEVELS_MAX + 1)  # by levels of a topic: answers taken at an older number are void
        self._number = 0  # of that order's filters
        self._new = _Filters()
        self._old = _Filters()  # what the sweep under way checks

    def begin(self) -> None:
        """Begin to take an order; the former one has ended."""
        self._number = self.done + 1
        self.is_open = True

    def add(self, topic_filter: str) -> None:
        """Void what a filter matches, from ``complete`` on."""
        self._new.note(topic_filter, self._number)

    def complete(self) -> int:
        """Put the order's filters in force for every topic that is used from here on; return its number."""
        number = self.done = self._number
        new = self._new.trie
        if len(new) + len(self._old.trie) > FILTERS_MAX or new.visits() > VISITS_MAX:
            self._void(self._new.levels | self._old.levels, min(self._new.levels_from, self._old.levels_from))
        return number

    def end(self) -> None:
        """Nothing is asked about this order any more."""
        self.is_open = False

    def void_all(self) -> None:
        """Void every answer taken so far, and every one asked for so far."""
        self._void(set(), 0)

    def _void(self, levels: set[int], levels_from: int) -> None:
        """Void the answers of topics with so many levels, or with this number and more; forget all filters."""
        self.done += 1
        for count in levels:
            self._floors[count] = self.done
        self._floors[levels_from:] = [self.done] * len(self._floors[levels_from:])
        self._number = self.done + 1  # of the filters still to come, if an order is being taken
        self._new = _Filters()
        self._old = _Filters()

    def _floor(self, topic: str) -> int:
        return self._floors[min(topic.count("/") + 1, LEVELS_MAX)]

    def is_matched(self, topic: str, number: int) -> bool:
        """Whether an order matches a topic; asked before its ``end``."""
        return self._floor(topic) >= number or self._newest(topic) >= number

    def is_void(self, topic: str, number: int) -> bool:
        """Whether an answer for a topic, taken when ``number`` was done, is void."""
        return number < self.done and (number < self._floor(topic) or self._newest(topic) > number)

    def _newest(self, topic: str) -> int:
        """Return the number of the newest order that matches a topic, 0 for none that is known here."""
        found = self._new.trie.match(topic) if len(self._new.trie) else []
        if len(self._old.trie):
            found += self._old.trie.match(topic)
        return max(found, default=0)

    # --- the sweep

    @property
    def waits(self) -> bool:
        """Whether there are filters that a sweep would get rid of."""
        return bool(len(self._new.trie) or len(self._old.trie))

    def sweep_begins(self) -> int:
        """Note that every answer is about to be checked; return the number that each must be checked against.

        Not while an order is open: filters of an order that is not in force yet are not checked.
        """
        self._old, self._new = self._new, self._old
        return self.done

    def sweep_ended(self) -> None:
        """Every answer was checked, or taken, at the number that ``sweep_begins`` returned or later."""
        self._old = _Filters()
