"""Round trips, splits and framing of the codec, on generated packets."""

import contextlib
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtt import (
    Auth,
    Connack,
    Connect,
    Limits,
    LocalProtocolError,
    MalformedPacket,
    Packet,
    Pingreq,
    Properties,
    PropertyId,
    Puback,
    Publish,
    ReasonCode,
    RemoteProtocolError,
    StreamDecoder,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
    connect_return_code,
    decode_packet,
    decode_varint,
    encode_packet,
    encode_properties,
    encode_publish,
    encode_varint,
)
from tests.mqtt.strategies import packets
from tests.turn_time import assert_within, timed

VERSIONS = st.sampled_from([3, 4, 5])


@settings(max_examples=200, deadline=None)
@given(VERSIONS.flatmap(lambda v: st.tuples(st.just(v), packets(v))))
def test_codec_round_trip(case: tuple[int, Packet]) -> None:
    """An encoded packet decodes to an equal packet, which encodes to the same bytes."""
    version, packet = case
    if version == 3 and isinstance(packet, Connack):
        packet.session_present = False  # MQTT 3.1 has none
    written = encode_packet(packet, version)
    decoder = StreamDecoder(version)
    assert decoder.feed(written) == [packet]
    assert encode_packet(decoder.feed(written)[0], version) == written


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_stream_decoder_any_split_gives_the_same_packets(data: st.DataObject) -> None:
    """Section 2.1: TCP has no messages."""
    version = data.draw(VERSIONS)
    sent = data.draw(st.lists(packets(version), min_size=1, max_size=6))
    stream = b"".join(encode_packet(packet, version) for packet in sent)
    whole = StreamDecoder(version).feed(stream)
    assert len(whole) == len(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = StreamDecoder(version)
    got = [packet for a, b in pairwise([0, *cuts, len(stream)]) for packet in decoder.feed(stream[a:b])]
    assert got == whole
    assert len(decoder) == 0


def test_stream_decoder_every_single_cut() -> None:
    """The same for each position of a single cut."""
    sent: list[Packet] = [Connect("c"), Publish("t", b"x" * 200, 1, packet_identifier=9), Pingreq()]
    stream = b"".join(encode_packet(packet, 5) for packet in sent)
    for cut in range(len(stream) + 1):
        decoder = StreamDecoder(connect_first=True)
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == sent


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_varint_borders(value: int) -> None:
    """Table 1-1: one to four bytes, and back."""
    written = encode_varint(value)
    assert decode_varint(b"\xff" + written + b"\xff", 1) == (value, 1 + len(written))
    assert len(written) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_varint_out_of_range(value: int) -> None:
    """Section 1.5.5: a larger value cannot be encoded."""
    with pytest.raises(LocalProtocolError):
        encode_varint(value)


@pytest.mark.parametrize("data", ["", "80", "ffffff", "ffffff80", "ffffffff01", "8000", "ff00"])
def test_varint_malformed(data: str) -> None:
    """Cut short, too long, or not in the shortest form [MQTT-1.5.5-1]."""
    with pytest.raises(MalformedPacket):
        decode_varint(bytes.fromhex(data))


def test_stream_decoder_refuses_a_declared_length_before_buffering() -> None:
    """A declared 256 MiB is refused after its five bytes of header, without buffering."""
    decoder = StreamDecoder(limits=Limits(first_packet_bytes_max=1024), connect_first=True)
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(b"\x10\xff\xff\xff\x7f")
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert len(decoder) == 0


def test_stream_decoder_limits_of_first_and_later_packets() -> None:
    """The first packet has a separate bound; a packet exactly at the bound passes."""
    connect, publish = encode_packet(Connect("c"), 5), encode_packet(Publish("t", bytes(100)), 5)
    limits = Limits(first_packet_bytes_max=len(connect), maximum_packet_size=len(publish))
    assert len(StreamDecoder(limits=limits).feed(connect + publish)) == 2
    decoder = StreamDecoder(limits=limits)
    assert len(decoder.feed(connect)) == 1
    with pytest.raises(RemoteProtocolError, match="packet of"):
        decoder.feed(encode_packet(Publish("t", bytes(101)), 5))


@pytest.mark.parametrize("header", ["10ffffff80", "30ffffffff", "3080808080"])
def test_stream_decoder_refuses_a_fourth_length_byte_with_top_bit(header: str) -> None:
    """Section 2.1.4: malformed at once, without waiting for a fifth byte."""
    with pytest.raises(MalformedPacket):
        StreamDecoder().feed(bytes.fromhex(header))


@pytest.mark.parametrize("first", ["00", "3e", "36", "c1", "80", "f0"])
def test_stream_decoder_refuses_by_the_first_byte(first: str) -> None:
    """Forbidden types and flags are refused before the length arrives."""
    with pytest.raises(RemoteProtocolError):
        StreamDecoder(4).feed(bytes.fromhex(first))


def test_stream_decoder_first_packet_must_be_connect() -> None:
    """[MQTT-3.1.0-1] and [MQTT-3.1.0-2]."""
    with pytest.raises(RemoteProtocolError, match=r"3\.1\.0-1"):
        StreamDecoder(connect_first=True).feed(b"\xc0")
    decoder = StreamDecoder(connect_first=True)
    connect = encode_packet(Connect("c", protocol_version=4), 4)
    assert decoder.feed(connect + connect) == [Connect("c", protocol_version=4)]
    with pytest.raises(RemoteProtocolError, match=r"3\.1\.0-2"):
        decoder.feed(b"")


def test_stream_decoder_returns_packets_before_an_error() -> None:
    """They are returned first; the error is visible at once and raised by all later calls."""
    decoder = StreamDecoder(5)
    assert decoder.feed(b"\xc0\x00\x00") == [Pingreq()]
    assert isinstance(decoder.error, RemoteProtocolError)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            decoder.feed(b"\xc0\x00")


def test_stream_decoder_version_follows_connect() -> None:
    """Packets after CONNECT are decoded in its version."""
    for version in (3, 4, 5):
        decoder = StreamDecoder(connect_first=True)
        decoder.feed(encode_packet(Connect("c", protocol_version=version), version))
        subscribe = Subscribe(1, [SubscriptionRequest("t", 1)])
        assert decoder.feed(encode_packet(subscribe, version)) == [subscribe]
        assert decoder.protocol_version == version


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        ("100d00044d515454050300000000 00", None),  # reserved flag: no answer
        ("100d00044d51545405020000000001", 5),  # client id cut short
        ("100c00044d5154540402000000 01", None),  # 3.1.1 has no code for a malformed packet
        ("100c00044d515454030200000000", 4),  # 3.1.1 clients understand "unacceptable protocol version"
        ("100c00044d515454060200000000", 5),
        ("100c00044d515454850200000000", 5),  # the bit of a bridge, which one of MQTT 5 does not set
        ("100f00044d515454058200000000000002 c3", None),  # credentials: no answer
    ],
)
def test_refused_connect_has_the_version_of_its_answer(raw: str, answer: int | None) -> None:
    """The version of the permitted CONNACK [MQTT-3.1.4-1], or none."""
    with pytest.raises(RemoteProtocolError) as caught:
        data = bytes.fromhex(raw)
        decode_packet(data[0], data[2:], 4)
    assert caught.value.connect_version == answer


