"""A device of the six messages: it resolves, publishes, subscribes, renews, and answers deliveries.

Used by ``gateway udp pub`` and ``sub``, and as the client in tests and simulation. Sans-IO: ``handle(now, events)``,
``next_deadline``. A QoS 1 message is repeated with its number until a node answers or ``give_up_s`` has passed. After
five unanswered tries, or an answer NOT_MINE, the node is resolved again.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from msgspec import Struct, field

from gateways.datagrams.deliveries import RETRY_S, TRIES_MAX
from gateways.datagrams.messages import (
    Body,
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    PubAccept,
    PubAck,
    PubConnect,
)
from gateways.datagrams.proofs import COOKIE_BYTES

__all__ = ["Device", "DeviceReady", "RequestResult"]

LEASE_S = 300
PROBE_S = 1.0  # retry interval of the oldest message of a topic; the others back off
RENEW_S = 20.0  # keeps a NAT mapping, and is shorter than the restart wait of a root
OUTSTANDING_MAX = 64
AHEAD_MAX = 512  # messages ahead of an unanswered one: a node remembers 1 024 numbers per publisher
NODES_MAX = 1_000  # with remembered numbers and cookies
ROUTES_MAX = 10_000
NUMBERS_KEPT = 1_024
FILLER = bytes(COOKIE_BYTES)  # makes a first request long enough for an answer with a cookie


class RequestResult(NamedTuple):
    """Result of a publish or a subscription: the answer's code, -1 for no answer."""

    ref: int
    code: int
    receivers: int = 0


class _Request(Struct):
    """One pending request; ``is_named``: its node was named in an earlier answer."""

    ref: int
    body: Body
    began: float
    topic: str = ""
    target: Endpoint | None = None
    is_named: bool = False
    tries: int = 0
    due: float = 0.0
    index: int = 0  # sequence number of a message


class DeviceReady(Struct):
    """Output of a step: packets to send, received messages, and results."""

    send: list[tuple[Endpoint, Datagram]] = field(default_factory=list)
    delivered: list[DatagramPublish] = field(default_factory=list)
    outcomes: list[RequestResult] = field(default_factory=list)


