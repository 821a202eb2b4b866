"""One datagram node: handles events of the socket and the cluster, and returns the output.

Combines resolving (PUBCONNECT), subscriptions, messages, and the tree (JOIN, as parent and as child). Sans-IO:
``handle(now, events)`` and ``next_deadline``. Decision: docs/adr/0067-six-messages-over-udp.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import structs

from access.limits.buckets import Buckets
from gateways.datagrams.jurisdiction import JOIN_LEASE_S, Child
from gateways.datagrams.messages import (
    HOPS_MAX,
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Join,
    PubAccept,
    PubAck,
    PubConnect,
    RejectedRequest,
)
from gateways.datagrams.node_context import NodeContext
from gateways.datagrams.node_events import (
    Arrived,
    ClusterAnswered,
    ClusterGranted,
    ClusterMessage,
    DatagramNodeSettings,
    DatagramReady,
    Event,
    TopicAuthorizer,
)
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.publishing import DatagramPublishing
from gateways.datagrams.subscribers import DatagramPeer
from gateways.datagrams.subscribing import DatagramSubscriptions
from gateways.datagrams.subtrees import is_within

__all__ = ["DatagramNode"]

PUBLISH_LEASE_S = 600


class DatagramNode:
    """The core of one node of the tree."""

    def __init__(
        self,
        settings: DatagramNodeSettings,
        rights: TopicAuthorizer,
        proofs: Proofs,
        parent: DatagramPeer | None = None,
    ) -> None:
        """Start an incarnation.

        Args:
          settings: Bounds, and the node's subtree and grants.
          rights: The rules.
          proofs: Cookies, with a secret of this incarnation.
          parent: Destination of JOIN; None at the root.
        """
        self._parts = NodeContext(settings, rights, proofs, parent)
        self._subscribing = DatagramSubscriptions(self._parts)
        self._publishing = DatagramPublishing(self._parts)
        self._joins = Buckets(settings.joins_per_second_max, settings.joins_per_second_max, keys_max=1)
        self._is_leaving = False
        self._preparing: list[Child] = []

    @property
    def counts(self) -> Counter[str]:
        """Counts of events, by name."""
        return self._parts.counts

    @property
    def statistics(self) -> dict[str, int]:
        """Return current numbers of subscriptions and children, and totals of deliveries."""
        deliveries = self._parts.deliveries
        return {
            "subscriptions": len(self._parts.subscribers),
            "children": sum(child.is_joined for child in self._parts.jurisdiction.children.values()),
            "repeats": deliveries.repeats,
            "given_up": deliveries.given_up,
        }

    def holds(self, now: float) -> bool:
        """Return whether this node decides for its subtree."""
        return self._parts.holds(now)

    def handle(self, now: float, events: Iterable[Event] = ()) -> DatagramReady:
        """Handle events and the time; return the output."""
        self._advance_time(now)
        for event in events:
            match event:
                case Arrived():
                    self._arrived(now, event)
                case ClusterAnswered(token, refusal):
                    self._publishing.cluster_answered(token, refusal)
                case ClusterGranted(topic_filter, is_granted):
                    self._subscribing.granted(topic_filter, is_granted)
                case ClusterMessage():
                    self._publishing.from_cluster(now, event)
        out, self._parts.out = self._parts.out, DatagramReady()
        return out

    def lose_cluster(self) -> DatagramReady:
        """Answer all requests that wait for the cluster *busy*; the senders retry."""
        self._publishing.lost_cluster()
        self._subscribing.lost_cluster()
        out, self._parts.out = self._parts.out, DatagramReady()
        return out

    def reauthorize(self, now: float) -> DatagramReady:
        """End subscriptions that the changed rules do not allow."""
        self._subscribing.reauthorize(now)
        out, self._parts.out = self._parts.out, DatagramReady()
        return out

    def leave(self, now: float) -> DatagramReady:
        """Return the subtree to the parent; with children the lease expires instead, after theirs."""
        uplink = self._parts.uplink
        if uplink is not None and not self._is_leaving and self.holds(now) and not self._parts.jurisdiction.children:
            self._is_leaving = True
            uplink.until = now
            self._send_join(now)
        out, self._parts.out = self._parts.out, DatagramReady()
        return out

    def next_deadline(self) -> float | None:
        """Return when to call ``handle`` without events, None for never."""
        parts = self._parts
        deadlines = [
            parts.subscribers.next_end(),
            parts.deliveries.next_due(),
            self._subscribing.next_due(),
            parts.jurisdiction.next_end(),
            parts.uplink.due if parts.uplink is not None else None,
            0.0 if any(map(self._subscribing.can_continue, self._preparing)) else None,
        ]
        return min((each for each in deadlines if each is not None), default=None)

    def _advance_time(self, now: float) -> None:
        parts = self._parts
        self._publishing.repeat(now)
        self._subscribing.repeat(now)
        self._subscribing.expire(now)
        for _ in parts.jurisdiction.remove_expired(now):
            parts.counts["children_lost"] += 1
        if self._preparing:
            children = parts.jurisdiction.children
            self._preparing = [
                each for each in self._preparing if children.get(each.subtree) is each and not each.is_joined
            ]
            for child in self._preparing:
                if self._subscribing.can_continue(child):
                    self._continue_preparing(now, child)
        if parts.uplink is not None and parts.uplink.due <= now:
            self._send_join(now)

    def _send_join(self, now: float) -> None:
        parts, uplink = self._parts, self._parts.uplink
        if uplink is None:
            return
        settings, request = parts.settings, parts.next_request()
        uplink.record_join(now, request)
        wanted = Join(settings.subtree, settings.incarnation, settings.endpoint, self._is_leaving, uplink.cookie)
        parts.send(uplink.parent, Datagram(request, wanted))

    def _arrived(self, now: float, arrived: Arrived) -> None:
        parts, body = self._parts, arrived.packet.body
        cookie = getattr(body, "cookie", b"")
        if not arrived.is_proved and cookie and parts.proofs.is_valid(arrived.peer.endpoint, cookie, now):
            arrived = arrived._replace(is_proved=True)
            if arrived.peer.session:
                former = parts.subscribers.move(arrived.peer)
                if former is not None:
                    parts.deliveries.move(former, arrived.peer)
                parts.out.proved.append(arrived.peer)
        if parts.is_authentic(arrived):
            parts.deliveries.record_received(now, arrived.peer.endpoint)
        match body:
            case DatagramPublish():
                self._publishing.handle_publish(now, arrived, body)
            case PubAck():
                self._answered(now, arrived, body)
            case PubConnect():
                self._resolve(now, arrived, body)
            case DatagramSubscribe():
                self._subscribing.handle_subscribe(now, arrived, body)
            case Join():
                self._join(now, arrived, body)
            case RejectedRequest(code):
                parts.refuse(arrived, code)
            case PubAccept():
                parts.counts["unasked"] += 1  # a node publishes no message of its own

    def _answered(self, now: float, arrived: Arrived, answer: PubAck) -> None:
        uplink = self._parts.uplink
        if answer.code in (Code.DELIVERED, Code.DISTRIBUTED):  # from a subscriber, or from a relaying node
            if self._parts.is_authentic(arrived):
                self._publishing.answered(now, arrived)
        elif uplink is not None and arrived.peer == uplink.parent and arrived.packet.request in uplink.sent:
            if answer.code == Code.JOINED and not self._is_leaving:
                uplink.apply_grant(arrived.packet.request, answer.lease_s)
            elif answer.code == Code.NOT_PROVED and answer.cookie != uplink.cookie:
                uplink.cookie, uplink.due = answer.cookie, now
            elif answer.code != Code.JOINED:
                self._parts.counts["joins_refused"] += 1
                self._parts.out.join_refused = answer.code
        else:
            child = self._subscribing.answered(arrived, answer)
            if child is not None and not child.is_joined:
                self._continue_preparing(now, child)

    def _resolve(self, now: float, arrived: Arrived, wanted: PubConnect) -> None:
        """Answer with the deciding node of a topic, or pass the request to a nearer node."""
        parts = self._parts
        peer, neighbour = arrived.peer, parts.get_neighbour(arrived.peer)
        if not neighbour:
            if wanted.reply_to not in (None, peer.endpoint):
                parts.refuse(arrived, Code.NOT_PROVED, cookie=parts.proofs.cookie(peer.endpoint, now))
                return
            if wanted.topic.startswith("$") or not parts.rights.may_publish(arrived.name, wanted.topic, 0):
                parts.refuse(arrived, Code.NOT_AUTHORIZED)
                return
            wanted = structs.replace(wanted, reply_to=peer.endpoint, cookie=b"")
        if wanted.reply_to is None or wanted.hops >= HOPS_MAX:
            self._refuse_resolve(arrived, wanted, Code.MALFORMED)
            return
        if not is_within(wanted.topic, parts.settings.subtree):
            up = parts.uplink.parent if parts.uplink is not None else None
            self._forward(arrived, wanted, up)
        elif not parts.holds(now):
            self._refuse_resolve(arrived, wanted, Code.BUSY)
        elif (child := parts.jurisdiction.child_for(wanted.topic)) is not None:
            self._forward(arrived, wanted, child.peer)
        else:
            parts.counts["resolved"] += 1
            number = self._publishing.topic_number(wanted.topic) if arrived.is_proved or neighbour else 0
            cookie = parts.proofs.cookie(wanted.reply_to, now)
            accept = PubAccept(parts.settings.subtree, PUBLISH_LEASE_S, number, cookie)
            if neighbour:
                parts.send(parts.get_peer(wanted.reply_to), Datagram(arrived.packet.request, accept))
            else:
                parts.answer(arrived, accept)

    def _refuse_resolve(self, arrived: Arrived, wanted: PubConnect, code: Code) -> None:
        """Refuse a request; one passed on by another node is answered to its original sender."""
        parts = self._parts
        if wanted.reply_to is None or not parts.get_neighbour(arrived.peer):
            parts.refuse(arrived, code)
            return
        parts.counts[f"refused_{code.name.lower()}"] += 1
        parts.send(parts.get_peer(wanted.reply_to), Datagram(arrived.packet.request, PubAck(code)))

    def _forward(self, arrived: Arrived, wanted: PubConnect, peer: DatagramPeer | None) -> None:
        if peer is None or peer == arrived.peer:
            self._refuse_resolve(arrived, wanted, Code.NOT_MINE)
            return
        if self._parts.settings.redirects:
            self._parts.refuse(arrived, Code.NOT_MINE, peer.endpoint)
            return
        self._parts.counts["resolves_passed"] += 1
        self._parts.send(peer, Datagram(arrived.packet.request, structs.replace(wanted, hops=wanted.hops + 1)))

    def _join(self, now: float, arrived: Arrived, wanted: Join) -> None:
        """Handle a JOIN; a new child is prepared first, and answered when it has every subscription."""
        parts, endpoint = self._parts, arrived.peer.endpoint
        if not arrived.is_proved:
            parts.refuse(arrived, Code.NOT_PROVED, cookie=parts.proofs.cookie(endpoint, now))
            return
        if wanted.node != endpoint:
            parts.refuse(arrived, Code.MALFORMED)  # devices would be sent to a wrong address
            return
        if not parts.holds(now):
            parts.refuse(arrived, Code.BUSY)
            return
        verdict = parts.jurisdiction.validate(arrived.name, wanted)
        if isinstance(verdict, Child) and verdict.subtree == wanted.subtree:
            self._renew(now, arrived, wanted, verdict)
        elif isinstance(verdict, Child):
            parts.refuse(arrived, Code.NOT_MINE, verdict.peer.endpoint)
        elif verdict is not None:
            parts.refuse(arrived, verdict)
        elif wanted.leave:
            parts.answer(arrived, PubAck(Code.JOINED))
        elif not self._joins.take("", now):
            parts.refuse(arrived, Code.BUSY)
        else:
            self._prepare(now, arrived, wanted)

    def _renew(self, now: float, arrived: Arrived, wanted: Join, child: Child) -> None:
        parts = self._parts
        if wanted.leave:
            parts.jurisdiction.remove(child)
            parts.answer(arrived, PubAck(Code.JOINED))
        elif wanted.incarnation > child.incarnation:
            # A new incarnation, without the former subscriptions.
            parts.jurisdiction.remove(child)
            self._prepare(now, arrived, wanted)
        else:
            child.request, child.peer = arrived.packet.request, arrived.peer  # possibly a new session
            if child.is_joined:
                self._grant(now, child)
            else:
                child.until = now + JOIN_LEASE_S

    def _prepare(self, now: float, arrived: Arrived, wanted: Join) -> None:
        child = Child(
            name=arrived.name,
            subtree=wanted.subtree,
            peer=arrived.peer,
            incarnation=wanted.incarnation,
            request=arrived.packet.request,
            unconfirmed=set(),
            until=now + JOIN_LEASE_S,
        )
        self._parts.jurisdiction.put(child)
        self._preparing.append(child)
        child.rest = list(self._parts.subscribers)
        self._continue_preparing(now, child)

    def _continue_preparing(self, now: float, child: Child) -> None:
        """Pass further subscriptions to a child; it is joined when it has all of them."""
        self._subscribing.prepare(now, child)
        if not child.rest and not child.unconfirmed:
            self._joined(now, child)

    def _joined(self, now: float, child: Child) -> None:
        if self._parts.jurisdiction.children.get(child.subtree) is child and self._parts.holds(now):
            child.is_joined = True
            self._parts.counts["children_joined"] += 1
            self._grant(now, child)

    def _grant(self, now: float, child: Child) -> None:
        """Grant or renew a lease, bounded by this node's own."""
        uplink = self._parts.uplink
        lease_s = JOIN_LEASE_S if uplink is None else int(min(JOIN_LEASE_S, uplink.until - now))
        if lease_s > 0:
            child.until = max(child.until, now + lease_s)
            self._parts.send(child.peer, Datagram(child.request, PubAck(Code.JOINED, lease_s=lease_s)))
