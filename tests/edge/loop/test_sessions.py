"""Sessions: windows and pending messages of ephemeral ones, pushes of durable ones, encodings per subscriber."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clients.packets import ack, publish, split
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import Push, PushAck, decode_push_acks, encode_push
from wire.messages.frames import FrameKind

SLOW = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
RECEIVE_MAXIMUM_3 = b"\x21\x00\x03"


def test_client_receive_maximum_bounds_qos_1_and_2_together(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.client(5, RECEIVE_MAXIMUM_3)
    broker.handler.subscriptions[sub][b"t"] = (2, 2, 0)
    pub = broker.client()
    broker.send(pub, b"".join(publish(b"t", b"%d" % i, 1 + i % 2, i + 1) for i in range(6)))
    assert [p[0] for p in broker.take(sub)] == [0x32, 0x34, 0x32]
    broker.send(sub, ack(0x40, 1))
    assert broker.take(sub) == [publish(b"t", b"3", 2, 4, 5)]
    broker.send(sub, ack(0x50, 2))
    assert broker.take(sub) == [ack(0x62, 2)]
    broker.send(sub, ack(0x70, 2) + ack(0x50, 4, 0x80))
    assert broker.take(sub) == [publish(b"t", b"4", 1, 5, 5), publish(b"t", b"5", 2, 6, 5)]


def test_pending_is_bounded_and_counted(hot: Any) -> None:
    broker = Broker(hot, pending_messages_max=4)
    sub = broker.client(5, RECEIVE_MAXIMUM_3)
    broker.handler.subscriptions[sub][b"t"] = (1, 1, 0)
    pub = broker.client()
    broker.send(pub, b"".join(publish(b"t", b"%d" % i, 1, i + 1) for i in range(10)))
    assert broker.hot.counters()["dropped_pending"] == 3
    got = []
    for _ in range(7):
        for packet in broker.take(sub):
            got.append(packet[-1:])
            broker.send(sub, ack(0x40, packet[5] << 8 | packet[6]))
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_pending_message_expires_or_has_remaining_expiry(hot: Any) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]."""
    broker = Broker(hot)
    sub = broker.client(5, b"\x21\x00\x01")
    broker.handler.subscriptions[sub][b"t"] = (1, 1, 0)
    pub = broker.client(5)
    for identifier, expiry in ((1, 100), (2, 3), (3, 60)):
        properties = b"\x02" + expiry.to_bytes(4, "big")
        broker.send(pub, publish(b"t", b"%d" % identifier, 1, identifier, 5, properties))
    broker.take(sub)
    broker.now_ns += 10_000_000_000
    broker.send(sub, ack(0x40, 1))
    assert broker.take(sub) == [publish(b"t", b"3", 1, 2, 5, b"\x02\x00\x00\x00\x32")]
    assert broker.hot.counters()["dropped_expired"] == 1


def test_identifiers_wrap_and_skip_those_in_use(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"t", 2)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"", 2, 1))
    assert broker.take(sub) == [publish(b"t", b"", 2, 1)]  # kept open for the whole test
    seen = []
    for i in range(65_600):
        broker.hot.feed(pub, publish(b"t", b"", 1, 1))
        identifier = int.from_bytes(broker.raw(sub)[5:7], "big")
        seen.append(identifier)
        broker.hot.feed(sub, ack(0x40, identifier))
        if i % 100 == 0:
            broker.raw(pub)
        if not hot.compiled and i > 300:
            return
    free = [number for number in range(2, 65_536) if number & 127 != 1]  # 1 uses its slot of 128
    assert seen[: len(free)] == free
    assert seen[len(free)] == 2


