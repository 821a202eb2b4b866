"""Publish, deliver, acknowledge: one edge, ephemeral sessions."""

from typing import Any

from tests.clients.packets import PINGREQ, ack, publish
from tests.edge.loop.harness import Broker


def test_qos0_run_reaches_subscriber_verbatim(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"a/b")
    pub = broker.client()
    data = b"".join(publish(b"a/b", b"x%d" % i) for i in range(50))
    broker.send(pub, data)
    assert broker.raw(sub) == data


def test_qos1_is_acknowledged_and_delivered(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"a", 1)
    pub = broker.client()
    broker.send(pub, publish(b"a", b"m1", 1, 10) + publish(b"a", b"m2", 1, 11))
    assert broker.take(pub) == [ack(0x40, 10), ack(0x40, 11)]
    assert broker.take(sub) == [publish(b"a", b"m1", 1, 1), publish(b"a", b"m2", 1, 2)]
    broker.send(sub, ack(0x40, 1) + ack(0x40, 2))
    assert broker.take(sub) == []


def test_qos2_both_ways(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"a", 2)
    pub = broker.client()
    broker.send(pub, publish(b"a", b"m", 2, 5) + publish(b"a", b"m", 2, 5, dup=True))
    assert broker.take(pub) == [ack(0x50, 5), ack(0x50, 5)]
    assert broker.take(sub) == [publish(b"a", b"m", 2, 1)]
    broker.send(pub, ack(0x62, 5) + ack(0x62, 5))
    assert broker.take(pub) == [ack(0x70, 5), ack(0x70, 5)]
    broker.send(sub, ack(0x50, 1))
    assert broker.take(sub) == [ack(0x62, 1)]
    broker.send(sub, ack(0x70, 1))
    assert broker.take(sub) == []


def test_ping(hot: Any) -> None:
    broker = Broker(hot)
    pub = broker.client()
    broker.send(pub, PINGREQ * 3)
    assert broker.raw(pub) == b"\xd0\x00" * 3


def test_turn_end_is_called_at_its_deadline(hot: Any) -> None:
    """An iteration with QoS 0 and acknowledgements does not call the core."""
    broker = Broker(hot)
    calls: list[int] = []
    broker.handler.turn_end = calls.append  # type: ignore[assignment, method-assign]
    broker.hot.turn_end_ns = broker.now_ns + 1_000
    broker.turn()
    assert calls == []
    broker.now_ns += 1_000
    broker.turn()
    assert calls == [broker.now_ns]


def test_acknowledgement_of_another_flow_ends_the_connection(hot: Any) -> None:
    """PUBREC for a QoS 1 message, PUBACK or an early PUBCOMP for a QoS 2 message (section 4.3): a protocol error."""
    for qos, answer in ((1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)):
        broker = Broker(hot)
        errors: list[int] = []
        broker.handler.error = lambda _, code, codes=errors: codes.append(code)  # type: ignore[method-assign, misc]
        sub = broker.subscriber(b"a", qos)
        broker.send(broker.client(), publish(b"a", b"m", qos, 1))
        assert len(broker.take(sub)) == 1
        broker.send(sub, ack(answer, 1))
        assert errors == [0x82], (qos, hex(answer))


def test_unknown_pubrec_is_answered_by_pubrel_unless_it_is_an_error(hot: Any) -> None:
    """[MQTT-4.3.3-4]: PUBREL only after a reason code below 0x80."""
    broker = Broker(hot)
    before, after = broker.client(5), broker.subscriber(b"a", 2, version=5)
    broker.send(broker.client(), publish(b"a", b"m", 2, 1))
    assert len(broker.take(after)) == 1
    for client in (before, after):  # that was never sent a message, and that was
        broker.send(client, ack(0x50, 9) + ack(0x50, 10, 0x10) + ack(0x50, 11, 0x80) + ack(0x40, 12) + ack(0x70, 13))
        assert broker.take(client) == [ack(0x62, 9, 0x92), ack(0x62, 10, 0x92)]
    assert broker.hot.counters()["acks_unknown"] == 10
