"""SUBSCRIBE: stored here, passed to each node whose subtree the filter touches, answered when all have it.

A device subscribes at a node whose subtree contains the whole filter; other nodes redirect it to their parent. From
there a subscription is passed to each child that the filter touches, and to all parents, which need it after they take
the subtree back. It is sent five times; a silent node makes the answer *busy*, and the device retries. Nodes below,
named in the answer, receive it with ``keep_open``, which renews no lease. Without it they redirect a device to their
parent, even for a known filter (docs/adr/0161-keep-open.md). From a child only subscriptions within its own subtree are
accepted.
"""

from __future__ import annotations

import heapq

from msgspec import Struct, structs

from gateways.datagrams.deliveries import RETRY_S, TRIES_MAX
from gateways.datagrams.jurisdiction import Child
from gateways.datagrams.messages import HOPS_MAX, Code, Datagram, DatagramSubscribe, Endpoint, PubAck
from gateways.datagrams.node_context import NodeContext
from gateways.datagrams.node_events import Arrived
from gateways.datagrams.subscribers import DatagramPeer, DatagramSubscription
from gateways.datagrams.subtrees import is_inside, restrict, touches

__all__ = ["LEASE_S_MAX", "DatagramSubscriptions"]

LEASE_S_MAX = 300
PASSED_MAX = 10_000  # pending requests to other nodes
PREPARED_MAX = 64  # of them to a new child
EXAMINED_MAX = 500  # subscriptions examined per iteration, for a new child


class _Pending(Struct):
    """A SUBSCRIBE that waits for other nodes, or for the cluster; a repeat replaces the first."""

    arrived: Arrived
    key: tuple[Endpoint, str, bool]
    open: int
    nodes: tuple[Endpoint, ...]
    lease_s: int
    is_whole: bool = True


class _Passed(Struct):
    """One request to another node; ``child`` is prepared with the subscription ``of``."""

    peer: DatagramPeer
    packet: Datagram
    pending: _Pending | None
    child: Child | None = None
    of: DatagramSubscription | None = None
    tries: int = 0
    due: float = 0.0