def test_decode_packet_enforces_limits() -> None:
    """User properties are bounded by bytes, subscriptions by number: 0x97, and one less passes."""
    limits = Limits(user_properties_bytes_max=20, subscriptions_max=2)
    few: Packet = Publish("t", properties={PropertyId.USER_PROPERTY: [("k" * 3, "v" * 3), ("k" * 3, "v" * 3)]})
    assert StreamDecoder(5, limits).feed(encode_packet(few, 5)) == [few]
    many = Publish("t", properties={PropertyId.USER_PROPERTY: [("k" * 3, "v" * 3), ("k" * 3, "v" * 4)]})
    requests = [SubscriptionRequest("t")] * 3
    refused: list[Packet] = [many, Subscribe(1, requests), Unsubscribe(1, ["t"] * 3)]
    for packet in refused:
        with pytest.raises(RemoteProtocolError) as caught:
            StreamDecoder(5, limits).feed(encode_packet(packet, 5))
        assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("value", ["v", "\u00e9", "\u200b"])
def test_decode_packet_bounds_the_number_of_user_properties(value: str) -> None:
    """Properties of the slow path and of the fast path count together."""
    limits = Limits(user_properties_max=64)
    for count, code in ((64, 0), (65, ReasonCode.QUOTA_EXCEEDED), (5000, ReasonCode.QUOTA_EXCEEDED)):
        pairs = [("k", value if number % 3 else "w") for number in range(count)]
        packet: Packet = Publish("t", properties={PropertyId.USER_PROPERTY: pairs})
        try:
            assert StreamDecoder(5, limits).feed(encode_packet(packet, 5)) == [packet]
            found = 0
        except RemoteProtocolError as error:
            found = error.reason_code
        assert found == code


