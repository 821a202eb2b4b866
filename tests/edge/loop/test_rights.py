"""Authorization decisions in the loop: requested once, cached by class on the Route, void after a change of rules."""

from typing import Any

import pytest

from tests.clients.packets import ack
from tests.clients.packets import publish as packet_of
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import Push, PushAck, decode_push_acks, encode_push
from wire.messages.frames import FrameKind

EACH_QOS, RETAINED, OF_CLASS = 0x07, 0x38, 0x40
DENIED = 0x87


class Rules:
    """The core's decisions by client and topic, and the loop's requests."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.classes: dict[Any, int] = {}
        self.answers: dict[bytes, int] = {}
        self.requests: list[tuple[Any, bytes]] = []
        broker.hot.authorizing = True
        broker.handler.authorize = self.authorize  # type: ignore[method-assign]

    def authorize(self, conn: Any, topic: bytes, retain: bool) -> int:
        del retain
        self.requests.append((conn, topic))
        self.broker.hot.join_class(conn, self.classes.get(conn, -1))
        return self.answers.get(topic, 0)

    def taken(self) -> list[bytes]:
        topics = [topic for _, topic in self.requests]
        self.requests.clear()
        return topics


def publish(topic: bytes, payload: bytes = b"", qos: int = 0, number: int = 0, version: int = 4) -> bytes:
    return packet_of(topic, payload, qos, number, version)


def received(broker: Broker, sub: Any) -> list[bytes]:
    return [packet[4 : 4 + packet[3]] for packet in broker.take(sub)]


def test_authorize_is_called_once_per_class(hot: Any) -> None:
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"yes": EACH_QOS | OF_CLASS, b"no": OF_CLASS}
    sub = broker.subscriber(b"#")
    first, second, other = broker.client(5), broker.client(5), broker.client(5)
    rules.classes = {first: 3, second: 3, other: 63}
    for conn in (first, second):
        broker.send(conn, (publish(b"yes", version=5) + publish(b"no", version=5)) * 2)
    assert rules.taken() == [b"yes", b"no", b"yes"]  # the first request of the second connection sets its class
    broker.send(first, (publish(b"yes", version=5) + publish(b"no", version=5)) * 2)
    broker.send(second, (publish(b"no", version=5) + publish(b"yes", version=5)) * 2)
    assert rules.taken() == []
    assert received(broker, sub) == [b"yes"] * 8
    rules.answers = {b"yes": OF_CLASS}
    broker.send(other, publish(b"yes", version=5))  # another class has another bit
    assert rules.taken() == [b"yes"]
    assert received(broker, sub) == []


def test_client_decision_does_not_apply_to_others(hot: Any) -> None:
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"own": EACH_QOS}
    sub = broker.subscriber(b"#")
    first, second = broker.client(), broker.client()
    rules.classes = {first: 0, second: 0}
    broker.send(first, publish(b"own") * 2 + publish(b"x") + publish(b"own"))
    assert rules.taken() == [b"own", b"x"]
    rules.answers = {}
    broker.send(second, publish(b"own"))
    assert rules.taken() == [b"own"]
    assert received(broker, sub) == [b"own"] * 3


def test_client_decision_is_void_after_its_permissions_change(hot: Any) -> None:
    """It is on the Route, separate from other clients' decisions, and at the connection."""
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"own": EACH_QOS, b"x": EACH_QOS}
    sub = broker.subscriber(b"#")
    first, second = broker.client(), broker.client()
    for conn in (first, second, first, second):
        broker.send(conn, publish(b"own") + publish(b"x") + publish(b"own"))
    assert rules.requests == [(conn, topic) for conn in (first, second) for topic in (b"own", b"x")]
    rules.taken()
    rules.answers = {b"x": EACH_QOS}
    broker.hot.forget_verdicts(first)
    assert len(received(broker, sub)) == 12
    broker.send(first, publish(b"own") + publish(b"x") + publish(b"own"))
    assert rules.requests == [(first, b"own"), (first, b"x")]
    assert received(broker, sub) == [b"x"]
    broker.send(second, publish(b"own") + publish(b"x"))  # its permissions did not change
    assert len(rules.requests) == 2 and received(broker, sub) == [b"own", b"x"]


