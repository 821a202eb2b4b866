"""The subscriptions of a node: address, filter, lease and destination.

One subscription per address and filter, renewed by repetition, removed when its lease ends. A message goes to each
address once, at the highest QoS of its matching filters. Bounded in total and per address.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from gateways.datagrams.messages import Endpoint
from mqtt.topic_trie import TopicTrie

__all__ = ["DatagramPeer", "DatagramSubscription", "Subscribers"]

STALE_MAX = 1_000  # heap entries of removed subscriptions
VISITS_MAX = 1_000  # trie nodes visited by one match: docs/adr/0022-cost-of-filters.md


class DatagramPeer(NamedTuple):
    """One peer: its address, and the number of its secured session, 0 without one."""

    endpoint: Endpoint
    session: int = 0


class DatagramSubscription(Struct):
    """One filter of one address.

    Attributes:
      peer: Destination of messages.
      until: End of the lease, s of the clock.
      relay: The device accepts datagrams only from this node.
      name: Of a device that subscribed here directly; None: passed on by another node.
    """

    peer: DatagramPeer
    filter: str
    qos: int
    until: float
    relay: bool = False
    name: str | None = None


class Subscribers:
    """All subscriptions of a node."""

    def __init__(self, subscriptions_max: int, per_address_max: int) -> None:
        self._max, self._per_address_max = subscriptions_max, per_address_max
        self._trie = TopicTrie()
        self._by_endpoint: dict[Endpoint, dict[str, DatagramSubscription]] = {}
        self._ends: list[tuple[float, Endpoint, str]] = []  # one entry per subscription, possibly older ones
        self._by_session: dict[int, Endpoint] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[DatagramSubscription]:
        for subscriptions in self._by_endpoint.values():
            yield from subscriptions.values()

    def add(self, wanted: DatagramSubscription) -> bool:
        """Store or renew a subscription.

        Returns:
          False if a bound is reached, or the filter would make matching too expensive.
        """
        endpoint, topic_filter = wanted.peer.endpoint, wanted.filter
        mine = self._by_endpoint.get(endpoint, {})
        known = mine.get(topic_filter)
        if known is not None:
            if wanted.peer.session:  # subscriptions passed on by other nodes have none
                known.peer, known.relay = wanted.peer, wanted.relay
                self._by_session[wanted.peer.session] = endpoint
            if wanted.name is not None:
                known.name = wanted.name
            if wanted.until > known.until:
                known.until = wanted.until
            known.qos = wanted.qos
            return True
        if self._count >= self._max or len(mine) >= self._per_address_max:
            return False
        if self._trie.visits_with(topic_filter) > VISITS_MAX:
            return False
        mine[topic_filter] = wanted
        self._by_endpoint[endpoint] = mine
        self._trie.add(topic_filter, endpoint, wanted)
        self._count += 1
        self._push_end(wanted)
        if wanted.peer.session:
            self._by_session[wanted.peer.session] = endpoint
        return True

    def remove(self, endpoint: Endpoint, topic_filter: str) -> None:
        """Remove a subscription, if it exists."""
        mine = self._by_endpoint.get(endpoint)
        removed = mine.pop(topic_filter, None) if mine is not None else None
        if mine is None or removed is None:
            return
        self._trie.remove(topic_filter, endpoint)
        self._count -= 1
        if not mine:
            del self._by_endpoint[endpoint]
            self._by_session.pop(removed.peer.session, None)

    def get(self, endpoint: Endpoint, topic_filter: str) -> DatagramSubscription | None:
        """Return the subscription of an address to a filter."""
        return self._by_endpoint.get(endpoint, {}).get(topic_filter)

    def has(self, topic_filter: str) -> bool:
        """Return whether this exact filter has a subscriber."""
        return bool(self._trie.entries(topic_filter))

    def is_relayed(self, topic_filter: str) -> bool:
        """Return whether this exact filter has a relayed subscriber."""
        return any(each.relay for _, each in self._trie.entries(topic_filter))

    def move(self, peer: DatagramPeer) -> Endpoint | None:
        """Move a session's subscriptions to its new address; return the former one."""
        former = self._by_session.get(peer.session)
        if former is None or former == peer.endpoint:
            return None
        for each in list(self._by_endpoint.get(former, {}).values()):
            if each.peer.session == peer.session:
                self.remove(former, each.filter)
                each.peer = peer
                self.add(each)
        return former

    def expire(self, now: float) -> list[str]:
        """Remove expired subscriptions; return their filters."""
        ended = []
        while self._ends and self._ends[0][0] <= now:
            _, endpoint, topic_filter = heapq.heappop(self._ends)
            known = self._by_endpoint.get(endpoint, {}).get(topic_filter)
            if known is None:
                continue
            if known.until > now:
                heapq.heappush(self._ends, (known.until, endpoint, topic_filter))
            else:
                self.remove(endpoint, topic_filter)
                ended.append(topic_filter)
        return ended

    def _push_end(self, subscription: DatagramSubscription) -> None:
        """Add the end of a lease; rebuild the heap if it has too many stale entries."""
        heapq.heappush(self._ends, (subscription.until, subscription.peer.endpoint, subscription.filter))
        if len(self._ends) > 2 * self._count + STALE_MAX:
            self._ends = [(each.until, each.peer.endpoint, each.filter) for each in self]
            heapq.heapify(self._ends)

    def next_end(self) -> float | None:
        """Return when to call ``expire`` next."""
        return self._ends[0][0] if self._ends else None

    def matching(self, topic: str, relay_only: bool = False) -> list[DatagramSubscription]:
        """Return the matching subscription of the highest QoS of each address."""
        found: dict[Endpoint, DatagramSubscription] = {}
        for each in self._trie.match(topic):
            if relay_only and not each.relay:
                continue
            known = found.get(each.peer.endpoint)
            if known is None or known.qos < each.qos:
                found[each.peer.endpoint] = each
        return list(found.values())
