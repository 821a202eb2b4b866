"""A device of the six messages: it resolves, publishes, subscribes, renews, and answers what it is sent.

What ``gateway udp pub`` and ``sub`` run, and what the tests and the simulation use as clients. Sans-IO:
``handle(now, events)``, ``next_deadline``. A message of QoS 1 is repeated with its number until a node answers or
``give_up_s`` is over; a node that is silent for five tries, or says that it does not decide, is looked for again.
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
PROBE_S = 1.0  # between repeats of the oldest message of a topic, others of which wait longer and longer
RENEW_S = 20.0  # keeps the way through a NAT open, and outlives the restart of a root
OUTSTANDING_MAX = 64
AHEAD_MAX = 512  # messages that may pass one which is not answered: a node remembers 1 024 of each publisher
NODES_MAX = 1_000  # whose numbers and cookies are remembered
ROUTES_MAX = 10_000
NUMBERS_KEPT = 1_024
FILLER = bytes(COOKIE_BYTES)  # makes a first question so long that the answer has room for a cookie


class RequestResult(NamedTuple):
    """How a publish or a subscription ended: the answer's code, -1 for nobody's answer."""

    ref: int
    code: int
    receivers: int = 0


class _Question(Struct):
    """One thing that is asked until it is answered; ``is_named``: of a node that a first one named."""

    ref: int
    body: Body
    began: float
    topic: str = ""
    target: Endpoint | None = None
    is_named: bool = False
    tries: int = 0
    due: float = 0.0
    index: int = 0  # of a message, among all


class DeviceReady(Struct):
    """Output of a step: packets to send, messages that came, and what ended."""

    send: list[tuple[Endpoint, Datagram]] = field(default_factory=list)
    delivered: list[DatagramPublish] = field(default_factory=list)
    outcomes: list[RequestResult] = field(default_factory=list)


class Device:
    """One device, at one address."""

    def __init__(self, homes: tuple[Endpoint, ...], first_number: int, give_up_s: float = 60.0, relay: bool = False):
        """Set up.

        Args:
            homes: Nodes that are asked first, in turn.
            first_number: Above all numbers that this address has used before.
            give_up_s: How long one message or subscription is tried.
            relay: Everything is to come through the node that is asked.
        """
        self._homes, self._home = homes, 0
        self._number = first_number
        self._give_up_s, self._relay = give_up_s, relay
        self._out = DeviceReady()
        self._asked: dict[int, _Question] = {}  # by request; the oldest first
        self._look_at = math.inf  # no question is due before
        self._published = 0  # messages so far
        self._waiting: deque[_Question] = deque()
        self._routes: dict[str, tuple[Endpoint, int]] = {}  # by topic: who decides, and its number
        self._cookies: dict[Endpoint, bytes] = {}
        self._seen: dict[Endpoint, dict[int, None]] = {}
        self._wanted: dict[tuple[str, Endpoint | None], tuple[int, float]] = {}  # filter and node: QoS, next renewal

    @property
    def open(self) -> int:
        """Publishes and subscriptions that have not ended."""
        return len(self._asked) + len(self._waiting)

    def publish(self, now: float, ref: int, topic: str, payload: bytes, qos: int) -> None:
        """Send a message; its outcome has the same ``ref``."""
        self._number += 1
        self._published += 1
        question = _Question(ref, DatagramPublish(topic, payload, qos, self._number), now, topic, index=self._published)
        self._waiting.append(question)
        self._go_on(now)

    def subscribe(self, now: float, ref: int, topic_filter: str, qos: int) -> None:
        """Ask for a filter, and go on asking each 20 s."""
        self._wanted[topic_filter, None] = (qos, now + RENEW_S)
        self._ask(now, _Question(ref, DatagramSubscribe(topic_filter, qos, relay=self._relay, cookie=FILLER), now))

    def take_output(self) -> DeviceReady:
        """Return what has gathered since the last time."""
        out, self._out = self._out, DeviceReady()
        return out

    def handle(self, now: float, arrived: list[tuple[Endpoint, Datagram]]) -> DeviceReady:
        """Take datagrams, and the time."""
        for endpoint, packet in arrived:
            match packet.body:
                case DatagramPublish() as message:
                    self._delivered(endpoint, packet, message)
                case PubAck() as answer:
                    self._answered(now, endpoint, packet.request, answer)
                case PubAccept() as accept:
                    self._accepted(now, endpoint, packet.request, accept)
                case _:
                    pass  # questions are for nodes
        if self._look_at <= now:
            self._look_at = math.inf
            for request, question in [each for each in self._asked.items() if each[1].due <= now]:
                self._again(now, request, question)
            self._look_at = min((question.due for question in self._asked.values()), default=math.inf)
        self._renew(now)
        self._go_on(now)
        return self.take_output()

    def next_deadline(self) -> float | None:
        """Return when to call ``handle`` without datagrams."""
        times = [question.due for question in self._asked.values()]
        times += [due for _, due in self._wanted.values()]
        return min(times, default=None)

    def _go_on(self, now: float) -> None:
        """Send messages that wait, as far as the oldest one under way lets others pass."""
        while self._waiting and len(self._asked) < OUTSTANDING_MAX:
            oldest = next((each.index for each in self._asked.values() if each.index), self._waiting[0].index)
            if self._waiting[0].index - oldest >= AHEAD_MAX:
                return
            self._ask(now, self._waiting.popleft())

    def _ask(self, now: float, question: _Question) -> None:
        self._number += 1
        self._asked[self._number] = question
        self._send(now, self._number, question)

    def _send(self, now: float, request: int, question: _Question) -> None:
        body, target = question.body, question.target
        if isinstance(body, DatagramPublish):
            route = self._routes.get(question.topic)
            if route is None:
                body, target = PubConnect(question.topic, cookie=FILLER), self._at_home()
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
                body.filter, body.qos, None, LEASE_S, False, 0, cookie, body.relay, question.is_named
            )
        question.tries += 1
        wait_s = RETRY_S * (1 << min(question.tries - 1, TRIES_MAX))
        if wait_s > PROBE_S and self._is_probe(question):
            wait_s = PROBE_S
        self._set_due(question, now + wait_s)
        self._out.send.append((target or self._at_home(), Datagram(request, body)))

    def _is_probe(self, question: _Question) -> bool:
        """Return whether this is the oldest message of its topic: what notices that a node is there again."""
        return bool(question.topic) and question is next(
            each for each in self._asked.values() if each.topic == question.topic
        )

    def _hurry(self, now: float, topic: str) -> None:
        """Send again what waits long, for the node is there."""
        for question in self._asked.values():
            if question.topic == topic and question.due > now + RETRY_S:
                self._set_due(question, now)

    def _set_due(self, question: _Question, due: float) -> None:
        question.due = due
        self._look_at = min(self._look_at, due)

    def _at_home(self) -> Endpoint:
        return self._homes[self._home % len(self._homes)]

    def _again(self, now: float, request: int, question: _Question) -> None:
        if question.is_named and question.tries >= TRIES_MAX:
            self._drop(request, question)
            return
        if now - question.began >= self._give_up_s:
            del self._asked[request]
            if question.ref >= 0:
                self._out.outcomes.append(RequestResult(question.ref, -1))
            return
        if question.tries >= TRIES_MAX:
            question.tries = 0
            question.target = None
            self._home += 1
            self._routes.pop(question.topic, None)
        self._send(now, request, question)

    def _accepted(self, now: float, endpoint: Endpoint, request: int, accept: PubAccept) -> None:
        question = self._asked.get(request)
        if question is None or not question.topic:
            return
        self._note_cookie(endpoint, accept.cookie)
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[question.topic] = (endpoint, accept.topic_number)
        question.tries = 0
        self._send(now, request, question)

    def _answered(self, now: float, endpoint: Endpoint, request: int, answer: PubAck) -> None:
        question = self._asked.get(request)
        if question is None:
            return
        self._note_cookie(endpoint, answer.cookie)
        match answer.code:
            case Code.NOT_MINE:
                self._elsewhere(now, request, question, answer)
            case Code.NOT_PROVED if answer.cookie:
                self._send(now, request, question)
            case Code.BUSY:
                self._set_due(question, now + RETRY_S)
                question.tries = 0
            case _:
                del self._asked[request]
                if question.topic and now - question.began > RETRY_S:
                    self._hurry(now, question.topic)
                if answer.code == Code.SUBSCRIBED and isinstance(question.body, DatagramSubscribe):
                    self._subscribed(now, question, question.body, answer)
                else:
                    self._out.outcomes.append(RequestResult(question.ref, answer.code, answer.receivers))

    def _elsewhere(self, now: float, request: int, question: _Question, answer: PubAck) -> None:
        if question.topic:
            self._routes.pop(question.topic, None)
            if answer.nodes:
                self._routes[question.topic] = (answer.nodes[0], 0)
        elif question.is_named:
            self._drop(request, question)  # a node that is named again is asked again
            return
        elif answer.nodes:
            question.target = answer.nodes[0]
        if question.tries < TRIES_MAX:
            self._send(now, request, question)
        else:
            self._set_due(question, now + RETRY_S)  # a circle: it is followed, but not without rest

    def _subscribed(self, now: float, question: _Question, wanted: DatagramSubscribe, answer: PubAck) -> None:
        """Renew there from now on, and go to the other nodes that must know this address."""
        if question.ref >= 0:
            self._out.outcomes.append(RequestResult(question.ref, answer.code))
        self._wanted[wanted.filter, question.target if question.is_named else None] = (wanted.qos, now + RENEW_S)
        for node in answer.nodes:
            if (wanted.filter, node) not in self._wanted:
                self._wanted[wanted.filter, node] = (wanted.qos, now + RENEW_S)
                self._ask(now, _Question(-1, wanted, now, target=node, is_named=True))

    def _drop(self, request: int, question: _Question) -> None:
        """Ask a node that was named no more."""
        del self._asked[request]
        if isinstance(question.body, DatagramSubscribe):
            self._wanted.pop((question.body.filter, question.target), None)

    def _renew(self, now: float) -> None:
        for (topic_filter, node), (qos, due) in list(self._wanted.items()):
            if due <= now:
                self._wanted[topic_filter, node] = (qos, now + RENEW_S)
                wanted = DatagramSubscribe(topic_filter, qos, relay=self._relay)
                self._ask(now, _Question(-1, wanted, now, target=node, is_named=node is not None))

    def _delivered(self, endpoint: Endpoint, packet: Datagram, message: DatagramPublish) -> None:
        numbers = self._seen.pop(endpoint, {})
        while len(self._seen) >= NODES_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[endpoint] = numbers
        if message.qos:
            self._out.send.append((endpoint, Datagram(packet.request, PubAck(Code.DELIVERED))))
        if message.number not in numbers:
            if len(numbers) >= NUMBERS_KEPT:
                del numbers[next(iter(numbers))]
            numbers[message.number] = None
            self._out.delivered.append(message)

    def _note_cookie(self, endpoint: Endpoint, cookie: bytes) -> None:
        if cookie:
            self._cookies.pop(endpoint, None)
            while len(self._cookies) >= NODES_MAX:
                del self._cookies[next(iter(self._cookies))]
            self._cookies[endpoint] = cookie
