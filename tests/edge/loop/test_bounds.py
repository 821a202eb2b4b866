"""Backpressure and limits: no client exceeds a configured limit, and a waiting sender loses no message."""

import random
from typing import Any

import pytest

from tests.clients.packets import DISCONNECT, PINGREQ, ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import PublishRun, encode_run
from wire.messages.frames import FrameKind

PACKET = publish(b"t", bytes(1000))
LIMITS = {"output_high_bytes": 20_000, "output_low_bytes": 5_000, "lag_after_ns": 100_000_000}


def unwritten(broker: Broker, conn: Any) -> int:
    """Return the bytes that are pending for the socket."""
    left: int = broker.hot.output_mark(conn) - broker.hot.written_to(conn)
    return left


def test_publisher_waits_for_full_subscriber_without_loss(hot: Any) -> None:
    broker = Broker(hot, **LIMITS)
    sub, pub = broker.subscriber(b"t"), broker.client()
    sent = 0
    while not pub.parked:
        broker.send(pub, PACKET * 5)
        sent += 5
    assert 20 <= sent <= 30
    broker.send(pub, PACKET * 100)  # in flight
    assert unwritten(broker, sub) < 30_000
    got = b""
    while data := broker.hot.take_output(sub, 4_000):
        got += data
        broker.turn()
    assert got == PACKET * (sent + 100)
    assert not pub.parked
    assert broker.hot.counters()["dropped_slow"] == 0


def test_dead_subscriber_blocks_publisher_for_limited_time(hot: Any) -> None:
    broker = Broker(hot, **LIMITS)
    dead, alive, pub = broker.subscriber(b"t"), broker.subscriber(b"t"), broker.client()
    broker.send(pub, PACKET * 40)
    broker.raw(alive)
    assert pub.parked
    broker.now_ns += 99_000_000
    broker.turn()
    assert pub.parked
    broker.now_ns += 2_000_000
    broker.turn()
    assert not pub.parked
    broker.raw(alive)
    broker.send(pub, PACKET * 15)
    assert broker.raw(alive) == PACKET * 15
    assert not pub.parked
    assert broker.hot.counters()["dropped_slow"] == 15
    broker.raw(dead)
    broker.turn()
    broker.send(pub, PACKET)
    assert broker.raw(dead) == PACKET


def test_link_input_continues_and_slow_subscriber_loses_messages(hot: Any) -> None:
    broker = Broker(hot, **LIMITS)
    edge = Node(broker, 2, "edge")
    sub = broker.subscriber(b"t")
    for _ in range(30):
        edge.send(FrameKind.PUBLISH, encode_run(PublishRun(4, b"t", PACKET * 4)))
    assert not edge.conn.parked
    assert unwritten(broker, sub) <= 26_000
    assert broker.hot.counters()["dropped_slow"] > 0


def test_client_that_reads_no_output_is_not_read(hot: Any) -> None:
    broker = Broker(hot, **LIMITS)
    pub = broker.client()
    for _ in range(200):
        if pub.parked:
            break
        broker.send(pub, PINGREQ * 500 + ack(0x62, 3) * 100)
    assert pub.parked
    assert unwritten(broker, pub) < 22_000
    broker.raw(pub)
    broker.turn()
    assert not pub.parked


def test_full_iteration_resumes_in_order(hot: Any) -> None:
    broker = Broker(hot, iteration_bytes_max=50_000)
    subs = [broker.subscriber(b"t", i % 2) for i in range(20)]
    pub = broker.client()
    data = b"".join(publish(b"t", b"%4d" % i + bytes(200), i % 2, 1 + i) for i in range(100))
    broker.send(pub, data)
    turns = 0
    got: list[bytes] = [b""] * 20
    while True:
        for i, sub in enumerate(subs):
            out = broker.raw(sub)
            assert len(out) < 60_000
            got[i] += out
            for packet in range(1, 101):
                broker.hot.feed(sub, ack(0x40, packet))
        if not broker.hot.wants_turn():
            break
        turns += 1
        broker.turn()
    assert turns >= 5
    for i, out in enumerate(got):
        numbers = [int(out[at : at + 4]) for at in _payloads(out)]
        assert numbers == list(range(100)), i


def _payloads(out: bytes) -> list[int]:
    found, at = [], 0
    while at < len(out):
        qos = out[at] >> 1 & 3
        length = (out[at + 1] & 0x7F) | out[at + 2] << 7
        found.append(at + 3 + 3 + (2 if qos else 0))
        at += 3 + length
    return found


