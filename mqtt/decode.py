"""Decoding of packets: from a first byte and a whole body to a packet object (MQTT 5.0 chapter 3, MQTT 3.1.1 chapter
3).

All checks of form are made here, once, before the broker processes a packet. Framing is in ``mqtt/stream_decoder.py``.
Statement numbers are those of MQTT 5.0 unless marked v3.
"""

from collections.abc import Callable

from mqtt.data_types import read_text, read_u16
from mqtt.decode_connect import decode_connect
from mqtt.errors import MalformedPacket, RemoteProtocolError
from mqtt.limits import DEFAULT_LIMITS, Limits
from mqtt.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from mqtt.properties import Properties, PropertyId, decode_properties
from mqtt.reasons import ALLOWED_REASON_CODES, CLIENT_DISCONNECT_REASON_CODES, PacketType, ReasonCode
from mqtt.topics import parse_shared, validate_topic_filter

__all__ = ["check_first_byte", "decode_packet"]

_SERVER_ONLY = frozenset((PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP))
_FLAGS_0010 = frozenset((PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))


def check_first_byte(first_byte: int, protocol_version: int, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse a packet by its first byte alone, before its body arrives.

    The decoder of CONNECT checks its flags: MQTT 3.1 gave them no meaning, and its clients set some.

    Raises:
        MalformedPacket: For reserved flags [MQTT-2.1.3-1], QoS 3 [MQTT-3.3.1-4], or DUP with QoS 0 [MQTT-3.3.1-2].
        RemoteProtocolError: For a forbidden type, or one that this peer may not send.
    """
    packet_type, flags = first_byte >> 4, first_byte & 0x0F
    if packet_type == PacketType.PUBLISH:
        if flags & 0x06 == 0x06:
            raise MalformedPacket("QoS 3 [MQTT-3.3.1-4]")
        if flags & 0x0E == 0x08 and protocol_version != 3:  # some 3.1 clients set DUP
            raise MalformedPacket("DUP with QoS 0 [MQTT-3.3.1-2]")
        return
    if packet_type == 0 or (packet_type == PacketType.AUTH and protocol_version != 5):
        raise RemoteProtocolError(f"forbidden packet type {packet_type}, section 2.1.2")
    if packet_type in _FLAGS_0010:
        # [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1]; MQTT 3.1 could set DUP here
        if flags != 0x02 and not (protocol_version == 3 and flags == 0x0A):
            raise MalformedPacket(f"reserved flags {flags:#06b} [MQTT-2.1.3-1]")
    elif flags and packet_type != PacketType.CONNECT:  # [MQTT-3.14.1-1] [MQTT-3.15.1-1] and the others
        raise MalformedPacket(f"reserved flags {flags:#06b} [MQTT-2.1.3-1]")
    if limits.from_client and packet_type in _SERVER_ONLY:
        raise RemoteProtocolError(f"{PacketType(packet_type).name} from a client")


def decode_packet(
    first_byte: int,
    body: bytes | bytearray | memoryview,
    protocol_version: int,
    limits: Limits = DEFAULT_LIMITS,
) -> Packet:
    """Decode one packet.

    Args:
        first_byte: Type and flags.
        body: Exactly the remaining length; it is copied unless it is ``bytes``.
        protocol_version: 3, 4 or 5, as agreed by CONNECT; a CONNECT itself contains its own.
        limits: Limits of the receiver.

    Raises:
        MalformedPacket: 0x81, the body is not a packet.
        RemoteProtocolError: 0x82 or a more specific code, the packet has a forbidden content.
    """
    check_first_byte(first_byte, protocol_version, limits)
    data = body if type(body) is bytes else bytes(body)
    if first_byte >> 4 == PacketType.PUBLISH:
        return _publish(first_byte, data, protocol_version, limits)
    if first_byte >> 4 == PacketType.CONNECT:
        return decode_connect(first_byte, data, limits)
    return _DECODERS[first_byte >> 4](data, protocol_version, limits)


def _packet_identifier(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedPacket("no packet identifier")
    identifier = data[0] << 8 | data[1]
    if identifier == 0:  # [MQTT-2.2.1-3] [MQTT-2.2.1-4]; v3 [MQTT-2.3.1-1]
        raise RemoteProtocolError("packet identifier 0 [MQTT-2.2.1-3]")
    return identifier


def _publish(first_byte: int, data: bytes, version: int, limits: Limits) -> Publish:
    qos = first_byte >> 1 & 3
    topic_name, offset = read_text(data, 0, limits.control_characters)  # [MQTT-3.3.2-1]
    if "+" in topic_name or "#" in topic_name:
        raise MalformedPacket("wildcard in a topic name [MQTT-3.3.2-2]")
    identifier: int | None = None
    if qos:
        identifier, offset = read_u16(data, offset)
        if identifier == 0:
            raise RemoteProtocolError("packet identifier 0 [MQTT-2.2.1-3]")
    properties: Properties = {}
    if version == 5:
        properties, offset = decode_properties(data, offset, PacketType.PUBLISH, limits)
        if limits.from_client and PropertyId.SUBSCRIPTION_IDENTIFIER in properties:
            raise RemoteProtocolError("subscription identifier from a client [MQTT-3.3.4-6]")
    if not topic_name and PropertyId.TOPIC_ALIAS not in properties:
        if version == 5:  # section 3.3.2.1 names it a protocol error
            raise RemoteProtocolError("empty topic name without a topic alias [MQTT-4.7.3-1]")
        raise MalformedPacket("empty topic name, v3 [MQTT-4.7.3-1]")
    dup = bool(qos and first_byte & 8)  # without QoS it has no meaning, though MQTT 3.1 clients may set it
    return Publish(topic_name, data[offset:], qos, bool(first_byte & 1), dup, identifier, properties)


_Acknowledgement = type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]


def _acknowledgement(packet_class: _Acknowledgement) -> Callable[[bytes, int, Limits], Packet]:
    packet_type = packet_class.packet_type
    allowed = ALLOWED_REASON_CODES[packet_type]

    def decode(data: bytes, version: int, limits: Limits) -> Packet:
        identifier = _packet_identifier(data)
        size = len(data)
        if size == 2:  # reason code 0 is left out (section 3.4.2.1), 3.1.1 has none
            return packet_class(identifier)
        if version != 5:
            raise MalformedPacket("acknowledgement longer than its packet identifier")
        if data[2] not in allowed:  # [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
            raise RemoteProtocolError(f"reason code {data[2]:#04x} not allowed in {PacketType(packet_type).name}")
        if size == 3:  # less than four bytes: no property length (section 3.4.2.2.1)
            return packet_class(identifier, data[2])
        return packet_class(identifier, data[2], _closing_properties(data, 3, packet_type, limits))

    return decode


def _closing_properties(data: bytes, offset: int, packet_type: int, limits: Limits) -> Properties:
    properties, offset = decode_properties(data, offset, packet_type, limits)
    if offset != len(data):
        raise MalformedPacket("bytes behind the properties")
    return properties


def _subscribe(data: bytes, version: int, limits: Limits) -> Subscribe:
    identifier, offset = _packet_identifier(data), 2
    properties: Properties = {}
    if version == 5:
        properties, offset = decode_properties(data, offset, PacketType.SUBSCRIBE, limits)
    subscriptions: list[SubscriptionRequest] = []
    end = len(data)
    while offset < end:
        topic_filter, offset = read_text(data, offset, limits.control_characters)  # [MQTT-3.8.3-1]
        shared = _check_filter(topic_filter, version)
        if offset == end:
            raise MalformedPacket("no subscription options behind a topic filter")
        options = data[offset]
        offset += 1
        if version == 5:
            subscriptions.append(_subscription(topic_filter, options, shared))
        elif options > 2:  # v3 [MQTT-3.8.3-4]
            raise MalformedPacket("QoS 3 or reserved bits in a SUBSCRIBE, v3 [MQTT-3.8.3-4]")
        else:
            subscriptions.append(SubscriptionRequest(topic_filter, options))
        if len(subscriptions) > limits.subscriptions_max:
            raise RemoteProtocolError("too many topic filters in a SUBSCRIBE", ReasonCode.QUOTA_EXCEEDED)
    if not subscriptions:
        raise RemoteProtocolError("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    return Subscribe(identifier, subscriptions, properties)


def _subscription(topic_filter: str, options: int, shared: bool) -> SubscriptionRequest:
    if options & 0xC0:
        raise MalformedPacket("reserved bits in subscription options [MQTT-3.8.3-5]")
    if options & 0x03 == 3:
        raise RemoteProtocolError("QoS 3 in a SUBSCRIBE, section 3.8.3.1")
    if options & 0x30 == 0x30:
        raise RemoteProtocolError("Retain Handling 3, section 3.8.3.1")
    if shared and options & 0x04:
        raise RemoteProtocolError("No Local on a shared subscription [MQTT-3.8.3-4]")
    return SubscriptionRequest(topic_filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)


def _check_filter(topic_filter: str, version: int) -> bool:
    """Validate a filter; return whether it is a shared subscription (3.1.1 has none: the broker may offer them)."""
    if version == 5 and topic_filter.startswith("$share/"):
        shared = parse_shared(topic_filter)
        assert shared is not None
        validate_topic_filter(shared[1])
        return True
    validate_topic_filter(topic_filter)
    return False


def _unsubscribe(data: bytes, version: int, limits: Limits) -> Unsubscribe:
    identifier, offset = _packet_identifier(data), 2
    properties: Properties = {}
    if version == 5:
        properties, offset = decode_properties(data, offset, PacketType.UNSUBSCRIBE, limits)
    topic_filters: list[str] = []
    while offset < len(data):
        topic_filter, offset = read_text(data, offset, limits.control_characters)  # [MQTT-3.10.3-1]
        _check_filter(topic_filter, version)
        topic_filters.append(topic_filter)
        if len(topic_filters) > limits.subscriptions_max:
            raise RemoteProtocolError("too many topic filters in an UNSUBSCRIBE", ReasonCode.QUOTA_EXCEEDED)
    if not topic_filters:
        raise RemoteProtocolError("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    return Unsubscribe(identifier, topic_filters, properties)


_V3_SUBACK_CODES = frozenset((0x00, 0x01, 0x02, 0x80))


def _suback(data: bytes, version: int, limits: Limits) -> Suback:
    identifier, offset = _packet_identifier(data), 2
    properties: Properties = {}
    allowed = _V3_SUBACK_CODES  # v3 [MQTT-3.9.3-2]
    if version == 5:
        properties, offset = decode_properties(data, offset, PacketType.SUBACK, limits)
        allowed = ALLOWED_REASON_CODES[PacketType.SUBACK]  # [MQTT-3.9.3-2]
    codes = list(data[offset:])
    if not codes:
        raise MalformedPacket("SUBACK without a reason code")
    if not allowed.issuperset(codes):
        raise RemoteProtocolError("reason code not allowed in SUBACK [MQTT-3.9.3-2]")
    return Suback(identifier, codes, properties)


def _unsuback(data: bytes, version: int, limits: Limits) -> Unsuback:
    identifier = _packet_identifier(data)
    if version != 5:
        if len(data) != 2:
            raise MalformedPacket("UNSUBACK longer than its packet identifier")
        return Unsuback(identifier)
    properties, offset = decode_properties(data, 2, PacketType.UNSUBACK, limits)
    codes = list(data[offset:])
    if not codes:
        raise MalformedPacket("UNSUBACK without a reason code")
    if not ALLOWED_REASON_CODES[PacketType.UNSUBACK].issuperset(codes):
        raise RemoteProtocolError("reason code not allowed in UNSUBACK [MQTT-3.11.3-2]")
    return Unsuback(identifier, codes, properties)


def _connack(data: bytes, version: int, limits: Limits) -> Connack:
    if len(data) < 2:
        raise MalformedPacket("CONNACK cut short")
    if data[0] > 1 and version != 3:
        raise MalformedPacket("reserved bits in the CONNACK flags [MQTT-3.2.2-1]")
    session_present, code = bool(data[0]) and version != 3, data[1]  # MQTT 3.1 does not use the byte
    properties: Properties = {}
    if version == 5:
        if code not in ALLOWED_REASON_CODES[PacketType.CONNACK]:  # [MQTT-3.2.2-8]
            raise RemoteProtocolError(f"reason code {code:#04x} not allowed in CONNACK [MQTT-3.2.2-8]")
        properties = _closing_properties(data, 2, PacketType.CONNACK, limits)
    elif len(data) != 2:
        raise MalformedPacket("CONNACK longer than two bytes")
    elif code > 5:
        raise RemoteProtocolError(f"reserved return code {code} in CONNACK, v3 section 3.2.2.3")
    if session_present and code:
        raise RemoteProtocolError("Session Present in a CONNACK that refuses [MQTT-3.2.2-6]")
    return Connack(session_present, code, properties)


def _pingreq(data: bytes, _version: int, _limits: Limits) -> Pingreq:
    if data:
        raise MalformedPacket("PINGREQ with a body, section 3.12.1")
    return Pingreq()


def _pingresp(data: bytes, _version: int, _limits: Limits) -> Pingresp:
    if data:
        raise MalformedPacket("PINGRESP with a body, section 3.13.1")
    return Pingresp()


def _disconnect(data: bytes, version: int, limits: Limits) -> Disconnect:
    if not data:
        return Disconnect()  # section 3.14.2.1
    if version != 5:
        raise MalformedPacket("DISCONNECT with a body, v3 section 3.14.1")
    allowed = ALLOWED_REASON_CODES[PacketType.DISCONNECT]
    if limits.from_client:
        allowed = CLIENT_DISCONNECT_REASON_CODES
    if data[0] not in allowed:
        raise RemoteProtocolError(f"reason code {data[0]:#04x} not allowed in DISCONNECT [MQTT-3.14.2-1]")
    if len(data) == 1:  # less than two bytes: no property length (section 3.14.2.2.1)
        return Disconnect(data[0])
    return Disconnect(data[0], _closing_properties(data, 1, PacketType.DISCONNECT, limits))


def _auth(data: bytes, _version: int, limits: Limits) -> Auth:
    if not data and not limits.from_client:
        return Auth()  # section 3.15.2.1; the exchange decides whether success without a method is valid
    code = data[0] if data else ReasonCode.SUCCESS
    if code not in ALLOWED_REASON_CODES[PacketType.AUTH]:
        raise RemoteProtocolError(f"reason code {code:#04x} not allowed in AUTH [MQTT-3.15.2-1]")
    if code == ReasonCode.SUCCESS and limits.from_client:
        raise RemoteProtocolError("AUTH of a client says success, table of section 3.15.2.1")
    properties = _closing_properties(data, 1, PacketType.AUTH, limits) if len(data) > 1 else {}
    if PropertyId.AUTHENTICATION_METHOD not in properties:
        raise RemoteProtocolError("AUTH without an authentication method, section 3.15.2.2.2")
    return Auth(code, properties)


_DECODERS: dict[int, Callable[[bytes, int, Limits], Packet]] = {
    PacketType.CONNACK: _connack,
    PacketType.PUBACK: _acknowledgement(Puback),
    PacketType.PUBREC: _acknowledgement(Pubrec),
    PacketType.PUBREL: _acknowledgement(Pubrel),
    PacketType.PUBCOMP: _acknowledgement(Pubcomp),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _pingreq,
    PacketType.PINGRESP: _pingresp,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