@pytest.mark.parametrize(
    ("version", "properties"), [(4, b""), (5, b""), (5, b"\x02\x00\x00\x00\x05\x26\x00\x01a\x00\x01b")]
)
def test_each_subscriber_class_receives_its_encoding(hot: Any, version: int, properties: bytes) -> None:
    broker = Broker(hot)
    subs = {
        "four": broker.subscriber(b"t", 2, 4),
        "five": broker.subscriber(b"t", 2, 5),
        "identified": broker.subscriber(b"t", 2, 5, 7),
        "lower": broker.subscriber(b"t", 1, 4),
    }
    pub = broker.client(version)
    for qos in (0, 1, 2):
        broker.send(pub, publish(b"t", b"x", qos, 9, version, properties) * (2 if qos == 0 else 1))
        times = 2 if qos == 0 else 1
        number = max(1, qos)
        kept = properties if version == 5 else b""
        assert broker.take(subs["four"]) == [publish(b"t", b"x", qos, number)] * times
        assert broker.take(subs["five"]) == [publish(b"t", b"x", qos, number, 5, kept)] * times
        assert broker.take(subs["identified"]) == [publish(b"t", b"x", qos, number, 5, kept + b"\x0b\x07")] * times
        assert broker.take(subs["lower"]) == [publish(b"t", b"x", min(qos, 1), number)] * times


def test_maximum_packet_size_of_the_client(hot: Any) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]: a packet too large with its properties is dropped and counted."""
    broker = Broker(hot)
    sub = broker.client(5, b"\x27\x00\x00\x00\x10")
    broker.handler.subscriptions[sub][b"t"] = (1, 1, 0)
    pub = broker.client()
    fits = 16 - 2 - 3 - 1
    broker.send(pub, publish(b"t", bytes(fits)) + publish(b"t", bytes(fits + 1)) + publish(b"t", bytes(fits)))
    assert broker.take(sub) == [publish(b"t", bytes(fits), version=5)] * 2
    broker.send(pub, publish(b"t", bytes(fits - 1), 1, 1))
    assert broker.take(sub) == []
    assert broker.hot.counters()["dropped_too_large"] == 2


def test_no_local_and_retain_as_published(hot: Any) -> None:
    """[MQTT-3.8.3-3] [MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    broker = Broker(hot)
    own = broker.subscriber(b"t", 4, 5)
    keeps, clears = broker.subscriber(b"t", 8, 5), broker.subscriber(b"t", 0, 5)
    broker.send(own, publish(b"t", b"a", version=5) + publish(b"t", b"b", 0, 0, 5, retain=True))
    assert broker.take(own) == []
    assert [p[0] for p in broker.take(keeps)] == [0x30, 0x31]
    assert [p[0] for p in broker.take(clears)] == [0x30, 0x30]
    (inbound,) = broker.handler.inbounds
    assert (inbound.topic, inbound.payload, inbound.retain, inbound.qos) == (b"t", b"b", True, 0)


def test_retained_publish_is_parsed_for_the_core(hot: Any) -> None:
    broker = Broker(hot)
    pub = broker.client(5)
    properties = b"\x01\x01\x23\x00\x02\x26\x00\x01a\x00\x01b\x02\x00\x00\x00\x08\x03\x00\x01c"
    broker.send(
        pub, publish(b"t", b"r", 1, 4, 5, properties, retain=True) + publish(b"", b"s", 0, 0, 5, b"\x23\x00\x02")
    )
    (inbound,) = broker.handler.inbounds
    assert inbound.properties == b"\x01\x01\x26\x00\x01a\x00\x01b\x03\x00\x01c"
    assert (inbound.expiry_s, inbound.packet_identifier, inbound.version) == (8, 4, 5)
    assert broker.take(pub) == [ack(0x40, 4, 0x10)]


SUBSCRIBERS = st.lists(
    st.tuples(st.sampled_from([4, 5]), st.integers(0, 2), st.sampled_from([0, 3])), min_size=1, max_size=5
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from([b"a", b"a", b"b"]), st.integers(0, 2), st.binary(max_size=3)), min_size=1, max_size=12
)


