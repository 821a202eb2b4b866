"""The subscriptions that a node keeps: who wants which filter, until when, and where it is delivered.

One subscription per address and filter; renewed by saying it again, gone when its lease ends. A message goes to each
address once, at the highest QoS of the filters that match it. Bounded in all and per address.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from gateways.datagrams.messages import Endpoint
from mqtt.topic_trie import TopicTrie

__all__ = ["DatagramPeer", "DatagramSubscription", "Subscribers"]

STALE_MAX = 1_000  # ends of subscriptions that are gone
VISITS_MAX = 1_000  # nodes that one match may touch: docs/adr/0022-cost-of-filters.md


class DatagramPeer(NamedTuple):
    """One partner: its address, and the number of its secured session, 0 if the address is all that is known."""

    endpoint: Endpoint
    session: int = 0


class DatagramSubscription(Struct):
    """One filter of one address.

    Attributes:
        peer: Where messages go.
        until: s of the clock.
        relay: The device takes datagrams from this node only.
        name: Of the device, if it asked this node itself; None: another node passed it on.
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
        self._ends: list[tuple[float, Endpoint, str]] = []  # one entry per subscription that lives, perhaps older ones
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
            False if there is no room, or the filter would make matching too expensive.
        """
        endpoint, topic_filter = wanted.peer.endpoint, wanted.filter
        mine = self._by_endpoint.get(endpoint, {})
        known = mine.get(topic_filter)
        if known is not None:
            if wanted.peer.session:  # who was passed on by another node has none
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
        self._note_end(wanted)
        if wanted.peer.session:
            self._by_session[wanted.peer.session] = endpoint
        return True

    def remove(self, endpoint: Endpoint, topic_filter: str) -> None:
        """Forget a subscription, if there is one."""
        mine = self._by_endpoint.get(endpoint)
        gone = mine.pop(topic_filter, None) if mine is not None else None
        if mine is None or gone is None:
            return
        self._trie.remove(topic_filter, endpoint)
        self._count -= 1
        if not mine:
            del self._by_endpoint[endpoint]
            self._by_session.pop(gone.peer.session, None)

    def get(self, endpoint: Endpoint, topic_filter: str) -> DatagramSubscription | None:
        """Return what an address wants by a filter."""
        return self._by_endpoint.get(endpoint, {}).get(topic_filter)

    def has(self, topic_filter: str) -> bool:
        """Return whether anybody wants exactly this filter."""
        return bool(self._trie.entries(topic_filter))

    def is_relayed(self, topic_filter: str) -> bool:
        """Return whether anybody wants exactly this filter by way of this node."""
        return any(each.relay for _, each in self._trie.entries(topic_filter))

    def move(self, peer: DatagramPeer) -> Endpoint | None:
        """Deliver what a session wants to its new address, and nothing more to the old one, which is returned."""
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
        """Forget what was not renewed; return the filters."""
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

    def _note_end(self, subscription: DatagramSubscription) -> None:
        """Remember when a subscription ends; what was removed since is left out where it is too much."""
        heapq.heappush(self._ends, (subscription.until, subscription.peer.endpoint, subscription.filter))
        if len(self._ends) > 2 * self._count + STALE_MAX:
            self._ends = [(each.until, each.peer.endpoint, each.filter) for each in self]
            heapq.heapify(self._ends)

    def next_end(self) -> float | None:
        """Return when to call ``expire`` next."""
        return self._ends[0][0] if self._ends else None

    def matching(self, topic: str, relay_only: bool = False) -> list[DatagramSubscription]:
        """Return one subscription per address that wants a topic, the one of the highest QoS."""
        found: dict[Endpoint, DatagramSubscription] = {}
        for each in self._trie.match(topic):
            if relay_only and not each.relay:
                continue
            known = found.get(each.peer.endpoint)
            if known is None or known.qos < each.qos:
                found[each.peer.endpoint] = each
        return list(found.values())
