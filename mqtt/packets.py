"""One class per control packet, as plain data (MQTT 5.0 chapter 3).

The fields are explained here; valid combinations are checked when packets are decoded and encoded (``mqtt/decode.py``,
``mqtt/encode.py``). For MQTT 3.1.1 ``properties`` stays empty, ``clean_start`` is Clean Session, and Connack and Suback
carry return codes.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from mqtt.properties import Properties
from mqtt.reasons import PacketType, ReasonCode

__all__ = [
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "Unsuback",
    "Unsubscribe",
    "Will",
]


@dataclass(slots=True)
class Will:
    """Will message of a CONNECT (section 3.1.3.2)."""

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """Client requests a connection (section 3.1). ``protocol_version`` is 3 (MQTT 3.1), 4 (3.1.1) or 5.

    ``bridge``: another broker, which sets the top bit of version 3 or 4 and does not want its own messages back.
    """

    packet_type: ClassVar[int] = PacketType.CONNECT
    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 0
    protocol_version: int = 5
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = field(default_factory=dict)
    bridge: bool = False


@dataclass(slots=True)
class Connack:
    """Server answers a CONNECT (section 3.2)."""

    packet_type: ClassVar[int] = PacketType.CONNACK
    session_present: bool = False
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """An application message (section 3.3). ``packet_identifier`` is None for QoS 0."""

    packet_type: ClassVar[int] = PacketType.PUBLISH
    topic_name: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_identifier: int | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Puback:
    """Answer to a QoS 1 PUBLISH (section 3.4)."""

    packet_type: ClassVar[int] = PacketType.PUBACK
    packet_identifier: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pubrec:
    """First answer to a QoS 2 PUBLISH (section 3.5)."""

    packet_type: ClassVar[int] = PacketType.PUBREC
    packet_identifier: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pubrel:
    """Release of a QoS 2 packet identifier (section 3.6)."""

    packet_type: ClassVar[int] = PacketType.PUBREL
    packet_identifier: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pubcomp:
    """End of a QoS 2 exchange (section 3.7)."""

    packet_type: ClassVar[int] = PacketType.PUBCOMP
    packet_identifier: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE with its options (section 3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """Client requests subscriptions (section 3.8)."""

    packet_type: ClassVar[int] = PacketType.SUBSCRIBE
    packet_identifier: int
    subscriptions: list[SubscriptionRequest]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    """One code per filter, in order (section 3.9)."""

    packet_type: ClassVar[int] = PacketType.SUBACK
    packet_identifier: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    """Client ends subscriptions (section 3.10)."""

    packet_type: ClassVar[int] = PacketType.UNSUBSCRIBE
    packet_identifier: int
    topic_filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsuback:
    """One code per filter, in order; 3.1.1 has none (section 3.11)."""

    packet_type: ClassVar[int] = PacketType.UNSUBACK
    packet_identifier: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pingreq:
    """Client shows that it is alive (section 3.12)."""

    packet_type: ClassVar[int] = PacketType.PINGREQ


@dataclass(slots=True)
class Pingresp:
    """Server answers a PINGREQ (section 3.13)."""

    packet_type: ClassVar[int] = PacketType.PINGRESP


@dataclass(slots=True)
class Disconnect:
    """Last packet of a connection (section 3.14). In 3.1.1 only clients send it, without a code."""

    packet_type: ClassVar[int] = PacketType.DISCONNECT
    reason_code: int = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    """Step of an enhanced authentication, MQTT 5 only (section 3.15)."""

    packet_type: ClassVar[int] = PacketType.AUTH
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