@pytest.mark.parametrize("version", [4, 5])
@SLOW
@given(subscribers=SUBSCRIBERS, messages=MESSAGES, cuts=st.lists(st.integers(0, 150), max_size=3))
def test_delivery_equals_a_slow_model(
    hot: Any, version: int, subscribers: list[Any], messages: list[Any], cuts: list[int]
) -> None:
    """Every subscriber receives each message of its topic once, in order, at the lower QoS, in its own encoding."""
    broker = Broker(hot)
    topics = [(b"a", b"b", b"+")[i % 3] for i in range(len(subscribers))]
    conns = [broker.subscriber(t, q, v, i) for t, (v, q, i) in zip(topics, subscribers, strict=True)]
    pub = broker.client(version)
    stream = b"".join(publish(t, p, q, i + 1, version) for i, (t, q, p) in enumerate(messages))
    at = 0
    for cut in [*sorted(min(c, len(stream)) for c in cuts), len(stream)]:
        broker.send(pub, stream[at:cut])
        at = cut
    for conn, topic, (v, q, i) in zip(conns, topics, subscribers, strict=True):
        expected, number = [], 0
        for name, qos, payload in messages:
            if topic in (b"+", name):
                level = min(q, qos)
                number += level > 0
                properties = b"\x0b\x03" if i and v == 5 else b""
                expected.append(publish(name, payload, level, number, v, properties))
        assert broker.take(conn) == expected
    answers = [ack(0x30 + 0x10 * q, i + 1) for i, (_, q, _) in enumerate(messages) if q]
    assert [p[:1] + p[2:4] for p in split(broker.raw(pub))] == [a[:1] + a[2:4] for a in answers]


# -- durable sessions


def durable(hot: Any) -> tuple[Broker, Node, Any]:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(0, store.peer)
    broker.handler.session_options = {"session": 50, "owner_epoch": 6}
    conn = broker.client(5)
    broker.handler.session_options = {}
    broker.hot.set_primary_of(conn, store.peer)
    return broker, store, conn


def push(seq: int, identifier: int, qos: int = 1, **more: Any) -> bytes:
    return encode_push(Push(50, 6, 2, seq, identifier, qos, b"t", b"m", **more))


def acks(store: Node) -> list[tuple[int, int, int]]:
    found = []
    for kind, payload in store.take():
        if kind == FrameKind.PUSH_ACK:
            for record in decode_push_acks(payload):
                assert (record.session, record.owner_epoch) == (50, 6)
                found.append((record.session_seq, record.packet_type, record.reason_code))
    return found


def test_pushes_are_written_and_acknowledged_by_entry(hot: Any) -> None:
    broker, store, conn = durable(hot)
    store.send(FrameKind.PUSH, push(1, 11, properties=b"\x0b\x03", expiry_s=9) + push(2, 12, 2, dup=True, retain=True))
    assert broker.take(conn) == [
        publish(b"t", b"m", 1, 11, 5, b"\x02\x00\x00\x00\x09\x0b\x03"),
        publish(b"t", b"m", 2, 12, 5, retain=True, dup=True),
    ]
    assert broker.hot.open_pushes(conn) == [(1, 11, 1), (2, 12, 2)]
    broker.send(conn, ack(0x40, 11) + ack(0x50, 12))
    assert acks(store) == [(1, 4, 0), (2, 5, 0)]
    store.send(FrameKind.PUSH, encode_push(Push(50, 6, 2, 2, 12, 2, pubrel=True)))
    assert broker.take(conn) == [ack(0x62, 12)]
    broker.send(conn, ack(0x70, 12))
    assert acks(store) == [(2, 7, 0)]
    assert broker.hot.open_pushes(conn) == []
    assert PushAck(1, 2, 3, 4, 5, 6).reason_code == 6


def test_unknown_pubrec_is_answered_by_pubrel_unless_it_is_an_error(hot: Any) -> None:
    broker, store, conn = durable(hot)
    broker.send(conn, ack(0x50, 9) + ack(0x50, 10, 0x80))
    assert broker.take(conn) == [ack(0x62, 9, 0x92)]
    assert acks(store) == []


def test_push_of_an_older_connection_or_unknown_session_is_ignored(hot: Any) -> None:
    broker, store, conn = durable(hot)
    payload = encode_push(Push(50, 5, 2, 1, 1, 1, b"t", b"m")) + encode_push(Push(51, 6, 2, 1, 1, 1, b"t", b"m"))
    store.send(FrameKind.PUSH, payload)
    assert broker.take(conn) == []
    assert broker.hot.counters()["pushes_ignored"] == 2


