"""Jurisdiction over topics: this node's subtree, its parent, and the children that it gave parts to.

A child is *preparing* while the subscriptions that touch its subtree are passed to it; its parent decides meanwhile.
When all are acknowledged it is *joined*: from then on it decides, until its lease ends or it leaves, and then the
parent does again, with the subscriptions that it kept. A lease never reaches beyond the one that its giver has itself,
so no topic has two deciders. Source: docs/adr/0067-six-messages-over-udp.md.
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
        request: Of its last JOIN, which is answered once it is joined.
        unconfirmed: Filters that it was passed and has not acknowledged.
        rest: Subscriptions that are not looked at yet, or that it did not acknowledge in five tries.
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
    """The subtree of a node, and whom it gave parts of it to.

    Attributes:
        children: By subtree.
    """

    def __init__(self, subtree: str, grants: Mapping[str, Iterable[str]]) -> None:
        """Set up.

        Args:
            subtree: Of this node; "" for the root.
            grants: Names of nodes, and the subtrees that each may have; "" names nodes of a listener in clear.
        """
        self.subtree = subtree
        self.children: dict[str, Child] = {}
        self._at: dict[Endpoint, Child] = {}  # by address: a node has one subtree
        self._grants = {name: frozenset(subtrees) for name, subtrees in grants.items()}

    def child_for(self, topic: str) -> Child | None:
        """Return the joined child that decides about a topic."""
        while self.children and topic:
            child = self.children.get(topic)
            if child is not None:  # no other one lies above or below it
                return child if child.is_joined else None
            topic = topic.rpartition("/")[0]
        return None

    def child_at(self, endpoint: Endpoint) -> Child | None:
        """Return the child that is reached at an address."""
        return self._at.get(endpoint)

    def put(self, child: Child) -> None:
        """Begin to give a subtree to a child."""
        self.children[child.subtree] = child
        self._at[child.peer.endpoint] = child

    def take_back(self, child: Child) -> None:
        """Decide about a child's subtree again."""
        del self.children[child.subtree]
        if self._at.get(child.peer.endpoint) is child:
            del self._at[child.peer.endpoint]

    def touched(self, topic_filter: str) -> list[Child]:
        """Return the children, preparing ones too, that a filter reaches into."""
        return [child for child in self.children.values() if touches(topic_filter, child.subtree)]

    def judge(self, name: str, wanted: Join) -> Code | Child | None:
        """Judge a JOIN.

        Returns:
            Why it is refused; the child that it renews, or that holds what lies above it (NOT_MINE, ask there); None
            if the subtree can be given.
        """
        subtree = wanted.subtree
        if subtree not in self._grants.get(name, ()):
            return Code.NOT_AUTHORIZED
        if subtree == self.subtree or not is_within(subtree, self.subtree):
            return Code.NOT_MINE
        at = self._at.get(wanted.node)
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

    def ended(self, now: float) -> list[Child]:
        """Take back what was given to children whose lease has ended."""
        gone = [child for child in self.children.values() if child.until <= now]
        for child in gone:
            self.take_back(child)
        return gone

    def next_end(self) -> float | None:
        """Return when a lease ends."""
        return min((child.until for child in self.children.values()), default=None)


class Uplink(Struct):
    """A node's own lease of its subtree, from its parent.

    Attributes:
        until: End of the lease, counted from when the JOIN was sent that was answered.
        sent: When each JOIN under way was sent, by request; the last few.
        due: When the next JOIN is sent.
        cookie: Of the parent, in clear.
    """

    parent: DatagramPeer
    until: float = 0.0
    sent: dict[int, float] = field(default_factory=dict)
    due: float = 0.0
    cookie: bytes = b""

    def holds(self, now: float) -> bool:
        """Return whether the lease lasts."""
        return now < self.until

    def asked(self, now: float, request: int) -> None:
        """Note that a JOIN was sent."""
        self.sent[request] = now
        while len(self.sent) > 64:
            del self.sent[next(iter(self.sent))]
        self.due = now + JOIN_RETRY_S

    def granted(self, request: int, lease_s: int) -> bool:
        """Take the answer to a JOIN; return False for one that was not asked."""
        sent = self.sent.get(request)
        if sent is None:
            return False
        self.until = max(self.until, sent + min(lease_s, JOIN_LEASE_S))
        self.due = sent + RENEW_S
        self.sent = {at: when for at, when in self.sent.items() if at > request}
        return True