class Device:
    """One device, at one address."""

    def __init__(self, homes: tuple[Endpoint, ...], first_number: int, give_up_s: float = 60.0, relay: bool = False):
        """Set up.

        Args:
          homes: Nodes for first requests, in rotation.
          first_number: Above all numbers that this address has used.
          give_up_s: Time limit of one message or subscription.
          relay: Deliveries must come through the queried node.
        """
        self._homes, self._home = homes, 0
        self._number = first_number
        self._give_up_s, self._relay = give_up_s, relay
        self._out = DeviceReady()
        self._requests: dict[int, _Request] = {}  # by request number; oldest first
        self._next_due = math.inf  # earliest due time of all requests
        self._published = 0  # messages so far
        self._queued: deque[_Request] = deque()
        self._routes: dict[str, tuple[Endpoint, int]] = {}  # by topic: the deciding node, and its topic number
        self._cookies: dict[Endpoint, bytes] = {}
        self._received_numbers: dict[Endpoint, dict[int, None]] = {}
        self._subscriptions: dict[
            tuple[str, Endpoint | None], tuple[int, float]
        ] = {}  # by filter and node: QoS, next renewal

    @property
    def open(self) -> int:
        """Pending publishes and subscriptions."""
        return len(self._requests) + len(self._queued)

    def publish(self, now: float, ref: int, topic: str, payload: bytes, qos: int) -> None:
        """Send a message; its result has the same ``ref``."""
        self._number += 1
        self._published += 1
        pending = _Request(ref, DatagramPublish(topic, payload, qos, self._number), now, topic, index=self._published)
        self._queued.append(pending)
        self._send_queued(now)

    def subscribe(self, now: float, ref: int, topic_filter: str, qos: int) -> None:
        """Subscribe, and renew every 20 s."""
        self._subscriptions[topic_filter, None] = (qos, now + RENEW_S)
        self._start_request(
            now, _Request(ref, DatagramSubscribe(topic_filter, qos, relay=self._relay, cookie=FILLER), now)
        )

    def take_output(self) -> DeviceReady:
        """Return the output since the last call."""
        out, self._out = self._out, DeviceReady()
        return out

    def handle(self, now: float, arrived: list[tuple[Endpoint, Datagram]]) -> DeviceReady:
        """Handle datagrams and the time."""
        for endpoint, packet in arrived:
            match packet.body:
                case DatagramPublish() as message:
                    self._on_publish(endpoint, packet, message)
                case PubAck() as answer:
                    self._on_answer(now, endpoint, packet.request, answer)
                case PubAccept() as accept:
                    self._on_accept(now, endpoint, packet.request, accept)
                case _:
                    pass  # requests are for nodes
        if self._next_due <= now:
            self._next_due = math.inf
            for request, pending in [each for each in self._requests.items() if each[1].due <= now]:
                self._retry(now, request, pending)
            self._next_due = min((pending.due for pending in self._requests.values()), default=math.inf)
        self._renew(now)
        self._send_queued(now)
        return self.take_output()

    def next_deadline(self) -> float | None:
        """Return when to call ``handle`` without datagrams."""
        times = [pending.due for pending in self._requests.values()]
        times += [due for _, due in self._subscriptions.values()]
        return min(times, default=None)

    def _send_queued(self, now: float) -> None:
        """Send queued messages within AHEAD_MAX of the oldest pending one."""
        while self._queued and len(self._requests) < OUTSTANDING_MAX:
            oldest = next((each.index for each in self._requests.values() if each.index), self._queued[0].index)
            if self._queued[0].index - oldest >= AHEAD_MAX:
                return
            self._start_request(now, self._queued.popleft())

    def _start_request(self, now: float, pending: _Request) -> None:
        self._number += 1
        self._requests[self._number] = pending
        self._send(now, self._number, pending)

    def _send(self, now: float, request: int, pending: _Request) -> None:
        body, target = pending.body, pending.target
        if isinstance(body, DatagramPublish):
            route = self._routes.get(pending.topic)
            if route is None:
                body, target = PubConnect(pending.topic, cookie=FILLER), self._at_home()
            else:
                target, number = route
                topic = "" if number else body.topic
                body = DatagramPublish(
                    topic, body.payload, body.qos, body.number, number, self._cookies.get(target, b"")
                )
        elif isinstance(body, DatagramSubscribe):
            target = target or self._at_home()
            cookie = self._cookies.get(target, FILLER)
            body = DatagramSubscribe(
                body.filter, body.qos, None, LEASE_S, False, 0, cookie, body.relay, pending.is_named
            )
        pending.tries += 1
        wait_s = RETRY_S * (1 << min(pending.tries - 1, TRIES_MAX))
        if wait_s > PROBE_S and self._is_probe(pending):
            wait_s = PROBE_S
        self._set_due(pending, now + wait_s)
        self._out.send.append((target or self._at_home(), Datagram(request, body)))

    def _is_probe(self, pending: _Request) -> bool:
        """Return whether this is the oldest message of its topic, which probes the node."""
        return bool(pending.topic) and pending is next(
            each for each in self._requests.values() if each.topic == pending.topic
        )

    def _retry_topic(self, now: float, topic: str) -> None:
        """Retry backed-off messages at once: the node answers again."""
        for pending in self._requests.values():
            if pending.topic == topic and pending.due > now + RETRY_S:
                self._set_due(pending, now)

    def _set_due(self, pending: _Request, due: float) -> None:
        pending.due = due
        self._next_due = min(self._next_due, due)

    def _at_home(self) -> Endpoint:
        return self._homes[self._home % len(self._homes)]

    def _retry(self, now: float, request: int, pending: _Request) -> None:
        if pending.is_named and pending.tries >= TRIES_MAX:
            self._drop(request, pending)
            return
        if now - pending.began >= self._give_up_s:
            del self._requests[request]
            if pending.ref >= 0:
                self._out.outcomes.append(RequestResult(pending.ref, -1))
            return
        if pending.tries >= TRIES_MAX:
            pending.tries = 0
            pending.target = None
            self._home += 1
            self._routes.pop(pending.topic, None)
        self._send(now, request, pending)

    def _on_accept(self, now: float, endpoint: Endpoint, request: int, accept: PubAccept) -> None:
        pending = self._requests.get(request)
        if pending is None or not pending.topic:
            return
        self._store_cookie(endpoint, accept.cookie)
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[pending.topic] = (endpoint, accept.topic_number)
        pending.tries = 0
        self._send(now, request, pending)

    def _on_answer(self, now: float, endpoint: Endpoint, request: int, answer: PubAck) -> None:
        pending = self._requests.get(request)
        if pending is None:
            return
        self._store_cookie(endpoint, answer.cookie)
        match answer.code:
            case Code.NOT_MINE:
                self._redirect(now, request, pending, answer)
            case Code.NOT_PROVED if answer.cookie:
                self._send(now, request, pending)
            case Code.BUSY:
                self._set_due(pending, now + RETRY_S)
                pending.tries = 0
            case _:
                del self._requests[request]
                if pending.topic and now - pending.began > RETRY_S:
                    self._retry_topic(now, pending.topic)
                if answer.code == Code.SUBSCRIBED and isinstance(pending.body, DatagramSubscribe):
                    self._on_subscribed(now, pending, pending.body, answer)
                else:
                    self._out.outcomes.append(RequestResult(pending.ref, answer.code, answer.receivers))

    def _redirect(self, now: float, request: int, pending: _Request, answer: PubAck) -> None:
        if pending.topic:
            self._routes.pop(pending.topic, None)
            if answer.nodes:
                self._routes[pending.topic] = (answer.nodes[0], 0)
        elif pending.is_named:
            self._drop(request, pending)  # a node that is named again gets a new request
            return
        elif answer.nodes:
            pending.target = answer.nodes[0]
        if pending.tries < TRIES_MAX:
            self._send(now, request, pending)
        else:
            self._set_due(pending, now + RETRY_S)  # possibly a loop: continue after a pause

    def _on_subscribed(self, now: float, pending: _Request, wanted: DatagramSubscribe, answer: PubAck) -> None:
        """Schedule renewals there, and subscribe at the other named nodes."""
        if pending.ref >= 0:
            self._out.outcomes.append(RequestResult(pending.ref, answer.code))
        self._subscriptions[wanted.filter, pending.target if pending.is_named else None] = (wanted.qos, now + RENEW_S)
        for node in answer.nodes:
            if (wanted.filter, node) not in self._subscriptions:
                self._subscriptions[wanted.filter, node] = (wanted.qos, now + RENEW_S)
                self._start_request(now, _Request(-1, wanted, now, target=node, is_named=True))

    def _drop(self, request: int, pending: _Request) -> None:
        """Remove a request and its renewals at a named node."""
        del self._requests[request]
        if isinstance(pending.body, DatagramSubscribe):
            self._subscriptions.pop((pending.body.filter, pending.target), None)

    def _renew(self, now: float) -> None:
        for (topic_filter, node), (qos, due) in list(self._subscriptions.items()):
            if due <= now:
                self._subscriptions[topic_filter, node] = (qos, now + RENEW_S)
                wanted = DatagramSubscribe(topic_filter, qos, relay=self._relay)
                self._start_request(now, _Request(-1, wanted, now, target=node, is_named=node is not None))

    def _on_publish(self, endpoint: Endpoint, packet: Datagram, message: DatagramPublish) -> None:
        numbers = self._received_numbers.pop(endpoint, {})
        while len(self._received_numbers) >= NODES_MAX:
            del self._received_numbers[next(iter(self._received_numbers))]
        self._received_numbers[endpoint] = numbers
        if message.qos:
            self._out.send.append((endpoint, Datagram(packet.request, PubAck(Code.DELIVERED))))
        if message.number not in numbers:
            if len(numbers) >= NUMBERS_KEPT:
                del numbers[next(iter(numbers))]
            numbers[message.number] = None
            self._out.delivered.append(message)

    def _store_cookie(self, endpoint: Endpoint, cookie: bytes) -> None:
        if cookie:
            self._cookies.pop(endpoint, None)
            while len(self._cookies) >= NODES_MAX:
                del self._cookies[next(iter(self._cookies))]
            self._cookies[endpoint] = cookie
