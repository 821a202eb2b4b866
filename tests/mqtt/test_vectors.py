"""Golden packets (tests/mqtt/vectors): the meaning of a line of bytes, or the reason code that refuses it."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mqtt
from mqtt import Limits, MqttError, Packet, RemoteProtocolError, StreamDecoder, decode_packet, encode_packet
from mqtt.data_types import encode_varint

VECTORS = Path(__file__).parent / "vectors"
NAMESPACE: dict[str, Any] = {name: getattr(mqtt, name) for name in mqtt.__all__} | {"P": mqtt.PropertyId}


@dataclass(frozen=True)
class Vector:
    version: int
    limits: Limits
    raw: bytes
    body_at: int
    meaning: str
    expected: str

    @property
    def valid(self) -> bool:
        return not self.expected.startswith("!")

    @property
    def packet(self) -> Packet:
        packet: Packet = eval(self.expected.lstrip("~"), NAMESPACE)
        return packet


def to_bytes(notation: str) -> tuple[bytes, int]:
    """Return the bytes of a line, and the offset of the body (if the length is well formed)."""
    out, length_at, block_at = b"", None, 0
    for token in re.findall(r"'[^']*'|\S+", notation):
        if token == "L":
            length_at = len(out)
        elif token == "[":
            block_at = len(out)
        elif token == "]":
            out = out[:block_at] + encode_varint(len(out) - block_at) + out[block_at:]
        else:
            out += token[1:-1].encode() if token.startswith("'") else bytes.fromhex(token)
    if length_at is not None:
        out = out[:length_at] + encode_varint(len(out) - length_at) + out[length_at:]
    body_at = 2
    while body_at <= len(out) and out[body_at - 1] & 0x80:
        body_at += 1
    return out, body_at


def load(path: Path) -> list[Vector]:
    vectors = []
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            version, notation, meaning, expected = (part.strip() for part in line.split(" | "))
            raw, body_at = to_bytes(notation)
            limits = Limits(from_client=version.endswith("<"))
            vectors.append(Vector(int(version[0]), limits, raw, body_at, meaning, expected))
    return vectors


def name(vector: Vector) -> str:
    return vector.meaning[:60]


ALL = [vector for path in sorted(VECTORS.glob("*.txt")) for vector in load(path)]
HAS_SHORT_FORM = (4, 5, 6, 7, 14)  # PUBACK to PUBCOMP and DISCONNECT: zeros may be left out
VALID = [vector for vector in ALL if vector.valid]


def decode_whole(vector: Vector) -> Packet:
    return decode_packet(vector.raw[0], vector.raw[vector.body_at :], vector.version, vector.limits)


@pytest.mark.parametrize("vector", ALL, ids=name)
def test_vector_decodes_whole(vector: Vector) -> None:
    """The bytes decode to the packet, or are refused with the reason code."""
    decoder = StreamDecoder(vector.version, vector.limits)
    if vector.valid:
        assert decoder.feed(vector.raw) == [vector.packet]
        assert decode_whole(vector) == vector.packet
        return
    with pytest.raises(RemoteProtocolError) as caught:
        assert decoder.feed(vector.raw) == []
    assert f"!{caught.value.reason_code:02x}" == vector.expected


@pytest.mark.parametrize("vector", ALL, ids=name)
def test_vector_decodes_byte_by_byte(vector: Vector) -> None:
    """No split of the stream changes a packet or a refusal; a memoryview is equivalent to bytes."""
    decoder = StreamDecoder(vector.version, vector.limits)
    packets: list[Packet] = []
    try:
        for at in range(len(vector.raw)):
            packets += decoder.feed(memoryview(vector.raw)[at : at + 1])
    except RemoteProtocolError as error:
        assert f"!{error.reason_code:02x}" == vector.expected
        return
    assert packets == [vector.packet]


@pytest.mark.parametrize("vector", VALID, ids=name)
def test_vector_decodes_with_following_bytes(vector: Vector) -> None:
    """Bytes after a packet are left for the next one."""
    decoder = StreamDecoder(vector.version, vector.limits)
    assert decoder.feed(vector.raw + b"\xc0\x00\xc0") == [vector.packet, mqtt.Pingreq()]
    assert len(decoder) == 1
    assert decoder.feed(b"\x00") == [mqtt.Pingreq()]


@pytest.mark.parametrize("vector", VALID, ids=name)
def test_vector_encodes_back(vector: Vector) -> None:
    """Encoding gives the same bytes, or, where marked, a shorter form with the same meaning."""
    written = encode_packet(vector.packet, vector.version)
    if vector.expected.startswith("~"):
        assert len(written) <= len(vector.raw)
        assert StreamDecoder(vector.version).feed(written) == [vector.packet]
    else:
        assert written.hex() == vector.raw.hex()


@pytest.mark.parametrize("vector", VALID, ids=name)
def test_vector_mutations_raise_only_protocol_errors(vector: Vector) -> None:
    """Other flags, each truncation and an additional byte are refused, or decode to another packet."""
    first, body = vector.raw[0], vector.raw[vector.body_at :]
    publish = first >> 4 == mqtt.PacketType.PUBLISH
    neighbours = [(first, body[:cut]) for cut in range(len(body))] + [(first, body + b"\0")]
    neighbours += [(first & 0xF0 | flags, body) for flags in range(16) if flags != first & 0x0F]
    for first_byte, changed in neighbours:
        try:
            packet = decode_packet(first_byte, changed, vector.version, vector.limits)
        except MqttError as error:
            assert isinstance(error, RemoteProtocolError)
            assert error.reason_code in (0x81, 0x82, 0x84, 0x85, 0x94)
            continue
        if changed != body:
            assert packet != vector.packet or first >> 4 in HAS_SHORT_FORM
        else:  # other flags: PUBLISH has some, 3.1 ignores those of CONNECT and DUP
            assert publish or vector.version == 3


def test_vectors_cover_every_packet_type() -> None:
    """Each of the 15 types has a valid vector and a refused one."""
    for want_valid in (True, False):
        seen = {vector.raw[0] >> 4 for vector in ALL if vector.valid == want_valid}
        assert seen >= set(range(1, 16))


def regenerate() -> None:
    """Rewrite the expected column of all files from the decoder's results."""
    for path in VECTORS.glob("*.txt"):
        lines = []
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                version, notation, meaning, old = line.split(" | ")
                vector = Vector(int(version[0]), Limits(from_client="<" in version), *to_bytes(notation), meaning, old)
                line = f"{version} | {notation} | {meaning} | {observe(vector)}"
            lines.append(line)
        path.write_text("\n".join(lines) + "\n")


def observe(vector: Vector) -> str:
    """Return the expected column for the decoder's result; the old one if it is still correct."""
    try:
        (packet,) = StreamDecoder(vector.version, vector.limits).feed(vector.raw)
    except RemoteProtocolError as error:
        return f"!{error.reason_code:02x}"
    if vector.valid and packet == vector.packet:
        return vector.expected
    text = re.sub(r"<\w+\.(\w+): \d+>", r"ReasonCode.\1", repr(packet))
    return ("" if encode_packet(packet, vector.version) == vector.raw else "~") + text


if __name__ == "__main__" and "--regenerate" in sys.argv:
    regenerate()
