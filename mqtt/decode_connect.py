"""Decoding of CONNECT, the packet that selects the protocol version (MQTT 5.0 section 3.1, MQTT 3.1.1 section 3.1).

An error states in ``connect_version`` how it may be answered. Without it the broker only closes: 3.1.1 has no code for
a malformed packet, and malformed fixed fields or credentials get no answer.
"""

from mqtt.data_types import read_binary, read_text, read_u16
from mqtt.errors import MalformedPacket, RemoteProtocolError
from mqtt.limits import DEFAULT_LIMITS, Limits
from mqtt.packets import Connect, Will
from mqtt.properties import WILL_PROPERTIES, Properties, PropertyId, decode_properties
from mqtt.reasons import PacketType, ReasonCode

__all__ = ["decode_connect"]

_NAMES = {b"MQTT": (4, 5), b"MQIsdp": (3,)}

# Name, version and flags of a CONNECT without a will and credentials -> offset of its client id; in MQTT 5 it follows
# an empty block of properties.
_PLAIN = {b"\0\4MQTT" + bytes((version, flags)): offset for version, offset in ((4, 10), (5, 11)) for flags in (0, 2)}

_BRIDGE = 0x80  # in the version: set by bridges of Mosquitto and others, in no specification
_RESERVED = 0x01
_CLEAN_START = 0x02
_WILL = 0x04
_WILL_QOS = 0x18
_WILL_RETAIN = 0x20
_PASSWORD = 0x40
_USERNAME = 0x80


