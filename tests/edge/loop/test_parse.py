"""Packets from bytes: every split, the reference codec, errors with their codes, aliases, quotas."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqtt.codec import StreamDecoder
from mqtt.codec import encode_varint as varint
from mqtt.errors import MqttError
from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker

ALIAS = b"\x23\x00"
SLOW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def stream(version: int) -> bytes:
    props = b"\x02\x00\x00\x00\x09\x26\x00\x01k\x00\x01v" if version == 5 else b""
    parts = [
        publish(b"a/b", b"one", version=version),
        publish(b"a/b", b"two" * 50, version=version, properties=props),
        publish(b"other", b"", version=version),
        publish(b"a/b", b"three", 1, 7, version=version),
        b"\xc0\x00",
        publish(b"a/b", b"four", 2, 8, version=version, properties=props),
        publish(b"a/b", b"five", version=version),
        ack(0x62, 8),
        publish(b"a/b", b"x" * 300, version=version),
    ]
    if version == 5:
        parts.append(publish(b"a/b", b"six", version=5, properties=ALIAS + b"\x03"))
        parts.append(publish(b"", b"seven", version=5, properties=b"\x01\x01" + ALIAS + b"\x03"))
    return b"".join(parts)


@pytest.mark.parametrize("version", [4, 5])
def test_every_split_gives_the_same_bytes(hot: Any, version: int) -> None:
    data = stream(version)

    def outputs(pieces: list[bytes]) -> tuple[bytes, bytes, bytes]:
        broker = Broker(hot)
        subs = broker.subscriber(b"a/b", 2, 4), broker.subscriber(b"#", 1, 5, 3)
        pub = broker.client(version)
        for piece in pieces:
            broker.send(pub, piece)
        assert not broker.handler.errors
        return broker.raw(pub), broker.raw(subs[0]), broker.raw(subs[1])

    whole = outputs([data])
    for cut in range(1, len(data)):
        assert outputs([data[:cut], data[cut:]]) == whole, cut
    assert outputs([data[i : i + 1] for i in range(len(data))]) == whole


@pytest.mark.parametrize("version", [4, 5])
def test_subscriber_output_equals_the_reference_codec(hot: Any, version: int) -> None:
    broker = Broker(hot)
    four, five = broker.subscriber(b"a/b", 2, 4), broker.subscriber(b"a/b", 2, 5, 9)
    pub = broker.client(version)
    broker.send(pub, stream(version))
    sent = [p for p in StreamDecoder(version).feed(stream(version)) if getattr(p, "topic_name", None) in ("a/b", "")]
    for reader in (4, 5):
        got: list[Any] = StreamDecoder(reader).feed(broker.raw(four if reader == 4 else five))
        assert [(p.payload, p.qos, p.retain, p.dup) for p in got] == [
            (p.payload, p.qos, False, False)  # type: ignore[union-attr]
            for p in sent
        ]
        assert {p.topic_name for p in got} == {"a/b"}
        if reader == 5:
            for mine, theirs in zip(got, sent, strict=True):
                expected = {k: v for k, v in theirs.properties.items() if k != 0x23}  # type: ignore[union-attr]
                assert {k: v for k, v in mine.properties.items() if k != 0x0B} == expected
                assert mine.properties[0x0B] in (9, [9], (9,))


ERRORS = [
    (4, publish(b"a", b"", 1, 0), 0x82, "packet identifier 0 [MQTT-2.2.1-3]"),
    (4, b"\x36\x04\x00\x01a\x00", 0x81, "QoS 3 [MQTT-3.3.1-4]"),
    (4, b"\x38\x03\x00\x01a", 0x81, "DUP at QoS 0 [MQTT-3.3.1-2]"),
    (4, b"\x30\x01\x00", 0x81, "no room for the topic length"),
    (4, b"\x30\x03\x00\x05a", 0x81, "topic beyond the packet"),
    (4, publish(b"a/+", b""), 0x81, "wildcard [MQTT-3.3.2-2]"),
    (4, publish(b"a\x00", b""), 0x81, "U+0000 [MQTT-1.5.4-2]"),
    (4, publish(b"\xed\xa0\x80", b""), 0x81, "surrogate [MQTT-1.5.4-1]"),
    (4, publish(b"", b""), 0x81, "empty topic in 3.1.1"),
    (5, publish(b"", b"", version=5), 0x82, "empty topic without alias"),
    (5, publish(b"a", b"", version=5, properties=ALIAS + b"\x00"), 0x94, "alias 0 [MQTT-3.3.2-8]"),
    (5, publish(b"a", b"", version=5, properties=ALIAS + b"\x0b"), 0x94, "alias above the maximum [MQTT-3.3.2-9]"),
    (5, publish(b"", b"", version=5, properties=ALIAS + b"\x02"), 0x82, "alias never set"),
    (5, publish(b"a", b"", version=5, properties=b"\x0b\x01"), 0x82, "subscription identifier [MQTT-3.3.4-6]"),
    (5, publish(b"a", b"", version=5, properties=b"\x01\x00\x01\x00"), 0x82, "a property twice"),
    (5, publish(b"a", b"", version=5, properties=b"\x7e"), 0x81, "unknown property"),
    (5, publish(b"a", b"", version=5, properties=b"\x21\x00\x01"), 0x82, "property of another packet"),
    (5, publish(b"a", b"", version=5, properties=b"\x08\x00\x01#"), 0x82, "wildcard response topic"),
    (4, b"\x41\x02\x00\x01", 0x81, "PUBACK flags"),
    (4, b"\x60\x02\x00\x01", 0x81, "PUBREL flags [MQTT-3.6.1-1]"),
    (4, b"\xc1\x00", 0x81, "PINGREQ flags"),
    (4, b"\xc0\x01\x00", 0x81, "PINGREQ with a body"),
    (4, b"\x30\xff\xff\xff\xff\x01", 0x81, "length of five bytes"),
    (4, b"\x30" + varint(2_000_000), 0x95, "too large, reported before the body"),
]


@pytest.mark.parametrize(("version", "data", "code"), [row[:3] for row in ERRORS], ids=[row[3] for row in ERRORS])
def test_errors(hot: Any, version: int, data: bytes, code: int) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"#")
    pub = broker.client(version)
    broker.send(pub, publish(b"before", b"", version=version) + data + publish(b"after", b"", version=version))
    assert broker.handler.errors == [(pub, code)]
    assert pub.closed
    assert [packet[4:10] for packet in broker.take(sub)] == [b"before"]


@pytest.mark.parametrize(("data", "code"), [(b"\x3e", 0x81), (b"\x60", 0x81), (b"\x0a\xc0", 0x82), (b"\x3e\x80", 0x81)])
def test_invalid_first_byte_is_reported_before_the_packet_is_complete(hot: Any, data: bytes, code: int) -> None:
    """An invalid first byte is reported without the length; earlier packets still count."""
    broker = Broker(hot)
    sub = broker.subscriber(b"#")
    pub = broker.client(5)
    broker.send(pub, publish(b"before", b"", version=5) + data)
    assert broker.handler.errors == [(pub, code)] and pub.closed
    assert len(broker.take(sub)) == 1


MUTABLE = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"a/b", b"$x", b"\xc3\xa9", b"a#", b""]),
        st.binary(max_size=6),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([b"", b"\x02\x00\x00\x00\x05", b"\x26\x00\x01a\x00\x00", b"\x01\x01", b"\x03\x00\x02ab"]),
    ),
    min_size=1,
    max_size=4,
)


def first_bytes(data: bytes) -> list[int]:
    """Return first bytes of the packets, the incomplete one included, while lengths are valid."""
    found, at = [], 0
    while at < len(data):
        found.append(data[at])
        length = shift = 0
        at += 1
        while at < len(data) and shift < 28:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length
    return found


@pytest.mark.parametrize("version", [4, 5])
@SLOW
@given(messages=MUTABLE, flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2))
def test_parser_refuses_the_same_packets_as_the_reference_codec(
    hot: Any,
    version: int,
    messages: list[tuple[bytes, bytes, int, int, bytes]],
    flips: list[tuple[int, int]],
) -> None:
    """Both refuse a damaged stream, or neither; they may find two faults in another order."""
    data = bytearray()
    for index, (topic, payload, qos, identifier, properties) in enumerate(messages):
        number = identifier and 4 * identifier + index  # unique: a repeated QoS 2 identifier is not validated again
        data += publish(topic, payload, qos, number, version, properties if version == 5 else b"")
    for at, byte in flips:
        data[at % len(data)] = byte
    if not all(first >> 4 in {3, 4, 5, 6, 7, 12} for first in first_bytes(bytes(data))):
        return
    reference = StreamDecoder(version)
    refused = False
    try:
        reference.feed(bytes(data))
        refused = reference.error is not None
    except MqttError:
        refused = True
    broker = Broker(hot)
    pub = broker.client(version)
    broker.send(pub, bytes(data))
    ours = broker.handler.errors[0][1] if broker.handler.errors else None
    if ours in (0x93, 0x94) or (ours == 0x82 and b"\x23" in data):
        return  # error of the connection, not of the packet
    assert (ours is not None) == refused


def test_inbound_quota(hot: Any) -> None:
    """A new v5 session above Receive Maximum is 0x93 [MQTT-3.3.4-7]; QoS 2 counts until PUBCOMP."""
    broker = Broker(hot)
    broker.handler.session_options = {"announced_receive_maximum": 2, "fresh": True}
    pub = broker.client(5)
    broker.send(pub, publish(b"a", b"", 2, 1, 5) + publish(b"a", b"", 2, 2, 5))
    broker.send(pub, ack(0x62, 1) + publish(b"a", b"", 2, 3, 5))
    assert not broker.handler.errors
    broker.send(pub, publish(b"a", b"", 2, 4, 5))
    assert broker.handler.errors == [(pub, 0x93)]


def test_v3_quota_does_not_hide_pubrel(hot: Any) -> None:
    broker = Broker(hot)
    broker.handler.session_options = {"announced_receive_maximum": 2}
    pub = broker.client(4)
    broker.send(pub, b"".join(publish(b"a", b"", 2, i) for i in range(1, 9)) + ack(0x62, 1))
    assert [p[0] for p in broker.take(pub)] == [0x50] * 8 + [0x70]


def test_miss_keeps_order_until_resumed(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"#")
    pub = broker.client()
    real_miss, waiting = broker.handler.miss, []
    broker.handler.miss = lambda conn, topic: waiting.append((conn, topic))  # type: ignore[method-assign]
    first, second = publish(b"a", b"1"), publish(b"b", b"2")
    broker.send(pub, first + second)
    assert pub.parked
    broker.send(pub, publish(b"a", b"3"))
    assert broker.take(sub) == []
    assert waiting == [(pub, b"a")]
    broker.handler.miss = real_miss  # type: ignore[method-assign]
    broker.hot.install_route(b"a", hot.state.Route(b"a", broker.handler.subscribers(b"a")))
    broker.hot.resume(pub)
    broker.turn()
    assert broker.take(sub) == [first, second, publish(b"a", b"3")]


def test_authorize_is_called_once_per_topic_and_can_refuse(hot: Any) -> None:
    broker = Broker(hot)
    broker.hot.authorizing = True
    requested: list[bytes] = []

    def authorize(conn: Any, topic: bytes, retain: bool) -> int:
        del retain
        assert conn is pub
        requested.append(topic)
        return 0 if topic == b"no" else 0x3F

    broker.handler.authorize = authorize  # type: ignore[method-assign]
    sub = broker.subscriber(b"#", 1)
    pub = broker.client(5)
    data = publish(b"no", b"", 0, 0, 5) + publish(b"yes", b"", 0, 0, 5) + publish(b"no", b"", 1, 4, 5)
    broker.send(pub, data * 2)
    assert requested == [b"no", b"yes"]
    assert [p[4:7] for p in broker.take(sub)] == [b"yes"] * 2
    assert broker.take(pub) == [ack(0x40, 4, 0x87)] * 2
    assert broker.hot.counters()["dropped_denied"] == 4


def test_large_packet_arrives_in_pieces(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"a")
    pub = broker.client()
    packet = publish(b"a", random.Random(1).randbytes(700_000))
    for at in range(0, len(packet), 65_536):
        broker.send(pub, packet[at : at + 65_536])
    assert broker.raw(sub) == packet