def test_route_cache_is_bounded(hot: Any) -> None:
    broker = Broker(hot, routes_max=50)
    sub, pub = broker.subscriber(b"#"), broker.client()
    for i in range(200):
        broker.send(pub, publish(b"t%d" % i, b""))
    assert broker.hot.counters()["routes"] == 50
    assert len(broker.take(sub)) == 200


def test_qos2_without_pubrel_is_bounded_in_v3(hot: Any) -> None:
    broker = Broker(hot, received_max=10)
    pub = broker.client()
    for i in range(1, 12):
        broker.send(pub, publish(b"t", b"", 2, i))
    assert broker.handler.errors == [(pub, 0x93)]


def test_unauthenticated_bytes_are_bounded(hot: Any) -> None:
    broker = Broker(hot)
    conn = broker.attach(packet_bytes_max=1000)
    broker.send(conn, b"\x10\xff\xff\xff\x7f")  # 256 MiB declared
    assert broker.handler.errors == [(conn, 0x95)]


def test_silent_clients_are_reported_once(hot: Any) -> None:
    """[MQTT-3.1.2-22]: one and a half times the keep-alive; any packet resets the timeout."""
    broker = Broker(hot)
    broker.handler.session_options = {}
    waiting = broker.attach(connect_timeout_ns=5_000_000_000)
    conn = broker.attach()
    broker.send(conn, b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01c")
    for seconds, errors in ((4, 0), (2, 1), (5, 1)):
        broker.now_ns += seconds * 1_000_000_000
        broker.hot.sweep(broker.now_ns)
        assert len(broker.handler.errors) == errors
    assert broker.handler.errors[0] == (waiting, 0x80)
    broker.send(conn, PINGREQ)
    broker.now_ns += 15_000_000_000
    broker.hot.sweep(broker.now_ns)
    assert not conn.closed
    broker.now_ns += 1_000_000
    broker.hot.sweep(broker.now_ns)
    assert broker.handler.errors[1] == (conn, 0x8D)


@pytest.mark.parametrize("late", [False, True])
def test_connect_packet_has_its_own_timeout(hot: Any, late: bool) -> None:
    """CONNECT must be complete within its timeout, even if it arrives slowly; its processing has a longer timeout."""
    broker = Broker(hot)
    broker.handler.packet = lambda *_: None  # type: ignore[method-assign]
    conn = broker.attach(connect_timeout_ns=10_000_000_000, first_packet_ns=5_000_000_000)
    packet = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01c"
    for at in range(5):
        broker.send(conn, packet[at : at + 1])
        broker.now_ns += 900_000_000
        broker.hot.sweep(broker.now_ns)
    assert not broker.handler.errors
    if not late:
        broker.send(conn, packet[5:])
    broker.now_ns += 600_000_000
    broker.hot.sweep(broker.now_ns)
    assert broker.handler.errors == ([(conn, 0x80)] if late else [])
    broker.now_ns += 5_000_000_000
    broker.hot.sweep(broker.now_ns)
    assert broker.handler.errors == [(conn, 0x80)]


def test_close_inside_any_call_is_safe(hot: Any) -> None:
    """A random mix of all packets with closing connections keeps the counts correct."""
    rng = random.Random(5)
    broker = Broker(hot, **LIMITS)
    edge = Node(broker, 2, "edge")
    store = Node(broker, 3, "storage")
    for partition in range(4):
        broker.hot.set_primary(partition, store.peer)
    broker.route_to(edges=(edge.peer,), partitions=(1, 2))
    conns: list[Any] = []
    ended: list[Any] = []
    for step in range(600 if hot.compiled else 300):
        action = rng.random()
        if action < 0.15 or len(conns) < 3:
            conns.append(broker.subscriber(rng.choice([b"t", b"#", b"u/+"]), rng.randrange(3), rng.choice([4, 5])))
        elif action < 0.2:
            conn = conns.pop(rng.randrange(len(conns)))
            if rng.random() < 0.5:
                broker.hot.close(conn, DISCONNECT)
            else:
                broker.hot.end_of_file(conn)
                ended.append(conn)
        elif action < 0.9:
            conn = rng.choice(conns)
            qos = rng.randrange(3)
            packet = publish(rng.choice([b"t", b"u/x"]), bytes(rng.randrange(300)), qos, step + 1, conn.version)
            broker.send(conn, packet * (1 if qos else 3) + (ack(0x62, step + 1) if qos == 2 else b""))
        else:
            for node in (edge, store):
                node.take()
                node.tell()
            for conn in conns:
                broker.raw(conn)
        conns = [conn for conn in conns if not conn.closed]
    broker.turn()
    waiting = [
        conn for conn in ended if not conn.closed
    ]  # those that wait for PUBREC, before the PUBREL that arrived with it is read
    assert broker.hot.counters()["connections"] == len(conns) + len(waiting) + 2
    assert all(conn.ack_queue for conn in waiting)
    assert broker.hot.counters()["output_high"] <= len(conns)


def test_close_while_fenced_sends_no_held_acknowledgement(hot: Any) -> None:
    """PROTOCOL 1.6: no PUBACK of a fenced node, not even among the last bytes."""
    broker = Broker(hot)
    pub = broker.client(5)
    broker.hot.begin_turn(broker.now_ns)
    broker.hot.feed(pub, publish(b"t", b"", 1, 5, 5))
    broker.hot.set_lease(0)
    broker.hot.end_turn(broker.now_ns)
    assert broker.raw(pub) == b""
    broker.hot.close(pub, b"\xe0\x01\x88")
    assert broker.raw(pub) == b"\xe0\x01\x88"


def test_sweep_order_is_deterministic(hot: Any) -> None:
    """The order does not depend on memory addresses: a simulation seed determines it (seed 10175)."""

    def swept() -> list[int]:
        broker = Broker(hot)
        attached = [broker.attach(connect_timeout_ns=1_000_000_000) for _ in range(300)]
        for conn in attached[::2]:
            broker.hot.close(conn)
        broker.hot.end_turn(broker.now_ns)
        attached += [broker.attach(connect_timeout_ns=1_000_000_000) for _ in range(150)]
        broker.now_ns += 2_000_000_000
        broker.hot.sweep(broker.now_ns)
        return [conn.number for conn, _ in broker.handler.errors]

    assert swept() == swept() and len(set(swept())) == 300


def test_sweep_in_slices_checks_every_connection(hot: Any) -> None:
    """Connections close and open between its slices, and each close moves another one."""
    broker = Broker(hot)
    silent = [broker.attach(connect_timeout_ns=1_000_000_000) for _ in range(100)]
    broker.now_ns += 2_000_000_000
    broker.hot.begin_sweep()
    ended: set[int] = set()
    slices = 0
    while broker.hot.sweep_left:
        broker.hot.sweep_some(broker.now_ns, 7)
        slices += 1
        going = silent[slices * 13 % 100]
        broker.hot.close(going)
        ended.add(going.number)
        broker.attach(connect_timeout_ns=1_000_000_000)  # attached now: it is not silent
        broker.hot.end_turn(broker.now_ns)
    reported = [conn.number for conn, _ in broker.handler.errors]
    assert len(reported) == len(set(reported)) and slices >= 10
    assert set(reported) | ended == {conn.number for conn in silent}
    broker.hot.sweep(broker.now_ns)
    assert len(broker.handler.errors) == len(reported), "once is enough"


def test_silence_is_not_counted_while_reading_is_paused(hot: Any) -> None:
    broker = Broker(hot, **LIMITS)
    broker.subscriber(b"t")
    pub = broker.attach()
    broker.send(pub, b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01c" + PACKET * 40)
    assert pub.parked
    for _ in range(20):
        broker.now_ns += 2_000_000_000
        broker.hot.sweep(broker.now_ns)
    assert broker.handler.errors == []


def test_replaced_route_applies_from_the_next_packet(hot: Any) -> None:
    broker = Broker(hot)
    first, second, pub = broker.subscriber(b"t"), broker.client(), broker.client()
    broker.send(pub, publish(b"t", b"1"))
    broker.hot.install_route(b"t", hot.state.Route(b"t", (hot.state.Sub(second, 0),)))
    broker.send(pub, publish(b"t", b"2"))
    assert broker.take(first) == [publish(b"t", b"1")]
    assert broker.take(second) == [publish(b"t", b"2")]


def test_output_in_a_filter_is_not_counted_as_written(hot: Any) -> None:
    """A WebSocket frame may be pending at a full socket: it counts as earlier output."""

    class Framed:
        ended = False

        def receive(self, data: bytes) -> bytes:
            return data

        def wrap(self, data: bytes) -> bytes:
            return b"f" + data

        def take_output(self) -> bytes:
            return b""

    broker = Broker(hot)
    conn = broker.hot.attach(-1, 0, hot.options.ConnOptions(filter=Framed()), broker.now_ns)
    broker.hot.write(conn, b"old")
    mark = broker.hot.output_mark(conn)
    broker.hot.write(conn, b"new")
    assert broker.hot.take_output(conn, 3) == b"fold" and broker.hot.written_to(conn) < mark
    assert broker.hot.take_output(conn) == b"fnew" and broker.hot.written_to(conn) == mark
    plain = broker.attach(0)
    broker.hot.write(plain, b"old")
    mark = broker.hot.output_mark(plain)
    assert broker.hot.take_output(plain) == b"old" and broker.hot.written_to(plain) == mark
