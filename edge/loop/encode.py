# cython: cdivision=True
"""Validation and encoding of one PUBLISH, between received bytes and one class of receiver.

Decides which properties are valid (MQTT 5.0 section 3.3.2.3), and encodes a packet for a version, QoS, RETAIN flag and
list of subscription identifiers. Knows no connections.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import PublishView

if not cython.compiled:
    from edge.loop.buffers import (
        copy_bytes,
        copy_span,
        get16,
        get32,
        put16,
        put32,
        read_varint,
        reserve,
        same_bytes,
        varint_end,
    )
    from edge.loop.layout import MALFORMED_PACKET, NO_EXPIRY, PROTOCOL_ERROR, QUOTA_EXCEEDED

__all__: list[str] = []

RESERVED = b"\0\x12stratamq-"  # prefix of the names in mqtt/publisher_properties.py, which have 18 bytes
RESERVED_BYTES = 20  # of such a name, with its length


def varint_bytes(value: cython.Py_ssize_t) -> cython.int:
    """Length of a Variable Byte Integer [MQTT 5.0 1.5.5]."""
    if value < 128:
        return 1
    if value < 16_384:
        return 2
    if value < 2_097_152:
        return 3
    return 4


def put_varint(data: cython.p_uchar, at: cython.Py_ssize_t, value: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Write a Variable Byte Integer and return the position behind it."""
    while value > 127:
        data[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    data[at] = value & 0x7F
    return at + 1


def _property_bytes(packet: PublishView, identifiers: bytes) -> cython.Py_ssize_t:
    count: cython.Py_ssize_t = packet.plain_bytes + len(identifiers)
    if packet.expiry_s != NO_EXPIRY:
        count += 5
    return count


def _body_bytes(packet: PublishView, five: cython.bint, qos: cython.int, identifiers: bytes) -> cython.Py_ssize_t:
    body: cython.Py_ssize_t = 2 + len(packet.topic) + packet.payload_bytes
    properties: cython.Py_ssize_t
    if qos > 0:
        body += 2
    if five:
        properties = _property_bytes(packet, identifiers)
        body += properties + varint_bytes(properties)
    return body


def publish_bytes(packet: PublishView, five: cython.bint, qos: cython.int, identifiers: bytes) -> cython.Py_ssize_t:
    """Length of the whole packet, as Maximum Packet Size counts it."""
    body: cython.Py_ssize_t = _body_bytes(packet, five, qos, identifiers)
    return 1 + varint_bytes(body) + body


def write_publish(
    buffer: Buffer,
    packet: PublishView,
    five: cython.bint,
    qos: cython.int,
    retain: cython.bint,
    dup: cython.bint,
    packet_identifier: cython.int,
    identifiers: bytes,
) -> cython.int:
    """Append the packet for a receiver of version 5 or 3.1.1.

    Properties: Message Expiry Interval, those of the publisher in their order [MQTT-3.3.2-17] [MQTT-3.3.2-18], then the
    receiver's subscription identifiers. Topic aliases are never forwarded.
    """
    body: cython.Py_ssize_t = _body_bytes(packet, five, qos, identifiers)
    topic: bytes = packet.topic
    at: cython.Py_ssize_t = reserve(buffer, body + 5)
    data: cython.p_uchar = buffer.data
    data[at] = 0x30 | (qos << 1) | (1 if retain else 0) | (8 if dup else 0)
    at = put_varint(data, at + 1, body)
    put16(buffer, at, len(topic))
    copy_bytes(buffer, at + 2, topic)
    at += 2 + len(topic)
    if qos > 0:
        put16(buffer, at, packet_identifier)
        at += 2
    if five:
        at = put_varint(data, at, _property_bytes(packet, identifiers))
        if packet.expiry_s != NO_EXPIRY:
            data[at] = 0x02
            put32(buffer, at + 1, packet.expiry_s)
            at += 5
        if packet.plain_bytes > 0:
            copy_plain(buffer, at, packet)
            at += packet.plain_bytes
        if identifiers:
            copy_bytes(buffer, at, identifiers)
            at += len(identifiers)
    copy_span(buffer, at, packet.data, packet.payload_at, packet.payload_bytes)
    buffer.end = at + packet.payload_bytes
    return 0


def copy_plain(buffer: Buffer, at: cython.Py_ssize_t, packet: PublishView) -> cython.int:
    """Write the publisher's properties without Topic Alias and Message Expiry Interval into reserved bytes."""
    source: cython.Py_ssize_t = packet.properties_at
    end: cython.Py_ssize_t = source + packet.properties_bytes
    first: cython.Py_ssize_t = packet.alias_at
    first_bytes: cython.Py_ssize_t = 3
    second: cython.Py_ssize_t = packet.expiry_at
    second_bytes: cython.Py_ssize_t = 5
    if first < 0 or (0 <= second < first):
        first, second = second, first
        first_bytes, second_bytes = 5, 3
    if first >= 0:
        copy_span(buffer, at, packet.data, source, first - source)
        at += first - source
        source = first + first_bytes
    if second >= 0:
        copy_span(buffer, at, packet.data, source, second - source)
        at += second - source
        source = second + second_bytes
    copy_span(buffer, at, packet.data, source, end - source)
    return 0


def walk_properties(
    packet: PublishView,
    data: cython.p_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    user_max: cython.Py_ssize_t,
    users_max: cython.Py_ssize_t,
) -> cython.int:
    """Parse and validate the properties of a client's PUBLISH, including their length.

    Args:
        packet: Receives the positions; alias and expiry are reset first.
        data: Holds the packet.
        begin: Position of the property length.
        end: Behind the packet; ``user_max``: bytes of all user properties together; ``users_max``: their number.
    Returns:
        0, or the reason code of an error.
    """
    length: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t
    seen: cython.ulonglong = 0
    property_id: cython.int
    packet.alias_at, packet.alias, packet.has_reserved = -1, 0, False
    packet.expiry_at = -1
    packet.expiry_s = NO_EXPIRY
    at = varint_end(data, begin, end)
    if at < 0 or (at - begin > 1 and data[at - 1] == 0):  # a longer form than necessary [MQTT-1.5.5-1]
        return MALFORMED_PACKET
    length = read_varint(data, begin, at)
    if at + length > end:
        return MALFORMED_PACKET
    packet.properties_at = at
    packet.properties_bytes = length
    packet.plain_bytes = length
    packet.payload_at = at + length
    packet.payload_bytes = end - at - length
    end = at + length
    while at < end:
        property_id = data[at]
        if property_id != 0x26:
            if property_id > 63:
                return MALFORMED_PACKET
            if (
                seen >> property_id
            ) & 1:  # only User Property may be repeated; a client sends no Subscription Identifier
                return PROTOCOL_ERROR
            seen |= cython.cast(cython.ulonglong, 1) << property_id
        at += 1
        if property_id == 0x01:  # Payload Format Indicator
            if at >= end:
                return MALFORMED_PACKET
            if data[at] > 1:
                return PROTOCOL_ERROR
            at += 1
        elif property_id == 0x02:  # Message Expiry Interval
            if at + 4 > end:
                return MALFORMED_PACKET
            packet.expiry_at = at - 1
            packet.expiry_s = get32(data, at)
            packet.plain_bytes -= 5
            at += 4
        elif property_id == 0x23:  # Topic Alias
            if at + 2 > end:
                return MALFORMED_PACKET
            packet.alias_at = at - 1
            packet.alias = get16(data, at)
            packet.plain_bytes -= 3
            at += 2
        elif property_id == 0x0B:  # Subscription Identifier: only a server sends it [MQTT-3.3.4-6]
            return PROTOCOL_ERROR
        elif property_id == 0x03 or property_id == 0x08 or property_id == 0x09:
            count = _field_bytes(data, at, end, property_id)
            if count < 0:
                return MALFORMED_PACKET if count == -1 else PROTOCOL_ERROR
            at += count
        elif property_id == 0x26:
            count = _pair_bytes(data, at, end, user_max if users_max > 0 else 0)
            if count < 0:
                return MALFORMED_PACKET if count == -1 else QUOTA_EXCEEDED
            packet.has_reserved |= data[at + 1] == 18 and count > RESERVED_BYTES and same_bytes(data, at, RESERVED)
            at, user_max, users_max = at + count, user_max - count, users_max - 1
        else:
            return _property_error(property_id)
    return 0 if at == end else MALFORMED_PACKET


def _property_error(property_id: cython.int) -> cython.int:
    """Protocol error for a property of other packets, malformed for an unknown one [MQTT 5.0 2.2.2.2]."""
    if (
        property_id == 0x11
        or property_id == 0x12
        or property_id == 0x13
        or property_id == 0x15
        or property_id == 0x16
        or property_id == 0x17
        or property_id == 0x18
    ):
        return PROTOCOL_ERROR
    if (
        property_id == 0x19
        or property_id == 0x1A
        or property_id == 0x1C
        or property_id == 0x1F
        or 0x21 <= property_id <= 0x2A
    ):
        return PROTOCOL_ERROR
    return MALFORMED_PACKET


def _field_bytes(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, property_id: cython.int
) -> cython.Py_ssize_t:
    """Return the length of Content Type, Response Topic or Correlation Data; -1: malformed, -2: no topic name."""
    count: cython.Py_ssize_t = _text_bytes(data, at, end)
    if count < 0 or property_id == 0x09:
        return count
    if property_id == 0x08 and not valid_topic(data, at + 2, count - 2):  # without wildcards [MQTT-3.3.2-14]
        return -2 if valid_text(data, at + 2, count - 2) else -1
    return count if property_id == 0x08 or valid_text(data, at + 2, count - 2) else -1


def _pair_bytes(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the length of a User Property, a pair of texts; -1 if malformed, -2 if above the limit."""
    count: cython.Py_ssize_t = _text_bytes(data, at, end)
    more: cython.Py_ssize_t
    if count < 0 or not valid_text(data, at + 2, count - 2):
        return -1
    more = _text_bytes(data, at + count, end)
    if more < 0 or not valid_text(data, at + count + 2, more - 2):
        return -1
    return count + more if count + more <= most else -2


def _text_bytes(data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the length of a string or binary field with its prefix, -1 if it does not fit."""
    if at + 2 > end:
        return -1
    count: cython.Py_ssize_t = 2 + get16(data, at)
    return count if at + count <= end else -1


def valid_text(data: cython.p_uchar, at: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.bint:
    """Return whether the bytes are UTF-8 without U+0000 and surrogates [MQTT-1.5.4-1] [MQTT-1.5.4-2].

    Control characters and non-characters are refused too, as section 1.5.4 allows and ``mqtt/data_types.py`` does.
    """
    end: cython.Py_ssize_t = at + count
    byte: cython.int
    more: cython.int
    point: cython.int
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            if byte < 0x20 or byte == 0x7F:
                return False
            continue
        if 0xC2 <= byte < 0xE0:
            more = 1
            point = byte & 0x1F
        elif 0xE0 <= byte < 0xF0:
            more = 2
            point = byte & 0x0F
        elif 0xF0 <= byte < 0xF5:
            more = 3
            point = byte & 0x07
        else:
            return False
        if at + more > end:
            return False
        size: cython.int = more
        while more > 0:
            byte = data[at]
            if byte & 0xC0 != 0x80:
                return False
            point = (point << 6) | (byte & 0x3F)
            at += 1
            more -= 1
        if size == 1 and point < 0xA0:
            return False
        if size == 2 and (point < 0x800 or 0xD800 <= point <= 0xDFFF or 0xFDD0 <= point <= 0xFDEF):
            return False
        if size >= 2 and point & 0xFFFE == 0xFFFE:
            return False
        if size == 3 and (point < 0x10000 or point > 0x10FFFF):
            return False
    return True


def valid_topic(data: cython.p_uchar, at: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.bint:
    """Return whether the bytes are a topic name: not empty, valid text, no wildcard [MQTT-3.3.2-2] [MQTT-4.7.3-1]."""
    i: cython.Py_ssize_t
    if count == 0:
        return False
    for i in range(at, at + count):
        if data[i] == 0x23 or data[i] == 0x2B:
            return False
    return valid_text(data, at, count)


def load_plain(
    packet: PublishView, data: cython.p_uchar, at: cython.Py_ssize_t, five: cython.bint
) -> cython.Py_ssize_t:
    """Load a validated QoS 0 packet of a run, without its topic; return the position behind it."""
    body: cython.Py_ssize_t = varint_end(data, at + 1, at + 5)
    end: cython.Py_ssize_t = body + read_varint(data, at + 1, body)
    at = body + 2 + get16(data, body)
    packet.data = data
    packet.version = 5 if five else 4
    packet.qos = 0
    packet.retain = False
    packet.dup = False
    packet.traced = False
    packet.pending_key = -1
    if five:
        walk_properties(packet, data, at, end, end, end)
    else:
        packet.alias_at = -1
        packet.expiry_at = -1
        packet.expiry_s = NO_EXPIRY
        packet.properties_bytes = 0
        packet.plain_bytes = 0
        packet.payload_at = at
        packet.payload_bytes = end - at
    return end