def decode_connect(first_byte: int, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Connect:
    """Decode the body of a CONNECT of MQTT 3.1, 3.1.1 or 5.0.

    A zero-length client id is returned unchanged: the broker assigns one or refuses it.

    Raises:
        MalformedPacket: 0x81, and RemoteProtocolError with 0x82, 0x84 (version) or 0x85 (client id).
    """
    return _plain(first_byte, data) or _any(first_byte, data, limits)


def _plain(first_byte: int, data: bytes) -> Connect | None:
    """Decode the most common CONNECT, with a client id and no options; None for any other."""
    offset = _PLAIN.get(data[:8])
    size = len(data)
    if offset is None or first_byte != 0x10 or size < 13 or (data[offset] << 8 | data[offset + 1]) + offset + 2 != size:
        return None
    if offset == 11 and data[10]:
        return None
    try:
        client_id = data[offset + 2 :].decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not client_id.isprintable():
        return None
    return Connect(client_id, data[7] == _CLEAN_START, data[8] << 8 | data[9], data[6])


def _any(first_byte: int, data: bytes, limits: Limits) -> Connect:
    version, offset = _protocol(data)
    bridge = bool(version & _BRIDGE)
    version &= ~_BRIDGE
    if offset >= len(data):
        raise MalformedPacket("CONNECT ends before its flags")
    flags = data[offset]
    _check_flags(first_byte, flags, version)
    keep_alive_s, offset = read_u16(data, offset + 1)
    try:
        connect = _body(data, offset, version, flags, keep_alive_s, limits)
    except _Unanswered:
        raise
    except RemoteProtocolError as error:
        if version == 5:
            error.connect_version = 5
        raise
    connect.bridge = bridge
    return connect


class _Unanswered(MalformedPacket):
    """Refused without an answer: malformed credentials."""


def _protocol(data: bytes) -> tuple[int, int]:
    """Return the version, a bridge's with its bit, and its end offset."""
    name, offset = read_binary(data, 0)
    if offset >= len(data):
        raise MalformedPacket("CONNECT ends before its protocol version")
    version = data[offset]
    versions = _NAMES.get(name)
    if versions is None:  # [MQTT-3.1.2-1]: not MQTT at all, so no CONNACK either
        raise RemoteProtocolError("unknown protocol name [MQTT-3.1.2-1]", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    if version in versions or (version & _BRIDGE and version ^ _BRIDGE in versions and version ^ _BRIDGE < 5):
        return version, offset + 1
    error = RemoteProtocolError(f"protocol version {version} [MQTT-3.1.2-2]", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    # v3 [MQTT-3.1.2-2]: a level that 3.1.1 clients use is refused with their codes, any other with those of MQTT 5.
    error.connect_version = 4 if version & 0x7F in (3, 4) else 5
    raise error


def _check_flags(first_byte: int, flags: int, version: int) -> None:
    if version == 3:  # MQTT 3.1 gave the fixed header's flags and the reserved one no meaning
        flags &= ~_RESERVED
    elif first_byte & 0x0F:
        raise MalformedPacket("reserved flags in the first byte of CONNECT [MQTT-2.1.3-1]")
    if flags & _RESERVED:
        raise MalformedPacket("reserved connect flag is 1 [MQTT-3.1.2-3]")
    if flags & _WILL:
        if flags & _WILL_QOS == _WILL_QOS:
            raise MalformedPacket("will QoS 3 [MQTT-3.1.2-12]")
    elif flags & _WILL_QOS:
        raise MalformedPacket("will QoS without a will [MQTT-3.1.2-11]")
    elif flags & _WILL_RETAIN:
        raise MalformedPacket("will retain without a will [MQTT-3.1.2-13]")
    if version != 5 and flags & _PASSWORD and not flags & _USERNAME:
        raise MalformedPacket("password without a user name, v3 [MQTT-3.1.2-22]")


def _body(data: bytes, offset: int, version: int, flags: int, keep_alive_s: int, limits: Limits) -> Connect:
    properties: Properties = {}
    if version == 5:
        properties, offset = decode_properties(data, offset, PacketType.CONNECT, limits)
        if PropertyId.AUTHENTICATION_DATA in properties and PropertyId.AUTHENTICATION_METHOD not in properties:
            raise RemoteProtocolError("authentication data without a method, section 3.1.2.11.10")
    client_id, offset = _client_id(data, offset, limits)
    will = None
    if flags & _WILL:  # [MQTT-3.1.2-9]
        will, offset = _will(data, offset, version, flags, limits)
    username: str | None = None
    password: bytes | None = None
    try:
        if flags & _USERNAME:  # [MQTT-3.1.2-17] [MQTT-3.1.3-12]
            username, offset = read_text(data, offset, limits.control_characters)
        if flags & _PASSWORD:  # [MQTT-3.1.2-19]
            password, offset = read_binary(data, offset)
    except MalformedPacket as error:
        raise _Unanswered(str(error)) from error
    if offset != len(data):  # [MQTT-3.1.2-16] [MQTT-3.1.2-18]
        raise MalformedPacket("bytes behind the last field of CONNECT [MQTT-3.1.4-1]")
    clean_start = bool(flags & _CLEAN_START)
    return Connect(client_id, clean_start, keep_alive_s, version, will, username, password, properties)


def _client_id(data: bytes, offset: int, limits: Limits) -> tuple[str, int]:
    end = read_binary(data, offset)[1]  # a client id cut short is malformed, one of bad characters is not valid
    try:
        return read_text(data, offset, limits.control_characters)  # [MQTT-3.1.3-4]
    except MalformedPacket as error:
        assert end <= len(data)
        error.reason_code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8]: it names the field at fault
        raise


def _will(data: bytes, offset: int, version: int, flags: int, limits: Limits) -> tuple[Will, int]:
    properties: Properties = {}
    if version == 5:
        properties, offset = decode_properties(data, offset, WILL_PROPERTIES, limits)
    topic_name, offset = read_text(data, offset, limits.control_characters)  # [MQTT-3.1.3-11]
    if not topic_name or "+" in topic_name or "#" in topic_name:
        raise MalformedPacket("will topic is empty or has a wildcard [MQTT-4.7.0-1] [MQTT-4.7.3-1]")
    payload, offset = read_binary(data, offset)
    return Will(topic_name, payload, flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties), offset