@timed
def test_decode_packet_stops_at_the_maximum_of_user_properties() -> None:
    """A refused CONNECT of 55 KB took 1.5 ms, and each connection may send one."""
    pairs = [("key", "value")] * 5000
    data = encode_packet(Publish("t", properties={PropertyId.USER_PROPERTY: pairs}), 5)

    def least_s(limits: Limits) -> float:
        found = []
        for _ in range(5):
            began = time.thread_time()
            with contextlib.suppress(RemoteProtocolError):
                StreamDecoder(5, limits).feed(data)
            found.append(time.thread_time() - began)
        return min(found)

    all_ms = least_s(Limits()) * 1e3
    assert_within("refused properties", least_s(Limits(user_properties_max=64)) * 1e3, all_ms / 4)
    assert_within("refused bytes of properties", least_s(Limits(user_properties_bytes_max=500)) * 1e3, all_ms / 4)


def test_decode_packet_control_characters_are_optional() -> None:
    """Section 1.5.4 lets a receiver accept them; U+0000 is always refused."""
    packet = Publish("a\x07b")
    with pytest.raises(MalformedPacket):
        StreamDecoder(4).feed(encode_packet(packet, 4))
    assert StreamDecoder(4, Limits(control_characters=True)).feed(encode_packet(packet, 4)) == [packet]
    with pytest.raises(MalformedPacket):
        StreamDecoder(4, Limits(control_characters=True)).feed(b"\x30\x03\x00\x01\x00")


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Publish("t", qos=1), 4),
        (Publish("t", qos=3, packet_identifier=1), 4),
        (Publish("t", dup=True), 4),
        (Publish("x" * 65_536), 5),
        (Publish("\ud800"), 5),
        (Publish("a\0b"), 4),
        (Puback(1, 256), 5),
        (Suback(1, [-1]), 5),
        (Connect(None), 5),  # type: ignore[arg-type]
        (Publish("t", properties={PropertyId.USER_PROPERTY: 7}), 5),
        (Puback(0), 5),
        (Puback(65_536), 5),
        (Auth(), 4),
        (Subscribe(1, []), 5),
        (Unsubscribe(1, []), 5),
        (Subscribe(1, [SubscriptionRequest("t", retain_handling=3)]), 5),
        (Connect("c", keep_alive_s=65_536), 5),
        (Connect("c", protocol_version=4, password=b"p"), 4),
        (Connect("c", protocol_version=6), 5),
        (Connect("\ud800"), 5),
        (Connect("a\0"), 5),
        (Connect("c", will=Will("w", qos=3)), 5),
        (Connack(False, ReasonCode.MALFORMED_PACKET), 4),
        (Publish("t", properties={0x7F: 1}), 5),
        (Publish("t", properties={PropertyId.TOPIC_ALIAS: "1"}), 5),
        (Publish("t", properties={PropertyId.TOPIC_ALIAS: 65_536}), 5),
        (Publish("t", properties={PropertyId.USER_PROPERTY: [("k", 1)]}), 5),
    ],
)
def test_encode_packet_refuses_invalid_packets(packet: Packet, version: int) -> None:
    """Invalid fields raise LocalProtocolError."""
    with pytest.raises(LocalProtocolError):
        encode_packet(packet, version)


def test_encode_packet_translates_codes_for_older_versions() -> None:
    """CONNACK and SUBACK for 3.1.1: return codes (3.1.1 sections 3.2.2.3 and 3.9.3); properties are left out."""
    noted: Properties = {PropertyId.REASON_STRING: "no"}
    assert encode_packet(Connack(False, ReasonCode.BANNED, noted), 4) == b"\x20\x02\x00\x05"
    assert encode_packet(Connack(True), 3) == b"\x20\x02\x00\x00"
    assert encode_packet(Suback(1, [2, ReasonCode.NOT_AUTHORIZED], noted), 4) == b"\x90\x04\x00\x01\x02\x80"
    assert connect_return_code(ReasonCode.MALFORMED_PACKET) is None


def test_encode_publish_forwards_without_packet_objects() -> None:
    """Property block by span, alias and identifiers dropped, encoded for another version."""
    properties: Properties = {
        PropertyId.CONTENT_TYPE: "x",
        PropertyId.TOPIC_ALIAS: 1,
        PropertyId.USER_PROPERTY: [("k", "v")],
    }
    for qos, identifier in ((0, None), (1, 7)):
        raw = encode_packet(Publish("a/b", b"body", qos, packet_identifier=identifier, properties=properties), 5)
        assert raw.endswith(encode_properties(properties) + b"body")
        kept = {key: value for key, value in properties.items() if key != PropertyId.TOPIC_ALIAS}
        block = encode_properties(kept)
        forwarded = encode_publish(b"a/b", b"body", 2, True, True, 9, 5, block)
        assert StreamDecoder(5).feed(forwarded) == [Publish("a/b", b"body", 2, True, True, 9, kept)]
        old = encode_publish(b"a/b", b"body", 0, False, False, None, 4, block)
        assert StreamDecoder(4).feed(old) == [Publish("a/b", b"body")]
