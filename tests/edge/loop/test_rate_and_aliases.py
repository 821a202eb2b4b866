"""A client's publish rate, and topic aliases to clients."""

from typing import Any

import pytest

from tests.clients.packets import ack, connect, publish
from tests.edge.loop.harness import Broker, forwarded

SECOND = 1_000_000_000


def with_aliases(broker: Broker, topic_filter: bytes, aliases: int, **more: Any) -> Any:
    """Open an MQTT 5 subscriber that accepts topic aliases."""
    conn = broker.subscriber(topic_filter, 2, version=5)
    options = broker.modules.options.SessionOptions(version=5, topic_alias_maximum=aliases, **more)
    broker.hot.open_session(conn, options)
    return conn


def alias(number: int) -> bytes:
    return b"\x23" + number.to_bytes(2, "big")


def test_rate_counts_runs_and_single_packets(hot: Any) -> None:
    broker = Broker(hot, publish_rate_max=100.0)
    publisher = broker.client()
    broker.send(publisher, publish(b"a", b"x") * 60 + publish(b"a", b"x", 1, 1))
    assert publisher.parked == 0
    assert broker.take(publisher) == [ack(0x40, 1)]
    broker.send(publisher, publish(b"a", b"x") * 60)
    assert publisher.parked != 0
    broker.now_ns += SECOND
    broker.turn()
    assert publisher.parked == 0


def test_first_topics_get_aliases_and_their_runs_use_them(hot: Any) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27]: at most the client's maximum; short names have none."""
    broker = Broker(hot)
    conn = with_aliases(broker, b"#", 1)
    publisher = broker.client()
    broker.send(publisher, publish(b"topic", b"1") + publish(b"topic", b"2") * 2)
    broker.send(publisher, publish(b"other", b"3") + publish(b"t", b"4") + publish(b"topic", b"5", 1, 1))
    assert broker.take(conn) == [
        publish(b"topic", b"1", version=5, properties=alias(1)),
        *[publish(b"", b"2", version=5, properties=alias(1))] * 2,
        publish(b"other", b"3", version=5),
        publish(b"t", b"4", version=5),
        publish(b"", b"5", 1, 1, version=5, properties=alias(1)),
    ]


def test_pending_messages_are_written_without_alias(hot: Any) -> None:
    """Beyond the window a copy is encoded before its time of sending is known."""
    broker = Broker(hot)
    conn = with_aliases(broker, b"#", 5, receive_maximum=1)
    publisher = broker.client()
    broker.send(publisher, publish(b"topic", b"1", 1, 1) + publish(b"topic", b"2", 1, 2))
    assert broker.take(conn) == [publish(b"topic", b"1", 1, 1, version=5, properties=alias(1))]
    broker.send(conn, ack(0x40, 1))
    assert broker.take(conn) == [publish(b"topic", b"2", 1, 2, version=5)]


def test_alias_that_exceeds_maximum_packet_size_is_omitted(hot: Any) -> None:
    """[MQTT-3.1.2-24]: a packet that fits without an alias is sent without one."""
    broker = Broker(hot)
    packet = publish(b"topic", b"x" * 20, version=5)
    conn = with_aliases(broker, b"#", 5, maximum_packet_size=len(packet))
    publisher = broker.client()
    broker.send(publisher, publish(b"topic", b"x" * 20))
    assert broker.take(conn) == [packet]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("session", [0, 9])
def test_repeated_qos2_message_is_answered_each_time(hot: Any, session: int, version: int) -> None:
    """[MQTT-4.3.3-10]: PUBREC for each, and each message counts once, whatever the content of the repeat."""
    broker = Broker(hot)
    broker.handler.session_options = {"session": session, "announced_receive_maximum": 3}
    publisher, subscriber = broker.client(version), broker.subscriber(b"#")
    for payload in (b"x", b"x", b"x", b"y", b"x"):
        broker.send(publisher, publish(b"a", payload, 2, 1, version))
        assert broker.take(publisher) == [ack(0x50, 1)]
    broker.send(publisher, publish(b"a", b"x", 2, 1, version) * 20)
    assert broker.take(publisher) == [ack(0x50, 1)] * 20
    assert publisher.quota == (1 if version == 5 else 0) and len(broker.take(subscriber)) == 1
    broker.send(publisher, ack(0x62, 1))
    assert broker.take(publisher) == [ack(0x70, 1)] and publisher.quota == 0 and not publisher.received
    broker.send(publisher, publish(b"a", b"z", 2, 1, version))
    assert broker.take(publisher) == [ack(0x50, 1)] and len(broker.take(subscriber)) == 1


def test_repeat_sets_its_alias(hot: Any) -> None:
    """[MQTT-3.3.2-12]: a repeat that is not forwarded still sets the alias for later messages."""
    broker = Broker(hot)
    publisher, subscriber = broker.client(5), broker.subscriber(b"#")
    broker.send(publisher, publish(b"a", b"x", 2, 1, 5) + publish(b"a", b"x", 2, 1, 5, alias(1)))
    broker.send(publisher, publish(b"", b"y", 0, 0, 5, alias(1)))
    assert broker.take(subscriber) == [publish(b"a", b"x"), publish(b"a", b"y")]


@pytest.mark.parametrize("version", [4, 5])
def test_repeat_and_release_wait_for_the_first_acknowledgement(hot: Any, version: int) -> None:
    """PUBREC, PUBREC, PUBCOMP in this order, although all packets were read before the message was accepted."""
    broker, edge = forwarded(hot)
    publisher = broker.client(version)
    broker.send(publisher, publish(b"a", b"x", 2, 1, version) * 2 + ack(0x62, 1) + publish(b"a", b"y", 1, 2, version))
    assert broker.take(publisher) == [] and len(edge.records()) == 1
    edge.tell()
    broker.turn()
    assert broker.take(publisher) == [ack(0x50, 1)] * 2 + [ack(0x70, 1)]
    assert len(edge.records()) == 1


def test_bytes_before_connect_do_not_reset_the_timeout(hot: Any) -> None:
    """The connect timeout runs from accept."""
    broker = Broker(hot)
    conn = broker.attach(connect_timeout_ns=10 * SECOND)
    for byte in connect()[:6]:
        broker.send(conn, bytes([byte]))
        broker.now_ns += 2 * SECOND
        broker.hot.sweep(broker.now_ns)
    assert conn.closed
