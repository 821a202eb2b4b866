"""Data representation: variable byte integers, strings, binary data (MQTT 5.0 section 1.5).

All readers take ``(data, offset)`` and return ``(value, new_offset)``. Missing data is a malformed packet, because the
callers hold a whole packet.
"""

from mqtt.errors import LocalProtocolError, MalformedPacket

__all__ = [
    "VARINT_MAX",
    "check_text",
    "decode_varint",
    "encode_binary",
    "encode_text",
    "encode_varint",
    "read_binary",
    "read_text",
    "read_u16",
    "varint_end",
    "varint_value",
]

VARINT_MAX = 268_435_455  # four groups of seven bits

# Section 1.5.4 "SHOULD NOT include": a receiver may treat these as malformed, and Mosquitto does.
_CONTROL_CHARACTERS = frozenset(
    [chr(c) for c in (*range(0x01, 0x20), *range(0x7F, 0xA0), *range(0xFDD0, 0xFDF0))]
    + [chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)]
)


def encode_varint(value: int) -> bytes:
    """Return the shortest form of value, 1 to 4 bytes [MQTT-1.5.5-1].

    Raises:
        LocalProtocolError: If value is negative or above 268 435 455.
    """
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if not 0 <= value <= VARINT_MAX:
        raise LocalProtocolError(f"variable byte integer out of range: {value}")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def decode_varint(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int]:
    """Read a variable byte integer; return (value, new offset).

    Raises:
        MalformedPacket: If it is cut short, longer than four bytes, or not in its shortest form [MQTT-1.5.5-1].
    """
    if offset < len(data) and (byte := data[offset]) < 0x80:
        return byte, offset + 1
    end = varint_end(data, offset)
    if end == -1:
        raise MalformedPacket("variable byte integer cut short")
    if end == -2:
        raise MalformedPacket("variable byte integer longer than four bytes")
    if data[end - 1] == 0:  # a last group of zero could have been left out
        raise MalformedPacket("variable byte integer not in its shortest form [MQTT-1.5.5-1]")
    return varint_value(data, offset, end), end


def varint_end(data: bytes | bytearray | memoryview, offset: int) -> int:
    """Return the offset after a variable byte integer; -1 if it is cut short, -2 if it is longer than four bytes."""
    for position in range(offset, min(offset + 4, len(data))):
        if data[position] < 0x80:
            return position + 1
    return -1 if len(data) < offset + 4 else -2


def varint_value(data: bytes | bytearray | memoryview, offset: int, end: int) -> int:
    """Return the value of the variable byte integer between offset and its ``varint_end``."""
    value = 0
    for position in range(end - 1, offset - 1, -1):
        value = value << 7 | (data[position] & 0x7F)
    return value


def read_u16(data: bytes, offset: int) -> tuple[int, int]:
    """Read a two byte integer, most significant byte first (section 1.5.2)."""
    end = offset + 2
    if end > len(data):
        raise MalformedPacket("two byte integer cut short")
    return data[offset] << 8 | data[offset + 1], end


def read_binary(data: bytes, offset: int) -> tuple[bytes, int]:
    """Read binary data with its two byte length (section 1.5.6)."""
    start = offset + 2
    if start > len(data):
        raise MalformedPacket("length of a field cut short")
    end = start + (data[offset] << 8 | data[offset + 1])
    if end > len(data):
        raise MalformedPacket("field cut short")
    return data[start:end], end


def read_text(data: bytes, offset: int, control_characters: bool = False) -> tuple[str, int]:
    """Read a UTF-8 encoded string (section 1.5.4).

    Args:
        control_characters: Accept control characters and non-characters too.
    """
    start = offset + 2
    if start > len(data):
        raise MalformedPacket("length of a string cut short")
    end = start + (data[offset] << 8 | data[offset + 1])
    if end > len(data):
        raise MalformedPacket("string cut short")
    try:
        # Strict decoding refuses surrogates and over-long forms [MQTT-1.5.4-1], and "utf-8" (unlike "utf-8-sig") keeps
        # U+FEFF at any position [MQTT-1.5.4-3].
        text = data[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket("ill-formed UTF-8 [MQTT-1.5.4-1]") from error
    if not text.isprintable():  # one pass in C decides for nearly all strings
        check_text(text, control_characters)
    return text, end


def check_text(text: str, control_characters: bool = False) -> None:
    """Refuse characters that a string must not (U+0000) or need not (control characters) have.

    Raises:
        MalformedPacket: With the statement that forbids it.
    """
    if "\0" in text:
        raise MalformedPacket("U+0000 in a string [MQTT-1.5.4-2]")
    if not control_characters and not _CONTROL_CHARACTERS.isdisjoint(text):
        raise MalformedPacket("control character in a string, section 1.5.4")


def encode_binary(value: bytes) -> bytes:
    """Return value after its two byte length.

    Raises:
        LocalProtocolError: If it has more than 65 535 bytes.
    """
    if len(value) > 0xFFFF:
        raise LocalProtocolError(f"field of {len(value)} bytes, at most 65535")
    return len(value).to_bytes(2, "big") + value


def encode_text(value: str) -> bytes:
    """Return value as a UTF-8 encoded string after its length.

    Raises:
        LocalProtocolError: If it is too long, has a surrogate [MQTT-1.5.4-1] or U+0000 [MQTT-1.5.4-2].
    """
    try:
        encoded = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LocalProtocolError("surrogate in a string [MQTT-1.5.4-1]") from error
    if 0 in encoded:
        raise LocalProtocolError("U+0000 in a string [MQTT-1.5.4-2]")
    return encode_binary(encoded)
