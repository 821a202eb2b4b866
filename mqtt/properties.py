"""The 27 properties of MQTT 5.0: type, packets, multiplicity, decoding and encoding (section 2.2.2).

A property block always includes its length, in ``bytes`` as in spans. Properties of a packet are a plain dict keyed by
identifier; values are int, str or bytes, except user properties (list of pairs) and subscription identifiers (list of
int), which may occur more than once. An unknown identifier is malformed (0x81); a known one in the wrong packet, twice,
or with an illegal value is a protocol error (0x82). Incomplete data is malformed before any other check.
"""

import enum
from collections.abc import Iterable

from mqtt.data_types import (
    decode_varint,
    encode_binary,
    encode_text,
    encode_varint,
    read_binary,
    read_text,
)
from mqtt.errors import LocalProtocolError, MalformedPacket, RemoteProtocolError
from mqtt.limits import DEFAULT_LIMITS, Limits
from mqtt.reasons import PacketType, ReasonCode

__all__ = [
    "WILL_PROPERTIES",
    "Properties",
    "PropertyId",
    "decode_properties",
    "encode_properties",
    "encode_subscription_identifiers",
]

Properties = dict[int, object]

WILL_PROPERTIES = 0  # pseudo packet type for the will's own block (section 3.1.3.2)


