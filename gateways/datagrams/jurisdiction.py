"""Jurisdiction over topics: this node's subtree, its parent, and the children to which it delegated parts.

A child is *preparing* while subscriptions that touch its subtree are passed to it; its parent decides meanwhile. When
all are acknowledged it is *joined*: it decides until its lease ends or it leaves. Then its parent decides again, with
the subscriptions that it kept. A lease never exceeds the lease of its grantor, so no topic has two deciding nodes.
Source: docs/adr/0067-six-messages-over-udp.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gateways.datagrams.messages import Code, Endpoint, Join
from gateways.datagrams.subscribers import DatagramPeer, DatagramSubscription
from gateways.datagrams.subtrees import is_within, touches

__all__ = ["JOIN_LEASE_S", "Child", "Jurisdiction", "Uplink"]

JOIN_LEASE_S = 15
RENEW_S = 5.0
JOIN_RETRY_S = 0.5
CHILDREN_MAX = 1_000


class Child(Struct):
    """A node that has, or is being given, a part of this node's subtree.

    Attributes:
      request: Number of its last JOIN, answered when it is joined.
      unconfirmed: Filters passed to it and not acknowledged.
      rest: Subscriptions not passed yet, or not acknowledged in five tries.
      until: End of the lease, s of the clock.
    """

    name: str
    subtree: str
    peer: DatagramPeer
    incarnation: int
    request: int
    unconfirmed: set[tuple[Endpoint, str]]
    until: float
    is_joined: bool = False
    rest: list[DatagramSubscription] = field(default_factory=list)


class Jurisdiction:
    """The subtree of a node, and its delegations.

    Attributes:
      children: By subtree.
    """

    def __init__(self, subtree: str, grants: Mapping[str, Iterable[str]]) -> None:
        """Set up.

        Args:
          subtree: Of this node; "" for the root.
          grants: Permitted subtrees by node name; "" means nodes of a listener in clear.
        """
        self.subtree = subtree
        self.children: dict[str, Child] = {}
        self._by_endpoint: dict[Endpoint, Child] = {}  # by address: a node has one subtree
        self._grants = {name: frozenset(subtrees) for name, subtrees in grants.items()}

    def child_for(self, topic: str) -> Child | None:
        """Return the joined child that decides for a topic."""
        while self.children and topic:
            child = self.children.get(topic)
            if child is not None:  # subtrees of children do not overlap
                return child if child.is_joined else None
            topic = topic.rpartition("/")[0]
        return None

    def child_at(self, endpoint: Endpoint) -> Child | None:
        """Return the child at an address."""
        return self._by_endpoint.get(endpoint)

    def put(self, child: Child) -> None:
        """Register a child that is being prepared."""
        self.children[child.subtree] = child
        self._by_endpoint[child.peer.endpoint] = child

    def remove(self, child: Child) -> None:
        """Remove a child: this node decides for its subtree again."""
        del self.children[child.subtree]
        if self._by_endpoint.get(child.peer.endpoint) is child:
            del self._by_endpoint[child.peer.endpoint]

    def touched(self, topic_filter: str) -> list[Child]:
        """Return the children, including preparing ones, whose subtrees a filter touches."""
        return [child for child in self.children.values() if touches(topic_filter, child.subtree)]

    def validate(self, name: str, wanted: Join) -> Code | Child | None:
        """Validate a JOIN.

        Returns:
          The refusal code; the child that it renews, or that has a subtree above it (NOT_MINE, send JOIN there); None
          if the subtree can be granted.
        """
        subtree = wanted.subtree
        if subtree not in self._grants.get(name, ()):
            return Code.NOT_AUTHORIZED
        if subtree == self.subtree or not is_within(subtree, self.subtree):
            return Code.NOT_MINE
        at = self._by_endpoint.get(wanted.node)
        if at is not None and at.subtree != subtree:
            return Code.TAKEN
        for child in self.children.values():
            if child.subtree == subtree:
                is_same = child.name == name and child.peer.endpoint == wanted.node
                return child if is_same and wanted.incarnation >= child.incarnation else Code.TAKEN
            if is_within(subtree, child.subtree):
                return child
            if is_within(child.subtree, subtree):
                return Code.TAKEN
        return Code.BUSY if len(self.children) >= CHILDREN_MAX else None

    def remove_expired(self, now: float) -> list[Child]:
        """Remove and return children whose lease has ended."""
        expired = [child for child in self.children.values() if child.until <= now]
        for child in expired:
            self.remove(child)
        return expired

    def next_end(self) -> float | None:
        """Return the next end of a lease."""
        return min((child.until for child in self.children.values()), default=None)


class Uplink(Struct):
    """A node's own lease of its subtree, from its parent.

    Attributes:
      until: End of the lease, counted from the sending of the answered JOIN.
      sent: Time of sending of recent JOINs, by request.
      due: When the next JOIN is sent.
      cookie: Of the parent, in clear.
    """

    parent: DatagramPeer
    until: float = 0.0
    sent: dict[int, float] = field(default_factory=dict)
    due: float = 0.0
    cookie: bytes = b""

    def holds(self, now: float) -> bool:
        """Return whether the lease is valid."""
        return now < self.until

    def record_join(self, now: float, request: int) -> None:
        """Record a sent JOIN."""
        self.sent[request] = now
        while len(self.sent) > 64:
            del self.sent[next(iter(self.sent))]
        self.due = now + JOIN_RETRY_S

    def apply_grant(self, request: int, lease_s: int) -> bool:
        """Apply the answer to a JOIN; return False for an unknown request."""
        sent = self.sent.get(request)
        if sent is None:
            return False
        self.until = max(self.until, sent + min(lease_s, JOIN_LEASE_S))
        self.due = sent + RENEW_S
        self.sent = {at: when for at, when in self.sent.items() if at > request}
        return True
