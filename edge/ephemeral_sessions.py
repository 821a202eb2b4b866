"""Subscriptions of this edge's ephemeral sessions: the trie, the merged subscribers of a topic, shared members.

Overlapping subscriptions of one connection give one copy: highest QoS, all identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-4].
"""

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from edge.client import Client
from edge.hot.state import Sub
from mqtt.filter_costs import FilterCosts
from mqtt.properties import encode_subscription_identifiers
from mqtt.topic_trie import TopicTrie
from mqtt.topics import parse_shared
from wire.messages import Subscription

__all__ = ["EphemeralSubscriptions", "identifier_properties"]


class EphemeralSubscriptions:
    """Local subscriptions; ``on_change`` is told every filter whose subscribers changed."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._trie = TopicTrie()
        self._costs = FilterCosts(self._trie)
        self._groups: dict[bytes, dict[int, tuple[Client, Subscription]]] = {}
        self._turn: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._trie) + sum(len(members) for members in self._groups.values())

    def admits(self, client: Client, names: Sequence[str]) -> list[bool]:
        """Return which filters of one SUBSCRIBE may be added: matching would cost too much with the others."""
        return self._costs.admits(client.number, client.subscriptions, names)

    def add(self, client: Client, subscription: Subscription) -> None:
        """Add or replace a subscription."""
        shared = parse_shared(subscription.topic_filter)
        if shared is not None:
            share = f"{shared[0]}/{shared[1]}".encode()
            self._groups.setdefault(share, {})[client.number] = (client, subscription)
            return
        self._trie.add(subscription.topic_filter, client.number, (client, subscription))
        self._on_change(subscription.topic_filter)

    def remove(self, client: Client, name: str) -> None:
        """Remove a subscription."""
        self._costs.removed(client.number, name)
        shared = parse_shared(name)
        if shared is not None:
            share = f"{shared[0]}/{shared[1]}".encode()
            members = self._groups.get(share, {})
            members.pop(client.number, None)
            if not members:
                self._groups.pop(share, None)
                self._turn.pop(share, None)
            return
        self._trie.remove(name, client.number)
        self._on_change(name)

    def ended(self, client: Client) -> None:
        """The client's last subscription was removed, for it is gone."""
        self._costs.forget(client.number)

    def subscribers(self, topic: str) -> tuple[Sub, ...]:
        """Return the subscribers of a topic, one per connection."""
        matches: list[tuple[Client, Subscription]] = self._trie.match(topic)
        if not matches:
            return ()
        merged: dict[int, tuple[Client, list[Subscription]]] = {}
        for client, subscription in matches:
            merged.setdefault(client.number, (client, []))[1].append(subscription)
        return tuple(merged_subscriber(client, subscriptions) for client, subscriptions in merged.values())

    def members(self, share: bytes) -> int:
        """Return how many local members a shared group has."""
        return len(self._groups.get(share, ()))

    def has_member(self, share: bytes) -> bool:
        """Whether a shared group has a local member that ``pick`` would return."""
        return any(not client.conn.closed for client, _ in self._groups.get(share, {}).values())

    def pick(self, share: bytes, sticky_to: bytes | None = None) -> Sub | None:
        """Return the next local member of a shared group, or the one for a topic; None if there is none."""
        members = self._groups.get(share)
        if not members:
            return None
        numbers = sorted(members)
        turn = self._turn.get(share, 0) if sticky_to is None else crc32(b"member" + sticky_to)
        for offset in range(len(numbers)):
            client, subscription = members[numbers[(turn + offset) % len(numbers)]]
            if not client.conn.closed:
                if sticky_to is None:
                    self._turn[share] = (turn + offset + 1) % len(numbers)
                return merged_subscriber(client, [subscription])
        return None


def merged_subscriber(client: Client, subscriptions: list[Subscription]) -> Sub:
    """Return one subscriber for all matching subscriptions of a connection."""
    conn = client.conn
    if client.holds:
        # Held while any of them is: a later message of the topic may not overtake one that waits. All in one place.
        held = (client.holds.get(subscription.topic_filter) for subscription in subscriptions)
        conn = next((waiting for waiting in held if waiting is not None), conn)
    if len(subscriptions) == 1:
        one = subscriptions[0]
        return Sub(conn, one.qos, one.no_local, one.retain_as_published, identifier_properties(subscriptions))
    return Sub(
        conn,
        max(subscription.qos for subscription in subscriptions),
        all(subscription.no_local for subscription in subscriptions),
        any(subscription.retain_as_published for subscription in subscriptions),
        identifier_properties(subscriptions),
    )


def identifier_properties(subscriptions: Iterable[Subscription]) -> bytes:
    """Return the Subscription Identifier properties of a copy, encoded."""
    return encode_subscription_identifiers([subscription.identifier for subscription in subscriptions])
