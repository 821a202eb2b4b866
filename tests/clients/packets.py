"""MQTT packets as bytes, for clients that send invalid packets, and for cheap benchmarks.

``mqtt`` encodes and decodes lengths; all other parts are written unchecked.
"""

import struct

from mqtt.codec import decode_varint, encode_varint
from mqtt.errors import MalformedPacket

__all__ = [
    "DISCONNECT",
    "PINGREQ",
    "Splitter",
    "ack",
    "connect",
    "packet",
    "publish",
    "session_expiry",
    "split",
    "subscribe",
    "text",
    "unsubscribe",
]

PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"


def text(value: bytes) -> bytes:
    """Return a string with its length."""
    return struct.pack(">H", len(value)) + value


def packet(first: int, body: bytes) -> bytes:
    """Return a whole packet: first byte, length, body."""
    return bytes([first]) + encode_varint(len(body)) + body


def connect(
    name: bytes = b"c", version: int = 4, properties: bytes = b"", keep_alive_s: int = 0, *, clean: bool = True
) -> bytes:
    """Return CONNECT without will and password."""
    body = text(b"MQTT") + bytes([version, 2 if clean else 0]) + struct.pack(">H", keep_alive_s)
    if version == 5:
        body += encode_varint(len(properties)) + properties
    return packet(0x10, body + text(name))


def session_expiry(seconds: int) -> bytes:
    """Return the property of CONNECT."""
    return b"\x11" + struct.pack(">I", seconds)


def publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    identifier: int = 0,
    version: int = 4,
    properties: bytes = b"",
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """Return PUBLISH; QoS 0 has no packet identifier."""
    body = text(topic)
    if qos:
        body += struct.pack(">H", identifier)
    if version == 5:
        body += encode_varint(len(properties)) + properties
    return packet(0x30 | qos << 1 | int(retain) | (8 if dup else 0), body + payload)


def subscribe(filters: bytes | list[bytes], options: int = 0, version: int = 4, identifier: int = 0) -> bytes:
    """Return SUBSCRIBE with packet identifier 1; ``identifier`` is the subscriptions' one, 0 for none."""
    body = b"\x00\x01"
    if version == 5:
        body += b"\x02\x0b" + bytes([identifier]) if identifier else b"\x00"
    names = [filters] if isinstance(filters, bytes) else filters
    return packet(0x82, body + b"".join(text(name) + bytes([options]) for name in names))


def unsubscribe(filters: list[bytes], version: int = 4) -> bytes:
    """Return UNSUBSCRIBE with packet identifier 2."""
    return packet(0xA2, b"\x00\x02" + (b"\x00" if version == 5 else b"") + b"".join(map(text, filters)))


def ack(kind: int, identifier: int, code: int | None = None) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP, ``kind`` being its first byte."""
    return packet(kind, struct.pack(">H", identifier) + (b"" if code is None else bytes([code])))


class Splitter:
    """Cuts a stream into packets with opaque bodies."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the packets that they complete."""
        data, packets, start = self._rest + data, [], 0
        while start + 1 < len(data):
            try:
                length, body = decode_varint(data, start + 1)
            except MalformedPacket:
                if len(data) > start + 4:
                    raise
                break  # the length is cut short
            if body + length > len(data):
                break
            packets.append(data[start : body + length])
            start = body + length
        self._rest = data[start:]
        return packets

    def __len__(self) -> int:
        """Return how many bytes wait for the rest of their packet."""
        return len(self._rest)


def split(data: bytes) -> list[bytes]:
    """Cut an output into packets.

    Raises:
        AssertionError: It ends inside a packet.
    """
    splitter = Splitter()
    packets = splitter.feed(data)
    assert not len(splitter), "output ends inside a packet"
    return packets
