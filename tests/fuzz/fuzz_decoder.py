"""Fuzz target of the decoder: any bytes give packets or RemoteProtocolError only.

Decoded packets must be the same for any cut of the stream, and must survive encoding and decoding.
All code except the edge's compiled loop uses this decoder; that one is in ``hot_session.py``.
"""

from mqtt import Connect, Limits, Packet, RemoteProtocolError, StreamDecoder, encode_packet
from tests.mqtt.test_vectors import ALL

LIMITS = Limits(
    maximum_packet_size=70_000, first_packet_bytes_max=70_000, user_properties_bytes_max=8192, subscriptions_max=100
)
CORPUS = [vector.raw for vector in ALL]


def decode(stream: bytes, version: int, connect_first: bool, cuts: list[int]) -> tuple[list[Packet], int | None]:
    """Feed a stream in pieces; return its packets and the reason code that ended it."""
    decoder = StreamDecoder(version, LIMITS, connect_first=connect_first)
    packets: list[Packet] = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            packets += decoder.feed(stream[start:end])
        if decoder.error is not None:
            raise decoder.error
    except RemoteProtocolError as error:
        return packets, error.reason_code
    assert len(decoder) <= LIMITS.maximum_packet_size
    return packets, None


def check(data: bytes) -> None:
    """One case: the first byte selects version, mode and cuts of the remaining bytes."""
    if not data:
        return
    choice, stream = data[0], data[1:]
    version, connect_first = (3, 4, 5)[choice % 3], bool(choice & 0x40)
    step = choice % 7 + 1
    whole = decode(stream, version, connect_first, [])
    assert decode(stream, version, connect_first, list(range(step, len(stream), step))) == whole
    spoken = version
    for packet in whole[0]:
        if isinstance(packet, Connect):
            spoken = packet.protocol_version
        written = encode_packet(packet, spoken)
        again = StreamDecoder(spoken, LIMITS).feed(written)
        assert again == [packet], (packet, again)
