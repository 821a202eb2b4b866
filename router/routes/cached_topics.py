"""Topics that edges cache answers for, at a shard's owner; and invalidations in progress.

A topic leaves the table when its invalidation is sent, and is then *leaving* until the acknowledgement. Until then an
edge may still use the old answer, so a new matching route waits for the same acknowledgement. Edges are bits of an
integer, one per incarnation, so that a topic costs one small number. Source: docs/protocol.md section 3.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from mqtt.topic_index import TopicIndex

__all__ = ["CachedTopics", "Invalidation"]

BITS_MAX = 60  # incarnations of edges before the bits of ended ones are reused

Waiter = TypeVar("Waiter")
Value = TypeVar("Value")


class Invalidation(Generic[Waiter]):
    """One order to drop cached answers, until every edge has acknowledged it."""

    __slots__ = ("edges", "is_complete", "registers", "sent", "since", "topic_filters", "topics", "waiters")

    def __init__(self, edges: set[str], topic_filters: list[str], topics: list[str], now: float) -> None:
        self.edges = edges
        self.topic_filters = topic_filters
        self.topics = topics
        self.since = now
        self.sent = now
        self.waiters: list[Waiter] = []
        self.is_complete = False  # acknowledged by all edges: no route waits for it
        self.registers = ""  # edge whose registration is complete with this acknowledgement


class CachedTopics:
    """Topics with their holders, oldest first."""

    def __init__(self) -> None:
        self._holders: TopicIndex[int] = TopicIndex()
        self._order: OrderedDict[str, float] = OrderedDict()  # topic -> time of its first holder
        self._leaving: TopicIndex[list[Invalidation]] = TopicIndex()  # type: ignore[type-arg]
        self._bits: dict[str, int] = {}  # edge -> its bit
        self._live = 0  # bits of live edges
        self._next_bit = 0

    def __len__(self) -> int:
        return len(self._order)

    def hold(self, edge: str, topics: Sequence[str], now: float) -> None:
        """Record that an edge received answers for these topics."""
        bit = self._bits.get(edge)
        if bit is None:
            bit = self._new_bit(edge)
        for topic in topics:
            holders = self._holders.get(topic)
            if holders is None:
                self._holders.add(topic, bit)
                self._order[topic] = now
            elif not holders & bit:
                self._holders.add(topic, holders | bit)

    def oldest(self, count: int, until: float) -> list[str]:
        """Return at most ``count`` topics in the order of their first holder, up to the time ``until``."""
        names: list[str] = []
        for name, since in self._order.items() if count > 0 else ():
            if len(names) == count or since > until:
                break
            names.append(name)
        return names

    def take(self, topic_filters: Sequence[str]) -> tuple[list[str], list[str]]:
        """Remove the topics that the filters match; return their live edges, and the topics."""
        holders = 0
        topics = []
        for topic_filter in topic_filters:
            for topic, bits in _matching(self._holders, topic_filter):
                holders |= bits
                topics.append(topic)
                self._holders.remove(topic)
                del self._order[topic]
        holders &= self._live
        return sorted(edge for edge, bit in self._bits.items() if bit & holders), topics

    def take_one(self, topic: str) -> int:
        """Remove one topic; return the bits of its holders, for ``edges_of``."""
        holders = self._holders.get(topic) or 0
        self._holders.remove(topic)
        del self._order[topic]
        return holders & self._live

    def edges_of(self, holders: int) -> set[str]:
        """Return the live edges of some bits, which are valid in this iteration only."""
        return {edge for edge, bit in self._bits.items() if bit & holders}

    def live_edges(self) -> set[str]:
        """Return the edges that received answers in their current incarnation."""
        return set(self._bits)

    def is_large(self, visits: int) -> bool:
        """Whether a scan of all topics costs more than so many visits."""
        return len(self._holders) + len(self._leaving) > visits

    def add_leaving(self, item: "Invalidation[Waiter]", topic: str) -> None:
        """Add a topic to an invalidation."""
        item.topics.append(topic)
        known = self._leaving.get(topic)
        if known is None:
            self._leaving.add(topic, [item])
        else:
            known.append(item)

    def mark_leaving(self, item: "Invalidation[Waiter]") -> None:
        """Mark the topics of an invalidation as leaving."""
        for topic in item.topics:
            known = self._leaving.get(topic)
            if known is None:
                self._leaving.add(topic, [item])
            else:
                known.append(item)

    def remove_leaving(self, item: "Invalidation[Waiter]", count: int) -> int:
        """Remove up to ``count`` topics of a completed invalidation; return their number."""
        start = max(0, len(item.topics) - count)
        topics = item.topics[start:]
        del item.topics[start:]
        for topic in topics:
            known = self._leaving.get(topic)
            if known is not None:
                known.remove(item)
                if not known:
                    self._leaving.remove(topic)
        return len(topics)

    def leaving(self, topic_filters: Sequence[str]) -> list["Invalidation[Waiter]"]:
        """Return the invalidations in progress for topics that one of the filters matches."""
        found: dict[int, Invalidation[Waiter]] = {}
        for topic_filter in topic_filters if len(self._leaving) else ():
            for _, items in _matching(self._leaving, topic_filter):
                found.update((id(item), item) for item in items if not item.is_complete)
        return list(found.values())

    def remove_edge(self, edge: str) -> None:
        """Drop the bit of an edge whose incarnation ended."""
        self._live &= ~self._bits.pop(edge, 0)

    @property
    def held_topics(self) -> TopicIndex[int]:
        """The topics that some edge caches."""
        return self._holders

    @property
    def leaving_topics(self) -> TopicIndex[list["Invalidation"]]:  # type: ignore[type-arg]
        """The topics of invalidations in progress, each with its invalidations."""
        return self._leaving

    def _new_bit(self, edge: str) -> int:
        if self._next_bit == BITS_MAX:
            self._renumber()
        bit = 1 << self._next_bit
        self._next_bit += 1
        self._bits[edge] = bit
        self._live |= bit
        return bit

    def _renumber(self) -> None:
        """Give the live edges the lowest bits, and drop topics without a live holder."""
        bits = {edge: 1 << at for at, edge in enumerate(self._bits)}
        for topic in list(self._order):
            holders = self._holders.get(topic) or 0
            kept = sum(bits[edge] for edge, bit in self._bits.items() if bit & holders)
            if kept:
                self._holders.add(topic, kept)
            else:
                self._holders.remove(topic)
                del self._order[topic]
        self._bits = bits
        self._live = (1 << len(bits)) - 1
        self._next_bit = len(bits)


def _matching(index: TopicIndex[Value], topic_filter: str) -> list[tuple[str, Value]]:
    if "+" in topic_filter or "#" in topic_filter:
        return list(index.match(topic_filter))
    value = index.get(topic_filter)
    return [(topic_filter, value)] if value is not None else []
