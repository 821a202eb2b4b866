"""One message on its way through a bridge: as a source gave it, and as a sink takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqtt.data_types import check_text
from mqtt.errors import MqttError
from mqtt.properties import Properties, PropertyId

__all__ = ["BridgeMessage", "SinkRecord", "mqtt_text", "user_properties"]

OVERHEAD_BYTES = 200  # counted for each message beside its payload and topic, so that empty ones fill a window too


@dataclass(slots=True)
class BridgeMessage:
    """A message of a source.

    Attributes:
        topic: MQTT topic, Kafka topic, or stream.
        key: Of a Kafka record or a stream's entry; None for MQTT.
        reference: Names the message for consumers that drop repeats; the same when it comes again.
        at_ms: When the source had it, or the bridge read it; UTC.
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
        """Return what the message counts in a window, in bytes."""
        return len(self.payload) + len(self.topic) + OVERHEAD_BYTES


@dataclass(slots=True)
class SinkRecord:
    """A message as the rules made it for a sink.

    Attributes:
        target: Topic, Kafka topic, stream or URL of the sink.
        key: Of a Kafka record; None for none.
        lane: Records of one lane keep their order.
        headers: Added by the rules.
        message: Where it comes from.
    """

    target: str
    payload: bytes
    lane: str
    message: BridgeMessage
    key: bytes | None = None
    qos: int = 0
    retain: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def user_properties(properties: Properties) -> list[tuple[str, str]]:
    """Return the user properties of a packet, in their order."""
    found = properties.get(PropertyId.USER_PROPERTY, [])
    assert isinstance(found, list)
    return found


def mqtt_text(value: bytes) -> str:
    """Return bytes of another system as a string that MQTT can carry: as hexadecimal where they are none."""
    try:
        text = value.decode()
        check_text(text)
    except (UnicodeDecodeError, MqttError):
        return value.hex()
    return text
