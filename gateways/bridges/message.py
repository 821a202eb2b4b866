"""One message of a source, and the record made of it for a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqtt.data_types import check_text
from mqtt.errors import MqttError
from mqtt.properties import Properties, PropertyId

__all__ = ["BridgeMessage", "SinkRecord", "mqtt_text", "user_properties"]

OVERHEAD_BYTES = 200  # added to payload and topic of each message, so that empty messages fill a window too


@dataclass(slots=True)
class BridgeMessage:
    """A message of a source.

    Attributes:
      topic: MQTT topic, Kafka topic, or stream.
      key: Key of a Kafka record; None for other sources.
      reference: Identifies the message for consumers that drop repeats; a resent message has the same one.
      at_ms: UTC timestamp of the source, or of reading.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)
    key: bytes | None = None
    reference: str = ""
    at_ms: int = 0

    @property
    def size(self) -> int:
        """Return the size counted against a window, in bytes."""
        return len(self.payload) + len(self.topic) + OVERHEAD_BYTES


@dataclass(slots=True)
class SinkRecord:
    """A record that the rules made for a sink.

    Attributes:
      target: Topic, Kafka topic, stream or URL of the sink.
      key: Key of a Kafka record; None for none.
      ordering_key: Records with the same one keep their order.
      headers: Added by the rules.
      message: The source message.
    """

    target: str
    payload: bytes
    ordering_key: str
    message: BridgeMessage
    key: bytes | None = None
    qos: int = 0
    retain: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def user_properties(properties: Properties) -> list[tuple[str, str]]:
    """Return the user properties of a packet, in order."""
    found = properties.get(PropertyId.USER_PROPERTY, [])
    assert isinstance(found, list)
    return found


def mqtt_text(value: bytes) -> str:
    """Return bytes of another system as an MQTT string, in hexadecimal if they are not valid text."""
    try:
        text = value.decode()
        check_text(text)
    except (UnicodeDecodeError, MqttError):
        return value.hex()
    return text
