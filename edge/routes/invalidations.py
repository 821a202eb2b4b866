"""Filters whose cached answers are void, until every cached topic was checked against them.

An order to drop answers is in force as soon as its filters are here: a topic is checked when it is next used. So an
order costs what its filters cost, not what is cached. Meanwhile a sweep checks the topics that nobody uses, and then
the filters are forgotten. Decision: docs/adr/0023-work-in-slices.md.
"""

from mqtt.topic_trie import TopicTrie

__all__ = ["Invalidations"]

FILTERS_MAX = 10_000  # beyond it everything older is void, at once
VISITS_MAX = 1_000  # likewise: that a match may touch


class Invalidations:
    """Numbered orders, and the filters of the newer ones.

    Attributes:
        done: Number of the newest order that is complete.
        floor: Answers taken at an older number are void, whatever their topic.
    """

    def __init__(self) -> None:
        self.done = 0
        self.floor = 0
        self.is_open = False  # an order is being taken
        self._number = 0  # of that order's filters
        self._new = TopicTrie()
        self._old = TopicTrie()  # what the sweep under way checks

    def begin(self) -> None:
        """Begin to take an order; the former one has ended."""
        self._number = self.done + 1
        self.is_open = True

    def add(self, topic_filter: str) -> None:
        """Void what a filter matches, from ``complete`` on."""
        self._new.add(topic_filter, 0, self._number)

    def complete(self) -> int:
        """Put the order's filters in force for every topic that is used from here on; return its number."""
        number = self.done = self._number
        if len(self._new) + len(self._old) > FILTERS_MAX or self._new.visits() > VISITS_MAX:
            self.void_all()
        return number

    def end(self) -> None:
        """Nothing is asked about this order any more."""
        self.is_open = False

    def void_all(self) -> None:
        """Void every answer taken so far, and every one asked for so far."""
        self.done += 1
        self.floor = self.done
        self._number = self.done + 1  # of the filters still to come, if an order is being taken
        self._new = TopicTrie()
        self._old = TopicTrie()

    def is_matched(self, topic: str, number: int) -> bool:
        """Whether an order matches a topic; asked before its ``end``."""
        return self.floor >= number or self._newest(topic) >= number

    def is_void(self, topic: str, number: int) -> bool:
        """Whether an answer for a topic, taken when ``number`` was done, is void."""
        return number < self.floor or (number < self.done and self._newest(topic) > number)

    def _newest(self, topic: str) -> int:
        """Return the number of the newest order that matches a topic, 0 for none that is known here."""
        found = self._new.match(topic) if len(self._new) else []
        if len(self._old):
            found += self._old.match(topic)
        return max(found, default=0)

    # --- the sweep

    @property
    def waits(self) -> bool:
        """Whether there are filters that a sweep would get rid of."""
        return bool(len(self._new) or len(self._old))

    def sweep_begins(self) -> int:
        """Note that every answer is about to be checked; return the number that each must be checked against.

        Not while an order is open: filters of an order that is not in force yet are not checked.
        """
        self._old, self._new = self._new, self._old
        return self.done

    def sweep_ended(self) -> None:
        """Every answer was checked, or taken, at the number that ``sweep_begins`` returned or later."""
        self._old = TopicTrie()
