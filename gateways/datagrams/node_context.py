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
        out: What this step wants done; the node empties it.
        counts: Of what happened, by name; docs/udp.md lists them.
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
        """Return a number for a question of this node's own."""
        self._request += 1
        return self._request

    def holds(self, now: float) -> bool:
        """Return whether this node decides about its subtree now."""
        return now >= self.settings.holds_from if self.uplink is None else self.uplink.holds(now)

    def is_waiting(self, now: float) -> bool:
        """Return whether this is a root that has just begun, and decides about nothing yet."""
        return self.uplink is None and now < self.settings.holds_from

    def is_from_there(self, arrived: Arrived) -> bool:
        """Return whether a datagram came from whom this address belongs to; in clear nobody can tell."""
        return arrived.is_proved or not arrived.peer.session

    def neighbour(self, peer: DatagramPeer) -> str:
        """Return "parent", the subtree of a child, or "" for who is no node."""
        if self.uplink is not None and peer == self.uplink.parent:
            return "parent"
        child = self.jurisdiction.child_at(peer.endpoint)
        return child.subtree if child is not None and child.peer == peer else ""

    def reach(self, endpoint: Endpoint) -> DatagramPeer:
        """Return the partner at an address that another node named: a device, or this node's parent."""
        if self.uplink is not None and endpoint == self.uplink.parent.endpoint:
            return self.uplink.parent
        return DatagramPeer(endpoint)

    def send(self, peer: DatagramPeer, packet: Datagram) -> None:
        """Send to who has proved its address, or is a node."""
        self.out.send.append(Sent(peer, packet))

    def answer(self, arrived: Arrived, body: Body) -> None:
        """Answer a datagram; an address that has not proved itself gets three times its bytes at most."""
        bytes_max = 0 if arrived.is_proved else arrived.length * AMPLIFICATION_MAX
        self.out.send.append(Sent(arrived.peer, Datagram(arrived.packet.request, body), bytes_max))

    def refuse(self, arrived: Arrived, code: Code, *nodes: Endpoint, cookie: bytes = b"") -> None:
        """Refuse a datagram, and count why."""
        self.counts[f"refused_{code.name.lower()}"] += 1
        self.answer(arrived, PubAck(code, nodes, cookie=cookie))

    def elsewhere(self, now: float, arrived: Arrived) -> None:
        """Send the asker to the parent; a root that has just begun is busy, any other one lets it resolve again."""
        if self.is_waiting(now):
            self.refuse(arrived, Code.BUSY)
        else:
            nodes = (self.uplink.parent.endpoint,) if self.uplink is not None else ()
            self.refuse(arrived, Code.NOT_MINE, *nodes)
