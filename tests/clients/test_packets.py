"""The clients' packets against the codec: the codec decodes them, and a stream is cut at any place."""

import pytest

from mqtt.codec import decode_packet, decode_varint
from mqtt.packets import Connect, Disconnect, Pingreq, Puback, Publish, Subscribe, Unsubscribe
from tests.clients import packets

NAME = b"n" * 200
WRITTEN = [
    (packets.connect(NAME, 5, packets.session_expiry(5), 60, clean=False), 5, Connect),
    (packets.connect(), 4, Connect),
    (packets.publish(NAME, b"x" * 20_000, 2, 7, 5, retain=True), 5, Publish),
    (packets.publish(b"a", b"", dup=False), 4, Publish),
    (packets.subscribe([b"a", b"b/#"], 1, 5, 9), 5, Subscribe),
    (packets.subscribe(b"a"), 4, Subscribe),
    (packets.unsubscribe([b"a", b"b"], 5), 5, Unsubscribe),
    (packets.ack(0x40, 7, 0x10), 5, Puback),
    (packets.PINGREQ, 5, Pingreq),
    (packets.DISCONNECT, 5, Disconnect),
]


@pytest.mark.parametrize(("data", "version", "kind"), WRITTEN)
def test_packets_decode_to_intended_values(data: bytes, version: int, kind: type) -> None:
    length, body = decode_varint(data, 1)
    assert body + length == len(data)
    assert isinstance(decode_packet(data[0], data[body:], version), kind)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000, 1 << 20])
def test_splitter_cuts_stream_into_packets(size: int) -> None:
    whole = [data for data, _, _ in WRITTEN]
    stream, splitter = b"".join(whole), packets.Splitter()
    found = [packet for at in range(0, len(stream), size) for packet in splitter.feed(stream[at : at + size])]
    assert found == whole and not len(splitter)
    assert packets.split(stream) == whole
    with pytest.raises(AssertionError):
        packets.split(stream[:-1])
