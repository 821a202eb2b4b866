"""Encoding of packets: from a packet object to bytes, in any protocol version.

The shortest form is written (reason code 0 without properties is left out where the specification allows it). An
invalid packet is our own error. ``encode_publish`` is for forwarding messages without packet objects.
"""

from collections.abc import Callable
from typing import Any

from mqtt.data_types import encode_binary, encode_text, encode_varint
from mqtt.errors import LocalProtocolError
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from mqtt.properties import encode_properties
from mqtt.reasons import PacketType, ReasonCode, connect_return_code

__all__ = ["encode_packet", "encode_publish"]


def encode_packet(packet: Packet, protocol_version: int) -> bytes:
    """Encode a packet for a peer with protocol version 3, 4 or 5.

    Reason codes of MQTT 5 in a Connack or Suback are translated for older versions; properties are left out.

    Raises:
        LocalProtocolError: If the packet or a field does not exist in that version or does not fit.
    """
    try:
        return _ENCODERS[packet.packet_type](packet, protocol_version)
    except (
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:  # a number outside a byte, None instead of text, ...
        raise LocalProtocolError(f"cannot be written: {error}") from error


def _frame(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + encode_varint(len(body)) + body


def _identifier(value: int | None) -> bytes:
    if value is None or not 1 <= value <= 0xFFFF:
        raise LocalProtocolError(f"packet identifier {value!r} [MQTT-2.2.1-3]")
    return value.to_bytes(2, "big")


def _check_qos(qos: int) -> int:
    if qos not in (0, 1, 2):
        raise LocalProtocolError(f"QoS {qos!r} [MQTT-3.3.1-4]")
    return qos


def _connect(packet: Connect, _version: int) -> bytes:
    version = packet.protocol_version
    if version not in (3, 4, 5):
        raise LocalProtocolError(f"protocol version {version!r}")
    if packet.bridge and version == 5:
        raise LocalProtocolError("a bridge of MQTT 5 says No Local itself")
    if version != 5 and packet.password is not None and packet.username is None:
        raise LocalProtocolError("password without a user name, v3 [MQTT-3.1.2-22]")
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    will = packet.will
    if will is not None:
        flags |= 0x04 | _check_qos(will.qos) << 3 | will.retain << 5
    if not 0 <= packet.keep_alive_s <= 0xFFFF:
        raise LocalProtocolError(f"keep alive of {packet.keep_alive_s} s")
    parts = [
        b"\0\6MQIsdp" if version == 3 else b"\0\4MQTT",
        bytes((version | packet.bridge << 7, flags)),
        packet.keep_alive_s.to_bytes(2, "big"),
    ]
    if version == 5:
        parts.append(encode_properties(packet.properties))
    parts.append(encode_text(packet.client_id))
    if will is not None:
        if version == 5:
            parts.append(encode_properties(will.properties))
        parts += (encode_text(will.topic_name), encode_binary(will.payload))
    if packet.username is not None:
        parts.append(encode_text(packet.username))
    if packet.password is not None:
        parts.append(encode_binary(packet.password))
    return _frame(0x10, b"".join(parts))


def _connack(packet: Connack, version: int) -> bytes:
    code = packet.reason_code
    if version == 5:
        return _frame(0x20, bytes((packet.session_present, code)) + encode_properties(packet.properties))
    if code > 5:
        translated = connect_return_code(code)
        if translated is None:
            raise LocalProtocolError(f"no return code of 3.1.1 for {code:#04x}: close without CONNACK")
        code = translated
    # MQTT 3.1 has no Session Present: the byte is reserved there
    return bytes((0x20, 2, packet.session_present and version == 4, code))


def _publish(packet: Publish, version: int) -> bytes:
    return encode_publish(
        encode_text(packet.topic_name)[2:],
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_identifier,
        version,
        encode_properties(packet.properties) if version == 5 else b"",
    )


def encode_publish(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool,
    packet_identifier: int | None,
    protocol_version: int,
    properties_bytes: bytes,
) -> bytes:
    """Encode a PUBLISH from parts that are bytes already.

    Args:
        topic: The topic name in UTF-8; empty if a topic alias replaces it.
        packet_identifier: Used for QoS 1 and 2 only.
        properties_bytes: A property block, its length included; empty means no properties. Ignored before MQTT 5.

    Raises:
        LocalProtocolError: If QoS, packet identifier or length are invalid.
    """
    if len(topic) > 0xFFFF:
        raise LocalProtocolError("topic longer than 65535 bytes [MQTT-4.7.3-3]")
    head = len(topic).to_bytes(2, "big") + topic
    if _check_qos(qos):
        head += _identifier(packet_identifier)
    elif dup:
        raise LocalProtocolError("DUP with QoS 0 [MQTT-3.3.1-2]")
    if protocol_version == 5:
        head += properties_bytes or b"\0"
    first_byte = 0x30 | bool(dup) << 3 | qos << 1 | bool(retain)
    return b"".join((bytes((first_byte,)), encode_varint(len(head) + len(payload)), head, payload))


def _acknowledgement(first_byte: int) -> Callable[[Any, int], bytes]:
    def encode(packet: Puback | Pubrec | Pubrel | Pubcomp, version: int) -> bytes:
        identifier = _identifier(packet.packet_identifier)
        if version != 5 or (packet.reason_code == 0 and not packet.properties):
            return bytes((first_byte, 2)) + identifier
        if not packet.properties:
            return bytes((first_byte, 3)) + identifier + bytes((packet.reason_code,))
        return _frame(first_byte, identifier + bytes((packet.reason_code,)) + encode_properties(packet.properties))

    return encode


def _subscribe(packet: Subscribe, version: int) -> bytes:
    if not packet.subscriptions:
        raise LocalProtocolError("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    parts = [_identifier(packet.packet_identifier)]
    if version == 5:
        parts.append(encode_properties(packet.properties))
    for request in packet.subscriptions:
        options = _check_qos(request.qos)
        if version == 5:
            if request.retain_handling not in (0, 1, 2):
                raise LocalProtocolError(f"Retain Handling {request.retain_handling!r}, section 3.8.3.1")
            options |= request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
        parts += (encode_text(request.topic_filter), bytes((options,)))
    return _frame(0x82, b"".join(parts))


def _suback(packet: Suback, version: int) -> bytes:
    head = _identifier(packet.packet_identifier)
    if version == 5:
        return _frame(0x90, head + encode_properties(packet.properties) + bytes(packet.reason_codes))
    codes = bytes(code if code < 0x80 else ReasonCode.UNSPECIFIED_ERROR for code in packet.reason_codes)
    return _frame(0x90, head + codes)  # v3 [MQTT-3.9.3-2]


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    if not packet.topic_filters:
        raise LocalProtocolError("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    parts = [_identifier(packet.packet_identifier)]
    if version == 5:
        parts.append(encode_properties(packet.properties))
    parts += map(encode_text, packet.topic_filters)
    return _frame(0xA2, b"".join(parts))


def _unsuback(packet: Unsuback, version: int) -> bytes:
    head = _identifier(packet.packet_identifier)
    if version != 5:
        return b"\xb0\2" + head
    return _frame(0xB0, head + encode_properties(packet.properties) + bytes(packet.reason_codes))


def _disconnect(packet: Disconnect, version: int) -> bytes:
    if version != 5 or (packet.reason_code == 0 and not packet.properties):
        return b"\xe0\0"
    if not packet.properties:
        return bytes((0xE0, 1, packet.reason_code))
    return _frame(0xE0, bytes((packet.reason_code,)) + encode_properties(packet.properties))


def _auth(packet: Auth, version: int) -> bytes:
    if version != 5:
        raise LocalProtocolError("AUTH exists in MQTT 5 only")
    if packet.reason_code == 0 and not packet.properties:
        return b"\xf0\0"
    return _frame(0xF0, bytes((packet.reason_code,)) + encode_properties(packet.properties))


_ENCODERS: dict[int, Callable[[Any, int], bytes]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _acknowledgement(0x40),
    PacketType.PUBREC: _acknowledgement(0x50),
    PacketType.PUBREL: _acknowledgement(0x62),
    PacketType.PUBCOMP: _acknowledgement(0x70),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: lambda _packet, _version: b"\xc0\0",
    PacketType.PINGRESP: lambda _packet, _version: b"\xd0\0",
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
