"""Reason codes of MQTT 5.0 and return codes of MQTT 3.1.1.

Lists the codes, the packets that may carry them, and the 3.1.1 equivalents of CONNACK reasons. The broker decides when
to send one. Source: MQTT 5.0 section 2.4 and the tables of 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3,
3.14.2.1, 3.15.2.1; MQTT 3.1.1 section 3.2.2.3.
"""

import enum

__all__ = [
    "ALLOWED_REASON_CODES",
    "CLIENT_DISCONNECT_REASON_CODES",
    "FAILURE",
    "ConnectReturnCode",
    "PacketType",
    "ReasonCode",
    "connect_return_code",
]

FAILURE = 0x80  # reason codes from here on are errors (section 2.4); to 3.1.1 the one refusal in SUBACK


class PacketType(enum.IntEnum):
    """High nibble of the first byte (section 2.1.2). 0 is forbidden; 15 is forbidden before MQTT 5."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(enum.IntEnum):
    """All reason codes of MQTT 5.0 (section 2.4); 0x80 and above are failures. Shared values are aliases."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturnCode(enum.IntEnum):
    """Return codes of a 3.1.1 CONNACK (3.1.1 section 3.2.2.3)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_PUBLISH_RESULT = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_RESULT = frozenset((0x00, 0x92))

# Keyed by plain integers: there is a lookup per acknowledgement.
ALLOWED_REASON_CODES: dict[int, frozenset[int]] = {
    PacketType.CONNACK: frozenset(
        (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    ),
    PacketType.PUBACK: _PUBLISH_RESULT,
    PacketType.PUBREC: _PUBLISH_RESULT,
    PacketType.PUBREL: _RELEASE_RESULT,
    PacketType.PUBCOMP: _RELEASE_RESULT,
    PacketType.SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    PacketType.UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    PacketType.DISCONNECT: frozenset(
        (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3))
    )
    | {0x8C},  # in the table of section 2.4, for a failed re-authentication; missing from that of 3.14.2.1
    PacketType.AUTH: frozenset((0x00, 0x18, 0x19)),
}
# Codes that a client may send (table 3.14.2.1, column "sent by").
# Codes that a client may send (table 3.14.2.1, column "sent by").
CLIENT_DISCONNECT_REASON_CODES = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)

_RETURN_CODES: dict[int, ConnectReturnCode] = {
    ReasonCode.SUCCESS: ConnectReturnCode.ACCEPTED,
    ReasonCode.UNSPECIFIED_ERROR: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.BANNED: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.BAD_AUTHENTICATION_METHOD: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.SERVER_UNAVAILABLE: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_BUSY: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.USE_ANOTHER_SERVER: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_MOVED: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.CONNECTION_RATE_EXCEEDED: ConnectReturnCode.SERVER_UNAVAILABLE,
}


def connect_return_code(reason_code: int) -> ConnectReturnCode | None:
    """Return the return code of a 3.1 or 3.1.1 CONNACK for a reason code of MQTT 5.

    None: 3.1.1 has no equivalent (for example for a malformed packet): close without CONNACK.
    """
    return _RETURN_CODES.get(reason_code)