class DatagramSubscriptions:
    """The subscriptions of one node, and their propagation in the tree."""

    def __init__(self, parts: NodeContext) -> None:
        self._parts = parts
        self._passed: dict[int, _Passed] = {}  # by request
        self._due: list[tuple[float, int]] = []
        self._cluster: dict[str, list[_Pending]] = {}  # filters requested at the cluster
        self._granted: set[str] = set()  # filters granted by the cluster
        self._pending: dict[tuple[Endpoint, str, bool], _Pending] = {}  # by address, filter and whether it ends
        self._cluster_filters: dict[str, set[str]] = {}  # subscribers' filters by cluster filter

    def handle_subscribe(self, now: float, arrived: Arrived, wanted: DatagramSubscribe) -> None:
        """Handle a SUBSCRIBE."""
        parts = self._parts
        neighbour = parts.get_neighbour(arrived.peer)
        if not neighbour:
            self._handle_device(now, arrived, wanted)
        elif wanted.deliver_to is None or wanted.hops >= HOPS_MAX:
            parts.refuse(arrived, Code.MALFORMED)
        elif neighbour == "parent":
            if now < parts.settings.holds_from:
                parts.refuse(arrived, Code.BUSY)  # a child of a former incarnation may decide, and would lack it
            elif touches(wanted.filter, parts.settings.subtree):
                self._store(now, arrived, wanted, parts.get_peer(wanted.deliver_to), neighbour)
            else:
                parts.refuse(arrived, Code.NOT_MINE)
        elif is_inside(wanted.filter, neighbour):
            self._store(now, arrived, wanted, parts.get_peer(wanted.deliver_to), neighbour)
        else:
            parts.refuse(arrived, Code.NOT_AUTHORIZED)

    def _handle_device(self, now: float, arrived: Arrived, wanted: DatagramSubscribe) -> None:
        parts, endpoint = self._parts, arrived.peer.endpoint
        if wanted.deliver_to not in (None, endpoint) or not arrived.is_proved:
            parts.refuse(arrived, Code.NOT_PROVED, cookie=parts.proofs.cookie(endpoint, now))
        elif wanted.filter.startswith("$") or not parts.rights.may_subscribe(arrived.name, wanted.filter, wanted.qos):
            parts.refuse(arrived, Code.NOT_AUTHORIZED)
        elif not parts.holds(now) and not parts.is_waiting(now):
            parts.redirect(now, arrived)
        elif not is_inside(wanted.filter, parts.settings.subtree):
            known = parts.subscribers.get(endpoint, wanted.filter) if wanted.keep_open else None
            if known is None:
                parts.redirect(now, arrived)
            else:  # refreshes its NAT mapping and its session
                known.peer, known.name = arrived.peer, arrived.name
                nodes = tuple(each.peer.endpoint for each in parts.jurisdiction.touched(wanted.filter))
                parts.answer(arrived, PubAck(Code.SUBSCRIBED, nodes, LEASE_S_MAX))
        else:
            wanted = structs.replace(wanted, deliver_to=endpoint, hops=0, cookie=b"", keep_open=False)
            self._store(now, arrived, wanted, arrived.peer, "")

    def _store(
        self, now: float, arrived: Arrived, wanted: DatagramSubscribe, peer: DatagramPeer, neighbour: str
    ) -> None:
        """Store or end a subscription here, pass it on, and answer after all answers."""
        parts, key = self._parts, (peer.endpoint, wanted.filter, wanted.end)
        if (known := self._pending.get(key)) is not None:
            known.arrived = arrived
            return
        lease_s = min(wanted.lease_s or LEASE_S_MAX, LEASE_S_MAX)
        if wanted.end:
            self._remove(peer.endpoint, wanted.filter)
        else:
            name = None if neighbour else arrived.name
            stored = DatagramSubscription(peer, wanted.filter, wanted.qos, now + lease_s, wanted.relay, name)
            if max(len(self._passed), len(self._pending)) >= PASSED_MAX or not parts.subscribers.add(stored):
                parts.refuse(arrived, Code.BUSY)
                return
        children = [each for each in parts.jurisdiction.touched(wanted.filter) if each.subtree != neighbour]
        if wanted.end and parts.subscribers.is_relayed(wanted.filter):
            children = []  # it has other relayed subscribers
        nodes = () if wanted.relay else tuple(each.peer.endpoint for each in children)
        pending = self._pending[key] = _Pending(arrived, key, 1, nodes, lease_s)
        # A restarted root stores it but answers busy: children that it does not know yet still distribute without it.
        pending.is_whole = not parts.is_waiting(now)
        onward = structs.replace(wanted, hops=wanted.hops + 1)
        if wanted.relay and not neighbour:
            onward = structs.replace(onward, deliver_to=parts.settings.endpoint, relay=False)
        for child in children:
            self._forward(now, child.peer, onward, pending)
        if parts.uplink is not None and neighbour != "parent" and not wanted.end:
            self._forward(now, parts.uplink.parent, structs.replace(wanted, hops=wanted.hops + 1, relay=False), pending)
        if parts.settings.attached and not wanted.end:
            self._ask_cluster(wanted.filter, pending)
        self._release(pending)

    def reauthorize(self, now: float) -> None:
        """End subscriptions made here that the rules no longer allow, also at the nodes below."""
        parts = self._parts
        for each in list(parts.subscribers):
            if each.name is None or parts.rights.may_subscribe(each.name, each.filter, each.qos):
                continue
            endpoint = each.peer.endpoint
            self._remove(endpoint, each.filter)
            parts.counts["subscriptions_withdrawn"] += 1
            if each.relay and parts.subscribers.is_relayed(each.filter):
                continue
            destination = parts.settings.endpoint if each.relay else endpoint
            for child in parts.jurisdiction.touched(each.filter):
                self._forward(
                    now, child.peer, DatagramSubscribe(each.filter, each.qos, destination, end=True, hops=1), None
                )

    def prepare(self, now: float, child: Child) -> None:
        """Pass a part of the needed subscriptions to a new child."""
        for _ in range(EXAMINED_MAX):
            if not self.can_continue(child):
                return
            each = child.rest.pop()
            if each.until <= now or not touches(each.filter, child.subtree):
                continue
            endpoint = self._parts.settings.endpoint if each.relay else each.peer.endpoint
            wanted = DatagramSubscribe(each.filter, each.qos, endpoint, max(1, int(each.until - now)), hops=1)
            child.unconfirmed.add((endpoint, each.filter))
            self._forward(now, child.peer, wanted, None, child, each)

    def can_continue(self, child: Child) -> bool:
        """Return whether more subscriptions can be passed to a child now."""
        return bool(child.rest) and len(child.unconfirmed) < PREPARED_MAX

    def answered(self, arrived: Arrived, answer: PubAck) -> Child | None:
        """Handle the answer of another node; return the child that it prepared."""
        passed = self._passed.get(arrived.packet.request)
        if (
            passed is None
            or passed.peer.endpoint != arrived.peer.endpoint
            or not self._parts.get_neighbour(arrived.peer)
        ):
            return None
        del self._passed[arrived.packet.request]
        return self._finish(passed, answer.code == Code.SUBSCRIBED)

    def granted(self, topic_filter: str, is_granted: bool) -> None:
        """Handle the cluster's answer."""
        if is_granted and topic_filter in self._cluster_filters:
            self._granted.add(topic_filter)
        else:
            self._granted.discard(topic_filter)
        for pending in self._cluster.pop(topic_filter, ()):
            pending.is_whole = pending.is_whole and is_granted
            self._release(pending)

    def lost_cluster(self) -> None:
        """Answer all requests that wait for the cluster *busy*."""
        self._granted.clear()  # all are requested again on the next connection
        for topic_filter in list(self._cluster):
            self.granted(topic_filter, False)

    def repeat(self, now: float) -> None:
        """Retry requests, and give up silent nodes."""
        while self._due and self._due[0][0] <= now:
            due, request = heapq.heappop(self._due)
            passed = self._passed.get(request)
            if passed is None or passed.due != due:
                continue
            if passed.tries >= TRIES_MAX:
                del self._passed[request]
                self._parts.counts["nodes_silent"] += 1
                self._finish(passed, False)
            else:
                self._launch(now, request, passed)

    def next_due(self) -> float | None:
        """Return when to call ``repeat`` next."""
        return self._due[0][0] if self._due else None

    def expire(self, now: float) -> None:
        """Remove expired subscriptions."""
        for topic_filter in self._parts.subscribers.expire(now):
            self._parts.counts["subscriptions_expired"] += 1
            self._leave_cluster(topic_filter)

    def _forward(
        self,
        now: float,
        peer: DatagramPeer,
        wanted: DatagramSubscribe,
        pending: _Pending | None,
        child: Child | None = None,
        of: DatagramSubscription | None = None,
    ) -> None:
        request = self._parts.next_request()
        passed = self._passed[request] = _Passed(peer, Datagram(request, wanted), pending, child, of)
        if pending is not None:
            pending.open += 1
        self._launch(now, request, passed)

    def _launch(self, now: float, request: int, passed: _Passed) -> None:
        passed.due = now + RETRY_S * (1 << passed.tries)
        passed.tries += 1
        heapq.heappush(self._due, (passed.due, request))
        self._parts.send(passed.peer, passed.packet)

    def _finish(self, passed: _Passed, is_done: bool) -> Child | None:
        if passed.pending is not None:
            passed.pending.is_whole = passed.pending.is_whole and is_done
            self._release(passed.pending)
        child, wanted = passed.child, passed.packet.body
        if child is None or passed.of is None or not isinstance(wanted, DatagramSubscribe) or wanted.deliver_to is None:
            return None
        child.unconfirmed.discard((wanted.deliver_to, wanted.filter))
        if not is_done:
            child.rest.append(passed.of)  # retried while the child sends JOIN
        return child

    def _release(self, pending: _Pending) -> None:
        pending.open -= 1
        if pending.open:
            return
        del self._pending[pending.key]
        if pending.is_whole:
            self._parts.answer(pending.arrived, PubAck(Code.SUBSCRIBED, pending.nodes, pending.lease_s))
        else:
            self._parts.refuse(pending.arrived, Code.BUSY)

    def _ask_cluster(self, topic_filter: str, pending: _Pending) -> None:
        wanted = restrict(topic_filter, self._parts.settings.subtree)
        self._cluster_filters.setdefault(wanted, set()).add(topic_filter)
        if wanted in self._granted:
            return
        pending.open += 1
        if wanted not in self._cluster:
            self._parts.out.subscribe.append(wanted)
        self._cluster.setdefault(wanted, []).append(pending)

    def _remove(self, endpoint: Endpoint, topic_filter: str) -> None:
        self._parts.subscribers.remove(endpoint, topic_filter)
        self._leave_cluster(topic_filter)

    def _leave_cluster(self, topic_filter: str) -> None:
        wanted = restrict(topic_filter, self._parts.settings.subtree)
        wanting = self._cluster_filters.get(wanted)
        if wanting is None or self._parts.subscribers.has(topic_filter):
            return
        wanting.discard(topic_filter)
        if not wanting:
            del self._cluster_filters[wanted]
            self._granted.discard(wanted)
            self._parts.out.unsubscribe.append(wanted)
