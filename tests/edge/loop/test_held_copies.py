"""Copies for a subscriber that must wait: stored as records, and later equal to immediate copies."""

from typing import Any

import pytest

from edge.loop import layout
from tests.clients.packets import publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import PublishMessage, PublishRun, decode_publish, encode_message, encode_run
from wire.messages.frames import FrameKind

USER = b"\x26\x00\x01a\x00\x01b"  # a User Property
EXPIRY = b"\x02\x00\x00\x00\x0a"  # of 10 s


def release(broker: Broker, conn: Any, held_s: int = 0) -> list[bytes]:
    """End the hold; return the subscriber's packets."""
    copies = broker.handler.held.pop(conn)
    broker.hot.drop_routes()
    for sub, record in copies:
        broker.hot.deliver_held(sub, record, held_s)
    return broker.take(conn)


def held_and_not(hot: Any, version: int = 5, options: int = 2, identifier: int = 7) -> tuple[Broker, Any, Any]:
    """Return a broker, and two equal subscribers; the first one is held."""
    broker = Broker(hot)
    first, second = (broker.subscriber(b"t/#", options, version, identifier) for _ in range(2))
    broker.handler.held[first] = []
    broker.hot.drop_routes()
    return broker, first, second


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("publisher_version", [4, 5])
@pytest.mark.parametrize("options", [1, 2, 2 | 8])
def test_held_copies_equal_immediate_copies(hot: Any, version: int, publisher_version: int, options: int) -> None:
    """Runs, every QoS, RETAIN, properties, identifiers: byte for byte, in order, written when the core returns them."""
    broker, first, second = held_and_not(hot, version, options)
    pub = broker.client(publisher_version)
    properties = USER if publisher_version == 5 else b""
    for number, qos in enumerate((0, 0, 1, 2, 0, 1)):
        topic = b"t/%d" % (number // 2)
        kept = {"retain": True} if number == 5 else {}
        packet = publish(topic, b"m%d" % number, qos, number, publisher_version, properties, **kept)
        broker.send(pub, packet * (3 if qos == 0 else 1))
    at_once = broker.take(second)
    assert len(at_once) == 3 + 3 + 1 + 1 + 3 + 1
    assert broker.take(first) == []
    assert release(broker, first) == at_once
    broker.send(pub, publish(b"t/0", b"after", 0, 0, publisher_version))
    assert broker.take(first) == broker.take(second) != []


def test_publisher_is_acknowledged_while_copies_are_held(hot: Any) -> None:
    """A held copy counts as delivered for its publisher."""
    broker, first, _ = held_and_not(hot)
    pub = broker.client(5)
    broker.send(pub, publish(b"t/a", b"m", 1, 3, 5))
    assert [packet[0] for packet in broker.take(pub)] == [0x40]
    assert len(broker.handler.held[first]) == 1


def test_forwarded_messages_are_held(hot: Any) -> None:
    broker, first, second = held_and_not(hot)
    edge = Node(broker, 2, "edge")
    run = publish(b"t/a", b"1", 0, 0, 5, USER) + publish(b"t/a", b"2", 0, 0, 5)
    edge.send(FrameKind.PUBLISH, encode_run(PublishRun(5, b"t/a", run)))
    edge.send(FrameKind.PUBLISH, encode_message(PublishMessage(9, b"t/a", b"3", 1, properties=USER)))
    at_once = broker.take(second)
    assert len(at_once) == 3 and broker.take(first) == []
    assert release(broker, first) == at_once


def test_subscribers_of_one_message_share_its_record(hot: Any) -> None:
    """A message for thousands of subscribers is stored once."""
    broker = Broker(hot)
    subscribers = [broker.subscriber(b"t", 1) for _ in range(3)]
    broker.handler.held.update((conn, []) for conn in subscribers)
    broker.hot.drop_routes()
    pub = broker.client()
    broker.send(pub, publish(b"t", b"one", 1, 1) + publish(b"t", b"two"))
    records = [[record for _, record in broker.handler.held[conn]] for conn in subscribers]
    assert all(theirs[0] is records[0][0] and theirs[1] is records[0][1] for theirs in records)
    (message,) = decode_publish(records[0][0])
    assert isinstance(message, PublishMessage) and (message.topic, message.payload, message.qos) == (b"t", b"one", 1)


def test_held_copy_that_expires_is_dropped(hot: Any) -> None:
    """[MQTT-3.3.2-5]; other copies have the remaining time [MQTT-3.3.2-6]."""
    for held_s, left in ((4, [b"\x02\x00\x00\x00\x06m"]), (10, [])):
        broker, first, _ = held_and_not(hot, identifier=0)
        broker.send(broker.client(5), publish(b"t/a", b"m", 0, 0, 5, EXPIRY))
        assert [copy[-6:] for copy in release(broker, first, held_s)] == left
        assert broker.hot.counters()["dropped_expired"] == 1 - len(left)


def test_old_route_delivers_at_once_after_hold_ends(hot: Any) -> None:
    broker, first, second = held_and_not(hot)
    pub = broker.client()
    broker.send(pub, publish(b"t/a", b"1"))
    del broker.handler.held[first]  # and the Route remains
    broker.take(second)
    broker.send(pub, publish(b"t/a", b"2") + publish(b"t/a", b"3", 1, 1))
    assert broker.take(first) == broker.take(second) != []


@pytest.mark.parametrize("qos", [0, 1])
def test_publisher_waits_while_hold_is_full(hot: Any, qos: int) -> None:
    """It resumes after the iteration, when the core has free space."""
    broker, _, _ = held_and_not(hot)
    broker.handler.hold = lambda *_: layout.HELD_FULL  # type: ignore[method-assign]
    pub = broker.client()
    broker.send(pub, publish(b"t/a", b"1", qos, qos))
    assert pub.parked
    broker.send(pub, publish(b"t/a", b"2", qos, 2 * qos))
    assert pub.parked  # the second one was parsed in this iteration
    broker.turn()
    assert not pub.parked
    assert broker.hot.counters()["packets_in"] >= 2
