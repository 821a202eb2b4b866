"""Packets that come too slowly, and rates of one connection: reading pauses, and nothing is dropped."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker

SECOND = 1_000_000_000
KEEP_ALIVE_TIMEOUT = 0x8D


def drip(broker: Broker, conn: Any, data: bytes, seconds: int, a_second: int = 1) -> int:
    """Send so many bytes a second and sweep; return after how many seconds the client was reported, -1 for never."""
    for second in range(seconds):
        broker.send(conn, data[second * a_second : (second + 1) * a_second])
        broker.now_ns += SECOND
        broker.hot.sweep(broker.now_ns)
        if broker.handler.errors:
            assert [code for _, code in broker.handler.errors] == [KEEP_ALIVE_TIMEOUT]
            return second + 1
    return -1


def test_a_packet_that_drips_is_reported_once(hot: Any) -> None:
    """NIST: protect. A byte a second holds a connection for ten seconds, whatever its keep alive."""
    broker = Broker(hot)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 1_000), 60) == 10
    broker.now_ns += 60 * SECOND
    broker.hot.sweep(broker.now_ns)
    assert len(broker.handler.errors) == 1 and broker.hot.counters()["slow_packets"] == 1


def test_a_packet_is_whole_within_its_time_however_fast_it_drips(hot: Any) -> None:
    """65 bytes a second are enough for one second's rate, and not for a packet of 8 KB."""
    broker = Broker(hot)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 8_000), 60, a_second=65) == 31


def test_a_large_packet_on_a_slow_network_comes_through(hot: Any) -> None:
    """64 KiB in 29 s, and the next one: each has a time of its own."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x" * 64_000)
    assert drip(broker, conn, packet * 3, 29 * 3, a_second=len(packet) // 29 + 1) == -1
    assert broker.hot.counters()["publish_in_qos0"] == 3


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_a_network_may_stall_for_a_moment(hot: Any, cut: int) -> None:
    """Nine seconds in the middle of a packet, or of its header, end nobody."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x" * 300)
    for _ in range(5):
        broker.send(conn, packet[:cut])
        broker.now_ns += 9 * SECOND
        broker.hot.sweep(broker.now_ns)
        broker.send(conn, packet[cut:] + packet)
    assert not broker.handler.errors and broker.hot.counters()["publish_in_qos0"] == 10


def test_small_packets_behind_each_other_are_no_slow_packet(hot: Any) -> None:
    """A byte of the next one with each: what begins anew has its time anew."""
    broker = Broker(hot)
    conn = broker.client()
    packet = publish(b"a", b"x")
    stream = packet * 100
    assert drip(broker, conn, stream[: len(packet) * 90 + 1], 90, a_second=len(packet)) == -1


def test_no_limit_where_none_is_wanted(hot: Any) -> None:
    broker = Broker(hot, packet_timeout_ns=0)
    conn = broker.client()
    assert drip(broker, conn, publish(b"a", b"x" * 1_000), 100) == -1


def test_a_client_that_we_do_not_read_is_not_slow(hot: Any) -> None:
    """Its half packet waits behind our pause: the time begins when it is read again."""
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


def test_a_connection_has_a_rate_of_its_own(hot: Any) -> None:
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


def test_bytes_have_a_rate_and_none_is_lost(hot: Any) -> None:
    """Of all packets, and of half ones; what came is answered, the rest waits unread."""
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


def test_the_stricter_of_both_rates_holds(hot: Any) -> None:
    """A connection goes on when neither is used up."""
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
