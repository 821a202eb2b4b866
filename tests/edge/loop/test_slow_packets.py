"""Packets that arrive too slowly, and rates of one connection: reading pauses, and no byte is dropped."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker

SECOND = 1_000_000_000
KEEP_ALIVE_TIMEOUT = 0x8D


def drip(broker: Broker, conn: Any, data: bytes, seconds: int, a_second: int = 1) -> int:
    """Send so many bytes per second and sweep; return the second of the client's report, -1 for none."""
    for second in range(seconds):
        broker.send(conn, data[second * a_second : (second + 1) * a_second])
        broker.now_ns += SECOND
        broker.hot.sweep(broker.now_ns)
        if broker.handler.errors:
            assert [code for _, code in broker.handler.errors] == [KEEP_ALIVE_TIMEOUT]
            return second + 1
    return -1


def test_slow_packet_is_reported_once(hot: Any) -> None:
    """A byte per second holds a connection for ten seconds, whatever its keep alive."""
    broker = Broker(hot)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 1_000), 60) == 10
    broker.now_ns += 60 * SECOND
    broker.hot.sweep(broker.now_ns)
    assert len(broker.handler.errors) == 1 and broker.hot.counters()["slow_packets"] == 1


def test_packet_must_be_complete_within_its_timeout(hot: Any) -> None:
    """65 bytes per second satisfy the rate of one second, but not the timeout of a packet of 8 KB."""
    broker = Broker(hot)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 8_000), 60, a_second=65) == 31


def test_large_packet_on_slow_network_is_received(hot: Any) -> None:
    """64 KiB in 29 s, and the next one: each has its own timeout."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x" * 64_000)
    assert drip(broker, conn, packet * 3, 29 * 3, a_second=len(packet) // 29 + 1) == -1
    assert broker.hot.counters()["publish_in_qos0"] == 3


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_short_network_stall_is_tolerated(hot: Any, cut: int) -> None:
    """A pause of nine seconds inside a packet, or its header, disconnects no client."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x" * 300)
    for _ in range(5):
        broker.send(conn, packet[:cut])
        broker.now_ns += 9 * SECOND
        broker.hot.sweep(broker.now_ns)
        broker.send(conn, packet[cut:] + packet)
    assert not broker.handler.errors and broker.hot.counters()["publish_in_qos0"] == 10


def test_consecutive_small_packets_are_not_slow(hot: Any) -> None:
    """Each arrives with a byte of the next one: a new packet restarts the timeout."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x")
    stream = packet * 100
    assert drip(broker, conn, stream[: len(packet) * 90 + 1], 90, a_second=len(packet)) == -1


def test_zero_timeout_disables_the_limit(hot: Any) -> None:
    broker = Broker(hot, packet_timeout_ns=0)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 1_000), 100) == -1


def test_client_with_paused_reading_is_not_slow(hot: Any) -> None:
    """Its partial packet waits behind our pause: the timeout begins when reading resumes."""
    broker = Broker(hot, publish_rate_max=10.0)
    conn = broker.client()
    packet = publish(b"a", b"x" * 300)
    broker.send(conn, packet * 400 + packet[:10])
    assert conn.parked != 0
    for _ in range(30):
        broker.now_ns += SECOND
        broker.hot.sweep(broker.now_ns)
    assert conn.parked != 0 and not broker.handler.errors


def opened(broker: Broker, **rates: float) -> Any:
    conn = broker.client()
    broker.hot.open_session(conn, broker.modules.options.SessionOptions(version=4, **rates))
    return conn


def test_connection_rate_overrides_the_loop_rate(hot: Any) -> None:
    """Lower or higher than the loop's; other connections keep theirs."""
    broker = Broker(hot, publish_rate_max=100.0)
    slow, plain, fast = opened(broker, publish_rate_max=10.0), opened(broker), opened(broker, publish_rate_max=1e4)
    for conn in (slow, plain, fast):
        broker.send(conn, publish(b"a", b"x") * 60)
    assert [conn.parked != 0 for conn in (slow, plain, fast)] == [True, False, False]
    for conn in (plain, fast):
        broker.send(conn, publish(b"a", b"x") * 60)
    assert [conn.parked != 0 for conn in (plain, fast)] == [True, False]
    broker.now_ns += SECOND
    broker.turn()
    assert [conn.parked != 0 for conn in (slow, plain)] == [True, False]
    broker.now_ns += 5 * SECOND
    broker.turn()
    assert slow.parked == 0


def test_byte_rate_pauses_reading_without_loss(hot: Any) -> None:
    """Of all packets, partial ones included; received packets are answered, the rest stays unread."""
    broker = Broker(hot)
    conn = opened(broker, byte_rate_max=1_000.0)
    packet = publish(b"a", b"x" * 590, 1, 1)
    broker.send(conn, packet)
    assert conn.parked == 0
    broker.send(conn, packet[:300])  # none of it is parsed yet
    assert conn.parked == 0
    broker.send(conn, packet[300:])
    assert conn.parked != 0 and broker.take(conn) == [ack(0x40, 1)] * 2
    broker.now_ns += SECOND // 2
    broker.turn()
    assert conn.parked != 0
    broker.now_ns += SECOND
    broker.turn()
    assert conn.parked == 0
    other = opened(broker)
    broker.send(other, publish(b"a", b"x" * 100_000))
    assert other.parked == 0


def test_stricter_of_both_rates_applies(hot: Any) -> None:
    """A connection resumes when neither is exhausted."""
    broker = Broker(hot)
    conn = opened(broker, publish_rate_max=1_000.0, byte_rate_max=1_000.0)
    broker.send(conn, publish(b"a", b"x" * 3_000))
    assert conn.parked != 0
    broker.now_ns += 2 * SECOND
    broker.turn()
    assert conn.parked != 0
    broker.now_ns += SECOND
    broker.turn()
    assert conn.parked == 0
