"""AUTH packets of MQTT 5: validation of received packets, and encoding.

Source: MQTT 5.0 section 4.12.
"""

from mqtt import property_values
from mqtt.codec import Limits, decode_packet, encode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Auth
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode

__all__ = ["Authentication", "encode_auth", "read_auth"]


class Authentication:
    """The authentication method of a CONNECT."""

    __slots__ = ("final", "method")

    def __init__(self, method: str) -> None:
        self.method = method
        self.final = b""  # data of the accepting step, for CONNACK

    def connack_properties(self) -> dict[int, object]:
        """Return the properties of CONNACK for the exchange [MQTT-4.12.0-4]."""
        return _properties(self.method, self.final)


def read_auth(
    first_byte: int, body: bytes, limits: Limits, authentication: Authentication | None
) -> tuple[ReasonCode, bytes]:
    """Return the reason code of an AUTH packet and its data.

    Raises:
        MqttError: The packet is malformed, or of another method than CONNECT.
    """
    packet = decode_packet(first_byte, body, 5, limits)
    assert isinstance(packet, Auth)
    if authentication is None:  # [MQTT-4.12.1-1]
        raise RemoteProtocolError("AUTH without an Authentication Method in CONNECT [MQTT-4.12.0-6]")
    if property_values.authentication_method(packet.properties) != authentication.method:
        raise RemoteProtocolError("AUTH names another Authentication Method [MQTT-4.12.0-5]")
    return ReasonCode(packet.reason_code), property_values.authentication_data(packet.properties)


def encode_auth(authentication: Authentication, data: bytes, *, ends: bool) -> bytes:
    """Return an AUTH packet.

    Args:
        authentication: Of the client.
        data: For the client.
        ends: The exchange succeeded; otherwise the client continues it.
    """
    code = ReasonCode.SUCCESS if ends else ReasonCode.CONTINUE_AUTHENTICATION
    return encode_packet(Auth(code, _properties(authentication.method, data)), 5)


def _properties(method: str, data: bytes) -> dict[int, object]:
    properties: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: method}
    if data:
        properties[PropertyId.AUTHENTICATION_DATA] = data
    return properties
