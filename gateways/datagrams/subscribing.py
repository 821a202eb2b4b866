"""SUBSCRIBE: stored here, passed to each node whose subtree the filter touches, answered when all have it.

A device asks a node whose subtree contains the whole filter, and is sent up to it otherwise. From there a subscription
goes down into each child that the filter touches, and up to all parents, who keep it for the day that they take the
subtree back. Passed on it is repeated five times; a node that does not answer makes the answer *busy*, and the device
asks again. Nodes below, which the answer names, are asked with ``keep_open``: it renews nothing, and who asks without
it is sent up, whatever is known of the filter (docs/adr/0161-keep-open.md). Subscriptions of a child's own subtree are
all that a child is believed.
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
from gateways.datagrams.subtrees import cut, is_inside, touches

__all__ = ["LEASE_S_MAX", "DatagramSubscriptions"]

LEASE_S_MAX = 300
PASSED_MAX = 10_000  # questions to other nodes under way
PREPARED_MAX = 64  # of them to a new child
LOOKED_AT_MAX = 500  # subscriptions of one turn, for a new child


class _Pending(Struct):
    """A SUBSCRIBE whose answer waits for other nodes, or for the cluster; a repeat takes the place of the first."""

    arrived: Arrived
    key: tuple[Endpoint, str, bool]
    open: int
    nodes: tuple[Endpoint, ...]
    lease_s: int
    is_whole: bool = True


class _Passed(Struct):
    """One question to another node; ``child`` is the one that it prepares, by ``of``."""

    peer: DatagramPeer
    packet: Datagram
    pending: _Pending | None
    child: Child | None = None
    of: DatagramSubscription | None = None
    tries: int = 0
    due: float = 0.0


class DatagramSubscriptions:
    """The subscriptions of one node, and their way through the tree."""

    def __init__(self, parts: NodeContext) -> None:
        self._parts = parts
        self._passed: dict[int, _Passed] = {}  # by request
        self._due: list[tuple[float, int]] = []
        self._cluster: dict[str, list[_Pending]] = {}  # filters that the cluster was asked for
        self._granted: set[str] = set()  # filters that the cluster gave
        self._pending: dict[tuple[Endpoint, str, bool], _Pending] = {}  # by address, filter and whether it ends
        self._wants: dict[str, set[str]] = {}  # a filter at the cluster, and those of subscribers that it serves

    def asked(self, now: float, arrived: Arrived, wanted: DatagramSubscribe) -> None:
        """Take a SUBSCRIBE."""
        parts = self._parts
        neighbour = parts.neighbour(arrived.peer)
        if not neighbour:
            self._device(now, arrived, wanted)
        elif wanted.deliver_to is None or wanted.hops >= HOPS_MAX:
            parts.refuse(arrived, Code.MALFORMED)
        elif neighbour == "parent":
            if now < parts.settings.holds_from:
                parts.refuse(arrived, Code.BUSY)  # a child of an incarnation before may decide, and would not have it
            elif touches(wanted.filter, parts.settings.subtree):
                self._store(now, arrived, wanted, parts.reach(wanted.deliver_to), neighbour)
            else:
                parts.refuse(arrived, Code.NOT_MINE)
        elif is_inside(wanted.filter, neighbour):
            self._store(now, arrived, wanted, parts.reach(wanted.deliver_to), neighbour)
        else:
            parts.refuse(arrived, Code.NOT_AUTHORIZED)

    def _device(self, now: float, arrived: Arrived, wanted: DatagramSubscribe) -> None:
        parts, endpoint = self._parts, arrived.peer.endpoint
        if wanted.deliver_to not in (None, endpoint) or not arrived.is_proved:
            parts.refuse(arrived, Code.NOT_PROVED, cookie=parts.proofs.cookie(endpoint, now))
        elif wanted.filter.startswith("$") or not parts.rights.may_subscribe(arrived.name, wanted.filter, wanted.qos):
            parts.refuse(arrived, Code.NOT_AUTHORIZED)
        elif not parts.holds(now) and not parts.is_waiting(now):
            parts.elsewhere(now, arrived)
        elif not is_inside(wanted.filter, parts.settings.subtree):
            known = parts.subscribers.get(endpoint, wanted.filter) if wanted.keep_open else None
            if known is None:
                parts.elsewhere(now, arrived)
            else:  # its way here stays open, and its session is known here from now on
                known.peer, known.name = arrived.peer, arrived.name
                nodes = tuple(each.peer.endpoint for each in parts.jurisdiction.touched(wanted.filter))
                parts.answer(arrived, PubAck(Code.SUBSCRIBED, nodes, LEASE_S_MAX))
        else:
            wanted = structs.replace(wanted, deliver_to=endpoint, hops=0, cookie=b"", keep_open=False)
            self._store(now, arrived, wanted, arrived.peer, "")

    def _store(
        self, now: float, arrived: Arrived, wanted: DatagramSubscribe, peer: DatagramPeer, neighbour: str
    ) -> None:
        """Store or end it here, pass it on, and answer when all have answered."""
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
            children = []  # others go on to have it by way of this node
        nodes = () if wanted.relay else tuple(each.peer.endpoint for each in children)
        pending = self._pending[key] = _Pending(arrived, key, 1, nodes, lease_s)
        # A root that has just begun stores it for the time when it decides, and is busy: children that it does not know
        # yet still distribute, and do not have it.
        pending.is_whole = not parts.is_waiting(now)
        onward = structs.replace(wanted, hops=wanted.hops + 1)
        if wanted.relay and not neighbour:
            onward = structs.replace(onward, deliver_to=parts.settings.endpoint, relay=False)
        for child in children:
            self._pass(now, child.peer, onward, pending)
        if parts.uplink is not None and neighbour != "parent" and not wanted.end:
            self._pass(now, parts.uplink.parent, structs.replace(wanted, hops=wanted.hops + 1, relay=False), pending)
        if parts.settings.attached and not wanted.end:
            self._ask_cluster(wanted.filter, pending)
        self._settle(pending)

    def judge_again(self, now: float) -> None:
        """End what the rules give no more to who asked for it here, at the nodes below as well."""
        parts = self._parts
        for each in list(parts.subscribers):
            if each.name is None or parts.rights.may_subscribe(each.name, each.filter, each.qos):
                continue
            endpoint = each.peer.endpoint
            self._remove(endpoint, each.filter)
            parts.counts["subscriptions_withdrawn"] += 1
            if each.relay and parts.subscribers.is_relayed(each.filter):
                continue
            told = parts.settings.endpoint if each.relay else endpoint
            for child in parts.jurisdiction.touched(each.filter):
                self._pass(now, child.peer, DatagramSubscribe(each.filter, each.qos, told, end=True, hops=1), None)

    def prepare(self, now: float, child: Child) -> None:
        """Pass to a new child some of what it needs to decide about its subtree."""
        for _ in range(LOOKED_AT_MAX):
            if not self.may_go_on(child):
                return
            each = child.rest.pop()
            if each.until <= now or not touches(each.filter, child.subtree):
                continue
            endpoint = self._parts.settings.endpoint if each.relay else each.peer.endpoint
            wanted = DatagramSubscribe(each.filter, each.qos, endpoint, max(1, int(each.until - now)), hops=1)
            child.unconfirmed.add((endpoint, each.filter))
            self._pass(now, child.peer, wanted, None, child, each)

    def may_go_on(self, child: Child) -> bool:
        """Return whether a child can be passed more now."""
        return bool(child.rest) and len(child.unconfirmed) < PREPARED_MAX

    def answered(self, arrived: Arrived, answer: PubAck) -> Child | None:
        """Take the answer of another node; return the child that it was passed for."""
        passed = self._passed.get(arrived.packet.request)
        if passed is None or passed.peer.endpoint != arrived.peer.endpoint or not self._parts.neighbour(arrived.peer):
            return None
        del self._passed[arrived.packet.request]
        return self._over(passed, answer.code == Code.SUBSCRIBED)

    def granted(self, topic_filter: str, is_granted: bool) -> None:
        """Take the cluster's answer."""
        if is_granted and topic_filter in self._wants:
            self._granted.add(topic_filter)
        else:
            self._granted.discard(topic_filter)
        for pending in self._cluster.pop(topic_filter, ()):
            pending.is_whole = pending.is_whole and is_granted
            self._settle(pending)

    def lost_cluster(self) -> None:
        """Answer who waits for the cluster, which is away."""
        self._granted.clear()  # each is asked for again on the next connection
        for topic_filter in list(self._cluster):
            self.granted(topic_filter, False)

    def repeat(self, now: float) -> None:
        """Ask again, and give up who does not answer."""
        while self._due and self._due[0][0] <= now:
            due, request = heapq.heappop(self._due)
            passed = self._passed.get(request)
            if passed is None or passed.due != due:
                continue
            if passed.tries >= TRIES_MAX:
                del self._passed[request]
                self._parts.counts["nodes_silent"] += 1
                self._over(passed, False)
            else:
                self._launch(now, request, passed)

    def next_due(self) -> float | None:
        """Return when to call ``repeat`` next."""
        return self._due[0][0] if self._due else None

    def expire(self, now: float) -> None:
        """Forget what was not renewed."""
        for topic_filter in self._parts.subscribers.expire(now):
            self._parts.counts["subscriptions_expired"] += 1
            self._leave_cluster(topic_filter)

    def _pass(
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

    def _over(self, passed: _Passed, is_done: bool) -> Child | None:
        if passed.pending is not None:
            passed.pending.is_whole = passed.pending.is_whole and is_done
            self._settle(passed.pending)
        child, wanted = passed.child, passed.packet.body
        if child is None or passed.of is None or not isinstance(wanted, DatagramSubscribe) or wanted.deliver_to is None:
            return None
        child.unconfirmed.discard((wanted.deliver_to, wanted.filter))
        if not is_done:
            child.rest.append(passed.of)  # for as long as it asks, it is tried
        return child

    def _settle(self, pending: _Pending) -> None:
        pending.open -= 1
        if pending.open:
            return
        del self._pending[pending.key]
        if pending.is_whole:
            self._parts.answer(pending.arrived, PubAck(Code.SUBSCRIBED, pending.nodes, pending.lease_s))
        else:
            self._parts.refuse(pending.arrived, Code.BUSY)

    def _ask_cluster(self, topic_filter: str, pending: _Pending) -> None:
        wanted = cut(topic_filter, self._parts.settings.subtree)
        self._wants.setdefault(wanted, set()).add(topic_filter)
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
        wanted = cut(topic_filter, self._parts.settings.subtree)
        wanting = self._wants.get(wanted)
        if wanting is None or self._parts.subscribers.has(topic_filter):
            return
        wanting.discard(topic_filter)
        if not wanting:
            del self._wants[wanted]
            self._granted.discard(wanted)
            self._parts.out.unsubscribe.append(wanted)
