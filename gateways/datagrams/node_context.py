"""Shared state of the parts of a datagram node: its tables, its output, and its counts."""

from __future__ import annotations

from collections import Counter

from gateways.datagrams.deliveries import Deliveries
from gateways.datagrams.jurisdiction import Jurisdiction, Uplink
from gateways.datagrams.messages import Body, Code, Datagram, Endpoint, PubAck
from gateways.datagrams.node_events import Arrived, DatagramNodeSettings, DatagramReady, Sent, TopicAuthorizer
from gateways.datagrams.proofs import AMPLIFICATION_MAX, Proofs
from gateways.datagrams.subscribers import DatagramPeer, Subscribers

__all__ = ["NodeContext"]


class NodeContext:
    """Tables of one node.

    Attributes:
      uplink: None at the root.
      out: Output of this step; the node empties it.
      counts: Events, by name; docs/udp.md lists them.
    """

    def __init__(
        self, settings: DatagramNodeSettings, rights: TopicAuthorizer, proofs: Proofs, parent: DatagramPeer | None
    ) -> None:
        self.settings = settings
        self.rights = rights
        self.proofs = proofs
        self.uplink = Uplink(parent, due=settings.holds_from) if parent is not None else None
        self.jurisdiction = Jurisdiction(settings.subtree, settings.grants)
        self.subscribers = Subscribers(settings.subscriptions_max, settings.subscriptions_per_address_max)
        self.deliveries = Deliveries(settings.first_number)
        self.counts: Counter[str] = Counter()
        self.out = DatagramReady()
        self._request = settings.first_number

    def next_request(self) -> int:
        """Return a number for a request of this node."""
        self._request += 1
        return self._request

    def holds(self, now: float) -> bool:
        """Return whether this node decides for its subtree now."""
        return now >= self.settings.holds_from if self.uplink is None else self.uplink.holds(now)

    def is_waiting(self, now: float) -> bool:
        """Return whether this is a restarted root that does not decide yet."""
        return self.uplink is None and now < self.settings.holds_from

    def is_authentic(self, arrived: Arrived) -> bool:
        """Return whether a datagram comes from the owner of its address; in clear this is assumed."""
        return arrived.is_proved or not arrived.peer.session

    def get_neighbour(self, peer: DatagramPeer) -> str:
        """Return "parent", the subtree of a child, or "" for a peer that is no node."""
        if self.uplink is not None and peer == self.uplink.parent:
            return "parent"
        child = self.jurisdiction.child_at(peer.endpoint)
        return child.subtree if child is not None and child.peer == peer else ""

    def get_peer(self, endpoint: Endpoint) -> DatagramPeer:
        """Return the peer at an address named by another node: a device, or this node's parent."""
        if self.uplink is not None and endpoint == self.uplink.parent.endpoint:
            return self.uplink.parent
        return DatagramPeer(endpoint)

    def send(self, peer: DatagramPeer, packet: Datagram) -> None:
        """Send to a proved address or a node."""
        self.out.send.append(Sent(peer, packet))

    def answer(self, arrived: Arrived, body: Body) -> None:
        """Answer a datagram; an unproved address receives at most three times its bytes."""
        bytes_max = 0 if arrived.is_proved else arrived.length * AMPLIFICATION_MAX
        self.out.send.append(Sent(arrived.peer, Datagram(arrived.packet.request, body), bytes_max))

    def refuse(self, arrived: Arrived, code: Code, *nodes: Endpoint, cookie: bytes = b"") -> None:
        """Refuse a datagram, and count the code."""
        self.counts[f"refused_{code.name.lower()}"] += 1
        self.answer(arrived, PubAck(code, nodes, cookie=cookie))

    def redirect(self, now: float, arrived: Arrived) -> None:
        """Redirect a request to the parent; a restarted root is busy, and a node without parent has the sender resolve
        again.
        """
        if self.is_waiting(now):
            self.refuse(arrived, Code.BUSY)
        else:
            nodes = (self.uplink.parent.endpoint,) if self.uplink is not None else ()
            self.refuse(arrived, Code.NOT_MINE, *nodes)
