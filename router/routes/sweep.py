"""Incremental search for cached topics that new or removed filters match, so that no search blocks the router.

First the cached topics: each match is removed from the table and added to one invalidation. Then the topics that other
invalidations are removing: a request that waits for this search waits for them too. This order misses no topic: one
that another invalidation removes meanwhile was either found before or is found leaving.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from mqtt.topic_index import TopicIndex
from mqtt.topic_trie import TopicTrie
from router.routes.cached_topics import CachedTopics, Invalidation

__all__ = ["FilterSearch"]

FEW_FILTERS = 8  # searched one by one; more are matched by a trie in one scan of all topics

Waiter = TypeVar("Waiter")


class FilterSearch(Generic[Waiter]):
    """One search.

    Attributes:
        item: The growing invalidation; its edges are set when it is sent.
        holders: Edges that cache one of its topics.
        meets: Other matching invalidations, by id.
    """

    def __init__(
        self,
        cached: CachedTopics,
        item: Invalidation[Waiter],
        asked: Sequence[str],
        waiter: Waiter | None,
        request: tuple[str, int] | None,
    ) -> None:
        """Start the search.

        Args:
            cached: The tables.
            item: Its filters select the topics to remove.
            asked: Filters whose leaving topics the waiter waits for.
            waiter: Waits for all found invalidations.
            request: Peer and number of the request, None without one.
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
        self._built = 0  # filters in the trie so far

    def step(self, visits: int) -> int:
        """Visit some topics; return their number."""
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
            found, visited = self._page(index, visits - done)
            done += visited
            for topic in found:
                self._add_found(topic)
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

    def _add_found(self, topic: str) -> None:
        if not self._leaving:
            self.holders |= self._cached.edges_of(self._cached.take_one(topic))
            self._cached.add_leaving(self.item, topic)
            return
        for item in self._cached.leaving_topics.get(topic) or ():
            if item is not self.item:
                self.meets[id(item)] = item