class PropertyId(enum.IntEnum):
    """Identifiers (table 2-4)."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02  # seconds
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11  # seconds; 0xFFFFFFFF is no expiry
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13  # seconds
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18  # seconds
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


# Wire types. Plain integers: they are compared once per property.
_BYTE, _U16, _U32, _VARINT, _BINARY, _TEXT, _PAIR = range(1, 8)

_CONNECT, _CONNACK, _PUBLISH = PacketType.CONNECT, PacketType.CONNACK, PacketType.PUBLISH
_WITH_REASON = (
    PacketType.CONNACK,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.DISCONNECT,
    PacketType.AUTH,
)
_EVERYWHERE = (WILL_PROPERTIES, _CONNECT, _PUBLISH, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, *_WITH_REASON)
_MESSAGE = (_PUBLISH, WILL_PROPERTIES)
_HANDSHAKE = (_CONNECT, _CONNACK)

_TABLE: dict[PropertyId, tuple[int, tuple[int, ...]]] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: (_BYTE, _MESSAGE),
    PropertyId.MESSAGE_EXPIRY_INTERVAL: (_U32, _MESSAGE),
    PropertyId.CONTENT_TYPE: (_TEXT, _MESSAGE),
    PropertyId.RESPONSE_TOPIC: (_TEXT, _MESSAGE),
    PropertyId.CORRELATION_DATA: (_BINARY, _MESSAGE),
    PropertyId.SUBSCRIPTION_IDENTIFIER: (_VARINT, (_PUBLISH, PacketType.SUBSCRIBE)),
    PropertyId.SESSION_EXPIRY_INTERVAL: (_U32, (*_HANDSHAKE, PacketType.DISCONNECT)),
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: (_TEXT, (_CONNACK,)),
    PropertyId.SERVER_KEEP_ALIVE: (_U16, (_CONNACK,)),
    PropertyId.AUTHENTICATION_METHOD: (_TEXT, (*_HANDSHAKE, PacketType.AUTH)),
    PropertyId.AUTHENTICATION_DATA: (_BINARY, (*_HANDSHAKE, PacketType.AUTH)),
    PropertyId.REQUEST_PROBLEM_INFORMATION: (_BYTE, (_CONNECT,)),
    PropertyId.WILL_DELAY_INTERVAL: (_U32, (WILL_PROPERTIES,)),
    PropertyId.REQUEST_RESPONSE_INFORMATION: (_BYTE, (_CONNECT,)),
    PropertyId.RESPONSE_INFORMATION: (_TEXT, (_CONNACK,)),
    PropertyId.SERVER_REFERENCE: (_TEXT, (_CONNACK, PacketType.DISCONNECT)),
    PropertyId.REASON_STRING: (_TEXT, _WITH_REASON),
    PropertyId.RECEIVE_MAXIMUM: (_U16, _HANDSHAKE),
    PropertyId.TOPIC_ALIAS_MAXIMUM: (_U16, _HANDSHAKE),
    PropertyId.TOPIC_ALIAS: (_U16, (_PUBLISH,)),
    PropertyId.MAXIMUM_QOS: (_BYTE, (_CONNACK,)),
    PropertyId.RETAIN_AVAILABLE: (_BYTE, (_CONNACK,)),
    PropertyId.USER_PROPERTY: (_PAIR, _EVERYWHERE),
    PropertyId.MAXIMUM_PACKET_SIZE: (_U32, _HANDSHAKE),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: (_BYTE, (_CONNACK,)),
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: (_BYTE, (_CONNACK,)),
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: (_BYTE, (_CONNACK,)),
}

# The same, flat: wire type (0 = unknown) and a bit per packet type, indexed by identifier.
_TYPES = [0] * 0x80
_PLACES = [0] * 0x80
for _identifier, (_type, _places) in _TABLE.items():
    _TYPES[_identifier] = _type
    _PLACES[_identifier] = sum(1 << place for place in _places)
_NAMES = [""] * 0x80
for _identifier in PropertyId:
    _NAMES[_identifier] = _identifier.name.replace("_", " ").capitalize()

_USER_PROPERTY = int(PropertyId.USER_PROPERTY)
_SUBSCRIPTION_IDENTIFIER = int(PropertyId.SUBSCRIPTION_IDENTIFIER)
_FIXED_SIZES = (0, 1, 2, 4)
_NOT_ZERO = frozenset((PropertyId.RECEIVE_MAXIMUM, PropertyId.MAXIMUM_PACKET_SIZE))


def decode_properties(
    data: bytes, offset: int, packet_type: int, limits: Limits = DEFAULT_LIMITS
) -> tuple[Properties, int]:
    """Decode a property block; return (properties, offset after it).

    Args:
        packet_type: The packet type of the block; ``WILL_PROPERTIES`` for that of a will.

    Raises:
        MalformedPacket: If it is cut short or has an unknown identifier.
        RemoteProtocolError: If a property is misplaced, repeated or has an illegal value, or the user properties are
            longer than the limit (0x97).
    """
    if offset < len(data) and data[offset] == 0:
        return {}, offset + 1
    length, offset = decode_varint(data, offset)
    end = offset + length
    if end > len(data):
        raise MalformedPacket("property block longer than the packet")
    properties: Properties = {}
    user_bytes = 0
    control = limits.control_characters
    block = data if end == len(data) else data[:end]  # so that no property can read beyond the block
    while offset < end:
        identifier, offset = decode_varint(block, offset)
        kind = _TYPES[identifier] if identifier < 0x80 else 0
        value: object
        if kind == _TEXT:
            value, offset = read_text(block, offset, control)
        elif kind == _PAIR:
            start = offset
            if offset < end and _PLACES[identifier] >> packet_type & 1:
                offset, user_bytes = _plain_pairs(block, offset - 1, properties, user_bytes, limits)
                if offset >= start:
                    _check_users(properties, user_bytes, limits)
                    continue
                offset = start
            name, offset = read_text(block, offset, control)  # both strings are checked [MQTT-1.5.7-1]
            text, offset = read_text(block, offset, control)
            value = (name, text)
            user_bytes += offset - start
        elif kind == _BINARY:
            value, offset = read_binary(block, offset)
        elif kind == _VARINT:
            value, offset = decode_varint(block, offset)
        elif kind:
            start, offset = offset, offset + _FIXED_SIZES[kind]
            if offset > end:
                raise MalformedPacket(f"{_NAMES[identifier]} cut short")
            value = int.from_bytes(block[start:offset], "big")
        else:
            raise MalformedPacket(f"unknown property identifier {identifier:#x}, section 2.2.2.2")
        if not _PLACES[identifier] >> packet_type & 1:
            raise RemoteProtocolError(f"{_NAMES[identifier]} not allowed here, table 2-4")
        if kind == _PAIR:
            properties.setdefault(_USER_PROPERTY, []).append(value)  # type: ignore[attr-defined]
            _check_users(properties, user_bytes, limits)
            continue
        if identifier == _SUBSCRIPTION_IDENTIFIER:
            _add_subscription_identifier(properties, value, packet_type)
            continue
        if identifier in properties:
            raise RemoteProtocolError(f"{_NAMES[identifier]} more than once")
        if kind == _BYTE or identifier in _VALUE_CHECKED:
            _check_value(identifier, kind, value)
        properties[identifier] = value
    return properties, offset


def _check_users(properties: Properties, user_bytes: int, limits: Limits) -> None:
    if user_bytes > limits.user_properties_bytes_max:
        raise RemoteProtocolError("too many bytes of user properties", ReasonCode.QUOTA_EXCEEDED)
    if len(properties[_USER_PROPERTY]) > limits.user_properties_max:  # type: ignore[arg-type]
        raise RemoteProtocolError("too many user properties", ReasonCode.QUOTA_EXCEEDED)


def _plain_pairs(block: bytes, offset: int, properties: Properties, user_bytes: int, limits: Limits) -> tuple[int, int]:
    """Decode consecutive user properties of printable text, from an identifier on; others are decoded one by one.

    A packet may have thousands of them, and decoding blocks other clients: therefore one loop without calls, which
    stops at the first one above the limit.

    Returns:
        Offset after the last decoded one (``offset`` if there was none), bytes of all user properties so far.
    """
    pairs: list[object] = properties.setdefault(_USER_PROPERTY, [])  # type: ignore[assignment]
    end, bytes_max = len(block), limits.user_properties_bytes_max
    more = limits.user_properties_max - len(pairs)
    last, pair = b"\0", ("", "")  # long lists usually repeat; \0 is no identifier
    while offset + 5 <= end and block[offset] == _USER_PROPERTY and more >= 0 and user_bytes <= bytes_max:
        more -= 1
        if block.startswith(last, offset):
            pairs.append(pair)
            user_bytes += len(last) - 1
            offset += len(last)
            continue
        middle = offset + 3 + (block[offset + 1] << 8 | block[offset + 2])
        if middle + 2 > end:
            break
        stop = middle + 2 + (block[middle] << 8 | block[middle + 1])
        if stop > end:
            break
        try:
            name, text = block[offset + 3 : middle].decode(), block[middle + 2 : stop].decode()
        except UnicodeDecodeError:
            break
        if not (name.isprintable() and text.isprintable()):
            break
        last, pair = block[offset:stop], (name, text)
        pairs.append(pair)
        user_bytes += stop - offset - 1
        offset = stop
    return offset, user_bytes


_VALUE_CHECKED = _NOT_ZERO | {PropertyId.TOPIC_ALIAS, PropertyId.RESPONSE_TOPIC}


def _check_value(identifier: int, kind: int, value: object) -> None:
    if kind == _BYTE:  # all of them are 0 or 1 [MQTT-3.1.2-28] [MQTT-3.1.2-29] and sections 3.2.2.3, 3.3.2.3.2
        if value not in (0, 1):
            raise RemoteProtocolError(f"{_NAMES[identifier]} is {value}, not 0 or 1")
    elif identifier in _NOT_ZERO:
        if value == 0:
            raise RemoteProtocolError(f"{_NAMES[identifier]} is 0, sections 3.1.2.11.3 and 3.1.2.11.4")
    elif identifier == PropertyId.TOPIC_ALIAS:
        if value == 0:  # [MQTT-3.3.2-8]
            raise RemoteProtocolError("Topic alias is 0 [MQTT-3.3.2-8]", ReasonCode.TOPIC_ALIAS_INVALID)
    elif not value or "+" in str(value) or "#" in str(value):  # [MQTT-3.3.2-14], and [MQTT-4.7.3-1] for the empty one
        raise RemoteProtocolError("Response topic is empty or has a wildcard [MQTT-3.3.2-14]")


def _add_subscription_identifier(properties: Properties, value: object, packet_type: int) -> None:
    if value == 0:
        raise RemoteProtocolError("Subscription identifier is 0, section 3.8.2.1.2")
    seen = properties.setdefault(_SUBSCRIPTION_IDENTIFIER, [])
    assert isinstance(seen, list)
    if seen and packet_type == PacketType.SUBSCRIBE:
        raise RemoteProtocolError("Subscription identifier more than once, section 3.8.2.1.2")
    seen.append(value)


def encode_properties(properties: Properties) -> bytes:
    """Return the block, length included, in the dict's order.

    Raises:
        LocalProtocolError: For an unknown identifier or a value that does not fit.
    """
    if not properties:
        return b"\0"  # [MQTT-2.2.2-1]
    parts: list[bytes] = []
    for identifier, value in properties.items():
        kind = _TYPES[identifier] if 0 < identifier < 0x80 else 0
        head = encode_varint(identifier)
        try:
            if kind == _PAIR:
                for name, text in value:  # type: ignore[attr-defined]
                    parts += (head, encode_text(name), encode_text(text))
            elif kind == _VARINT:
                for number in value:  # type: ignore[attr-defined]
                    parts += (head, encode_varint(number))
            else:
                parts += (head, _encode_single(kind, value))
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise LocalProtocolError(f"{identifier!r} cannot be {value!r}") from error
    block = b"".join(parts)
    return encode_varint(len(block)) + block


def encode_subscription_identifiers(identifiers: Iterable[int]) -> bytes:
    """Return the properties of a copy for subscriptions with these identifiers, 0 for none [MQTT-3.3.4-3]."""
    return b"".join([b"\x0b" + encode_varint(each) for each in identifiers if each])


def _encode_single(kind: int, value: object) -> bytes:
    if kind == _TEXT and isinstance(value, str):
        return encode_text(value)
    if kind == _BINARY and isinstance(value, (bytes, bytearray, memoryview)):
        return encode_binary(bytes(value))
    if kind in (_BYTE, _U16, _U32) and isinstance(value, int):
        return value.to_bytes(_FIXED_SIZES[kind], "big")
    raise LocalProtocolError(f"unknown property or wrong type: {value!r}")
