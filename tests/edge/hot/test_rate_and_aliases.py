"""A client's publish rate, and topic aliases towards clients."""

from typing import Any

from tests.clients.packets import ack, connect, publish
from tests.edge.hot.harness import Broker

SECOND = 1_000_000_000


def with_aliases(broker: Broker, topic_filter: bytes, aliases: int, **more: Any) -> Any:
    """Open an MQTT 5 subscriber that takes topic aliases."""
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


def test_first_topics_get_aliases_and_the_run_of_one_uses_it(hot: Any) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27]: no more than the client takes; short names are not worth one."""
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


def test_messages_that_waited_are_written_with_their_topic(hot: Any) -> None:
    """Beyond the window a copy is encoded before anyone knows when it leaves."""
    broker = Broker(hot)
    conn = with_aliases(broker, b"#", 5, receive_maximum=1)
    publisher = broker.client()
    broker.send(publisher, publish(b"topic", b"1", 1, 1) + publish(b"topic", b"2", 1, 2))
    assert broker.take(conn) == [publish(b"topic", b"1", 1, 1, version=5, properties=alias(1))]
    broker.send(conn, ack(0x40, 1))
    assert broker.take(conn) == [publish(b"topic", b"2", 1, 2, version=5)]


def test_alias_that_would_make_the_packet_too_large_is_left_out(hot: Any) -> None:
    """[MQTT-3.1.2-24]: what fits without an alias is sent without."""
    broker = Broker(hot)
    packet = publish(b"topic", b"x" * 20, version=5)
    conn = with_aliases(broker, b"#", 5, maximum_packet_size=len(packet))
    publisher = broker.client()
    broker.send(publisher, publish(b"topic", b"x" * 20))
    assert broker.take(conn) == [packet]


def test_repeated_message_is_answered_once_more_and_then_ends_the_connection(hot: Any) -> None:
    """[MQTT-4.3.3-10], and [MQTT-4.4.0-1]: who has read two PUBRECs for it and sends it again is broken."""
    broker = Broker(hot)
    publisher = broker.client()
    message = publish(b"a", b"x", 2, 1)
    broker.send(publisher, message + message)
    assert broker.take(publisher) == [ack(0x50, 1)] * 2
    broker.send(publisher, publish(b"a", b"", 2, 1))  # another one under the same identifier is only answered
    assert broker.take(publisher) == [ack(0x50, 1)]
    broker.send(publisher, publish(b"a", b"", 2, 1))
    assert publisher.closed


def test_bytes_before_connect_do_not_stop_the_clock(hot: Any) -> None:
    """The connect timeout runs from accept."""
    broker = Broker(hot)
    conn = broker.attach(connect_timeout_ns=10 * SECOND)
    for byte in connect()[:6]:
        broker.send(conn, bytes([byte]))
        broker.now_ns += 2 * SECOND
        broker.hot.sweep(broker.now_ns)
    assert conn.closed