def test_retain_is_authorized_separately_from_the_class(hot: Any) -> None:
    """The result for plain messages may have no bits with RETAIN; the one for RETAIN is cached for both."""
    broker = Broker(hot)
    rules = Rules(broker)
    sub, pub = broker.subscriber(b"#"), broker.client()
    rules.classes = {pub: 3}
    requests: list[bool] = []

    def authorize(conn: Any, topic: bytes, retain: bool) -> int:
        requests.append(retain)
        rules.answers = {b"t": (EACH_QOS | RETAINED if retain else EACH_QOS) | OF_CLASS}
        return rules.authorize(conn, topic, retain)

    broker.handler.authorize = authorize  # type: ignore[method-assign]
    kept = bytes([0x31]) + publish(b"t")[1:]
    for _ in range(2):
        broker.send(pub, publish(b"t") + kept)
    assert requests == [False, True] and received(broker, sub) == [b"t"] * 4


def test_new_rules_void_cached_decisions(hot: Any) -> None:
    """The bits on Routes, the table of a connection, and its last topic."""
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"class": EACH_QOS | OF_CLASS, b"own": EACH_QOS}
    sub = broker.subscriber(b"#")
    pub, other = broker.client(5), broker.client(5)
    rules.classes = {pub: 5, other: 5}
    data = publish(b"class", b"", 0, version=5) + publish(b"own", version=5)
    for conn in (pub, other):
        broker.send(conn, data)
    assert received(broker, sub) == [b"class", b"own"] * 2
    rules.taken()
    rules.answers = {}
    broker.hot.void_verdicts(broker.hot.rights_epoch + 1)
    for conn in (pub, other):
        broker.send(conn, publish(b"own", version=5) + data)
        broker.send(conn, publish(b"own", b"", 1, 9, version=5))
        assert broker.take(conn) == [ack(0x40, 9, DENIED)]
    assert rules.taken() == [b"own", b"class"] * 2
    assert received(broker, sub) == []
    rules.answers = {b"class": EACH_QOS | OF_CLASS, b"own": EACH_QOS}
    broker.hot.void_verdicts(broker.hot.rights_epoch + 1)
    broker.send(pub, data)
    assert received(broker, sub) == [b"class", b"own"]


def test_reused_class_number_has_no_former_decisions(hot: Any) -> None:
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"a": EACH_QOS | OF_CLASS}
    pub, heir = broker.client(), broker.client()
    sub = broker.subscriber(b"#")
    rules.classes = {pub: 0}
    broker.send(pub, publish(b"a"))
    assert received(broker, sub) == [b"a"]
    rules.classes, rules.answers = {heir: 0}, {b"b": EACH_QOS | OF_CLASS}
    broker.hot.void_verdicts(broker.hot.rights_epoch + 1)
    broker.send(heir, publish(b"b") + publish(b"a"))
    broker.send(pub, publish(b"a"))
    assert received(broker, sub) == [b"b"]


@pytest.mark.parametrize("answer", range(64))
def test_qos_and_retain_have_separate_decisions(hot: Any, answer: int) -> None:
    """In any order, on one connection, to one topic: none uses the decision of another."""
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"a": answer}
    pub = broker.client(5)
    passed: list[tuple[int, bool]] = []

    def inbound(conn: Any, publish: Any, route: Any) -> None:
        del route
        passed.append((publish.qos, True))
        if publish.qos:
            broker.hot.acknowledge(publish, 0)
        broker.hot.resume(conn)

    broker.handler.inbound = inbound  # type: ignore[method-assign]
    sub = broker.subscriber(b"#", 2)
    wanted = []
    order = [(qos, retain) for qos in (0, 1, 2) for retain in (False, True)]
    for number, (qos, retain) in enumerate(order + order[::-1] + order[::2] * 2 + order[1::2] * 2, 1):
        packet = bytearray(publish(b"a", b"", qos, number, version=5))
        packet[0] |= retain
        broker.send(pub, bytes(packet))
        passed += [(packet[0] >> 1 & 3, False) for packet in broker.take(sub) if packet[0] >> 4 == 3]
        if answer >> (qos + 3 * retain) & 1:
            wanted.append((qos, retain))
        if qos:
            may = answer >> (qos + 3 * retain) & 1
            kind = 0x40 if qos == 1 else 0x50
            assert broker.take(pub) == [ack(kind, number) if may else ack(kind, number, DENIED)]
            if qos == 2 and may:
                broker.send(pub, ack(0x62, number))
                broker.take(pub)
    assert sorted(passed) == sorted(wanted)
    assert rules.taken() == [b"a"]


