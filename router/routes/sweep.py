"""The search for cached topics that new or removed filters match, in slices: thousands of filters stall no router.

First the topics that some edge holds: each is taken from the table and becomes part of one order to drop it. Then those
that are leaving already, by other orders: whoever waits for this search waits for them too. In this sequence nothing is
missed, because what another order takes meanwhile was either found before or is found leaving.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from mqtt.topic_index import TopicIndex
from mqtt.topic_trie import TopicTrie
from router.routes.cached_topics import CachedTopics, Invalidation

__all__ = ["FilterSearch"]

FEW_FILTERS = 8  # searched one by one, by jumps; more go through all topics once, which a trie of the filters judges

Waiter = TypeVar("Waiter")


class FilterSearch(Generic[Waiter]):
    """One search.

    Attributes:
        item: The order that grows; its edges are set when it is sent.
        holders: Edges that hold one of its topics.
        meets: Other orders under way, by id.
    """

    def __init__(
        self,
        cached: CachedTopics,
        item: Invalidation[Waiter],
        asked: Sequence[str],
        waiter: Waiter | None,
        request: tuple[str, int] | None,
    ) -> None:
        """Begin.

        Args:
            cached: The tables.
            item: Its filters are those whose topics are taken.
            asked: Filters whose leaving topics are waited for.
            waiter: Waits for all that is found.
            request: Of whom it is, None for nobody's.
        """
        self._cached = cached
        self.item = item
        self._asked = asked
        self.waiter = waiter
        self.request = request
        self.holders: set[str] = set()
        self.meets: dict[int, Invalidation[Any]] = {}
        self.ended = False
        self._leaving = False  # second part
        self._begin(item.topic_filters)

    def _begin(self, topic_filters: Sequence[str]) -> None:
        self._filters = topic_filters
        self._at = 0
        self._after: str | None = None
        self._trie: TopicTrie | None = TopicTrie() if len(topic_filters) > FEW_FILTERS else None
        self._built = 0  # filters that are in it

    def step(self, visits: int) -> int:
        """Look at some topics; return how many."""
        done = 0
        while not self.ended and done < visits:
            if self._at == len(self._filters):
                self.ended = self._leaving
                self._leaving = True
                self._begin(self._asked)
                continue
            if self._trie is not None and self._built < len(self._filters):
                done += self._build(self._trie, visits - done)
                continue
            index: TopicIndex[Any] = self._cached.leaving_topics if self._leaving else self._cached.held_topics
            found, looked = self._page(index, visits - done)
            done += looked
            for topic in found:
                self._found(topic)
        return done

    def _build(self, trie: TopicTrie, count: int) -> int:
        some = self._filters[self._built : self._built + count]
        for topic_filter in some:
            trie.add(topic_filter, True, True)
        self._built += len(some)
        return len(some)

    def _page(self, index: TopicIndex[Any], visits: int) -> tuple[list[str], int]:
        if self._trie is not None:
            topics, self._after = index.topics(self._after, visits)
            if self._after is None:
                self._at = len(self._filters)
            return [topic for topic in topics if self._trie.match(topic)], len(topics)
        pairs, self._after, _ = index.page(self._filters[self._at], after=self._after, visits_max=visits)
        if self._after is not None:
            return [topic for topic, _ in pairs], visits
        self._at += 1
        return [topic for topic, _ in pairs], len(pairs) + 1

    def _found(self, topic: str) -> None:
        if not self._leaving:
            self.holders |= self._cached.edges_of(self._cached.take_one(topic))
            self._cached.leave_one(self.item, topic)
            return
        for item in self._cached.leaving_topics.get(topic) or ():
            if item is not self.item:
                self.meets[id(item)] = item
