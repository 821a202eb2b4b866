"""Errors of the protocol: one root, and a branch for each side at fault.

The class has a default reason code; an instance may have another. The caller converts an error to bytes: a code that
the packet allows for MQTT 5 (section 2.4), a return code or a plain close for 3.1.1.
"""

from mqtt.reasons import ReasonCode

__all__ = ["LocalProtocolError", "MalformedPacket", "MqttError", "RemoteProtocolError"]


class MqttError(Exception):
    """Root of all errors of the protocol.

    Attributes:
        reason_code: Code for the peer (MQTT 5.0 section 2.4).
    """

    reason_code: int = ReasonCode.UNSPECIFIED_ERROR

    def __init__(self, message: str = "", reason_code: int | None = None) -> None:
        super().__init__(message)
        if reason_code is not None:
            self.reason_code = reason_code


class RemoteProtocolError(MqttError):
    """The peer violated the specification: answer, then close.

    Attributes:
        connect_version: For a refused CONNECT, the protocol version in which a CONNACK may be written; None means close
            without an answer (the version is unknown, 3.1.1 has no code for it, or an answer would help an attacker).
    """

    reason_code = ReasonCode.PROTOCOL_ERROR
    connect_version: int | None = None


class MalformedPacket(RemoteProtocolError):
    """The bytes are not a packet of the protocol (section 4.13)."""

    reason_code = ReasonCode.MALFORMED_PACKET


class LocalProtocolError(MqttError):
    """This side attempted to violate the specification: a local bug."""

    reason_code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