def test_repeated_pushes_after_a_failover_are_answered_not_written(hot: Any) -> None:
    """PROTOCOL 4.5: the entry is open here, or the client's last acknowledgement is known."""
    broker, store, conn = durable(hot)
    store.send(FrameKind.PUSH, push(1, 11) + push(2, 12) + push(3, 13, 2))
    broker.take(conn)
    broker.send(conn, ack(0x40, 11) + ack(0x50, 13))
    acks(store)
    other = Node(broker, 4, "storage")
    broker.hot.set_primary_of(conn, None)
    broker.hot.set_primary(0, other.peer)
    broker.send(conn, ack(0x40, 12))
    assert acks(store) == []
    broker.hot.set_primary_of(conn, other.peer)
    broker.turn()
    assert acks(other) == [(2, 4, 0)]
    repeats = [
        Push(50, 6, 3, seq, identifier, qos, b"t", b"m")
        for seq, identifier, qos in ((1, 11, 1), (2, 12, 1), (3, 13, 2))
    ]
    other.send(FrameKind.PUSH, b"".join(encode_push(p) for p in repeats))
    assert broker.take(conn) == []
    assert acks(other) == [(1, 4, 0), (2, 4, 0), (3, 5, 0)]


def test_push_that_is_too_large_counts_as_sent(hot: Any) -> None:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(0, store.peer)
    broker.handler.session_options = {"session": 50, "owner_epoch": 6}
    conn = broker.client(5, b"\x27\x00\x00\x00\x08")
    broker.hot.set_primary_of(conn, store.peer)
    store.send(FrameKind.PUSH, push(1, 11) + push(2, 12, 2) + push(3, 0, 0))
    assert broker.take(conn) == [publish(b"t", b"m", version=5)]
    assert acks(store) == [(1, 4, 0x95), (2, 5, 0x95)]


def test_new_primary_gets_no_message_that_a_durable_session_resends(hot: Any) -> None:
    """Simulation seed 72018: it arrived behind newer messages of the session's next connection at another edge."""
    broker, store, conn = durable(hot)
    successor = Node(broker, 4, "storage")
    broker.hot.set_primary(5, store.peer)
    broker.route_to(partitions=(5,))
    other = broker.client(5)
    codes: list[int] = []
    retained = hot.state.InboundPublish(b"r", b"kept", 1, True, conn=conn)
    broker.hot.publish(hot.state.Route(b"r"), retained, 5, on_done=codes.append)
    broker.send(conn, publish(b"t", b"m", 1, 1, 5))
    broker.send(other, publish(b"t", b"n", 1, 1, 5))
    broker.hot.close(conn)
    broker.hot.close(other)
    broker.turn()
    assert [record.payload for record in store.records()] == [b"kept", b"m", b"n"]
    assert broker.hot.replay_partition(5, successor.peer) == 1
    broker.turn()
    assert [record.payload for record in successor.records()] == [b"n"]
    assert codes == [0x8E]


def test_qos2_of_a_durable_publisher_goes_to_the_core(hot: Any) -> None:
    broker, store, conn = durable(hot)
    broker.hot.set_primary(5, store.peer)
    broker.route_to(partitions=(5,))
    seen: list[Any] = []

    def inbound(conn: Any, publish: Any, route: Any) -> None:  # noqa: ARG001
        seen.append((conn, publish))

    broker.handler.inbound = inbound  # type: ignore[method-assign]
    broker.send(conn, publish(b"t", b"m", 2, 9, 5) + publish(b"t", b"n", 1, 10, 5))
    assert conn.parked
    assert len(seen) == 1
    broker.hot.publish(broker.hot.route(b"t"), seen[0][1], origin_kind=1, origin_a=50, origin_b=77)
    broker.hot.resume(conn)
    broker.turn()
    first, second = store.records()
    assert (first.origin_kind, first.origin_a, first.origin_b, first.session, first.owner_epoch) == (1, 50, 77, 50, 6)
    assert (second.origin_kind, second.origin_a, second.session) == (0, 7, 50)