def test_class_decision_that_depends_on_qos_is_not_cached_on_the_route(hot: Any) -> None:
    """A bit on a Route allows each QoS, so a decision with fewer levels must not set it."""
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"a": 0x01 | OF_CLASS}
    sub = broker.subscriber(b"#", 1)
    pub = broker.client(5)
    rules.classes = {pub: 0}
    broker.send(pub, publish(b"a", version=5) + publish(b"a", b"", 1, 1, version=5) + publish(b"a", version=5))
    assert broker.take(pub) == [ack(0x40, 1, DENIED)]
    assert len(broker.take(sub)) == 2


def test_decision_during_a_rule_change_is_not_cached(hot: Any) -> None:
    broker = Broker(hot)
    rules = Rules(broker)
    pub = broker.client()
    sub = broker.subscriber(b"#")
    rules.answers = {b"a": EACH_QOS | OF_CLASS}
    rules.classes = {pub: 0}

    def moving(conn: Any, topic: bytes, retain: bool) -> int:
        broker.hot.void_verdicts(broker.hot.rights_epoch + 1)
        return rules.authorize(conn, topic, retain)

    broker.handler.authorize = moving  # type: ignore[method-assign]
    broker.send(pub, publish(b"a") * 2)
    assert rules.taken() == [b"a"] * 2
    assert received(broker, sub) == [b"a"] * 2


def test_parked_publish_is_authorized_when_it_resumes(hot: Any) -> None:
    """A PUBLISH parked for its Route is authorized at its dispatch, by the rules of that time."""
    broker = Broker(hot)
    rules = Rules(broker)
    rules.answers = {b"a": EACH_QOS | OF_CLASS}
    sub = broker.subscriber(b"#", 1)
    pub = broker.client(5)
    broker.handler.miss = lambda *_: None  # type: ignore[method-assign]
    broker.send(pub, publish(b"a", b"", 1, 1, version=5))
    rules.answers = {}
    broker.hot.void_verdicts(broker.hot.rights_epoch + 1)
    broker.hot.install_route(b"a", hot.state.Route(b"a", broker.handler.subscribers(b"a")))
    broker.hot.resume(pub)
    broker.turn()
    assert broker.take(pub) == [ack(0x40, 1, DENIED)]
    assert received(broker, sub) == []


def test_epochs_and_numbers_out_of_bounds_are_refused(hot: Any) -> None:
    broker = Broker(hot)
    conn = broker.client()
    for number in (-2, 64):
        with pytest.raises(ValueError, match="class number"):
            broker.hot.join_class(conn, number)
    for epoch in (broker.hot.rights_epoch, 0, -1):
        with pytest.raises(ValueError, match="not above the current"):
            broker.hot.void_verdicts(epoch)


def test_pushes_are_authorized_at_the_write(hot: Any) -> None:
    """The partition may not have the rules of an edge, and its push may have been sent before they changed."""
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(0, store.peer)
    conn = broker.attach()
    broker.hot.open_session(conn, hot.options.SessionOptions(5, session=50, owner_epoch=6))
    broker.hot.set_primary_of(conn, store.peer)
    requests: list[tuple[bytes, int]] = []
    judged = conn

    def may_receive(conn: Any, topic: bytes, qos: int) -> bool:
        assert conn is judged
        requests.append((topic, qos))
        return topic == b"yes"

    broker.handler.may_receive = may_receive  # type: ignore[method-assign]

    def push(seq: int, qos: int, topic: bytes) -> bytes:
        return encode_push(Push(50, 6, 2, seq, 10 + seq if qos else 0, qos, topic, b""))

    store.send(FrameKind.PUSH, push(1, 1, b"no"))
    assert len(broker.take(conn)) == 1
    assert requests == []
    broker.hot.judge_pushes_to(conn)
    store.take()
    store.send(FrameKind.PUSH, b"".join(push(2 + qos, qos, b"no") + push(5 + qos, qos, b"yes") for qos in (0, 1, 2)))
    assert [packet[4:7] for packet in broker.take(conn)] == [b"yes"] * 3
    assert requests == [(topic, qos) for qos in (0, 1, 2) for topic in (b"no", b"yes")]
    push_acks = [ack for kind, data in store.take() if kind == FrameKind.PUSH_ACK for ack in decode_push_acks(data)]
    assert [(ack.session_seq, ack.packet_type, ack.reason_code) for ack in push_acks] == [
        (3, 3, DENIED),
        (4, 3, DENIED),
    ]
    assert all(isinstance(ack, PushAck) for ack in push_acks)
    assert broker.hot.counters()["dropped_not_authorized"] == 3
    broker.send(conn, ack(0x40, 13))  # an identifier that was not sent to it
    assert broker.hot.counters()["acks_unknown"] == 1
