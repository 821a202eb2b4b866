"""paho-mqtt for tests: a client in its own thread, with methods that wait for answers and messages."""

import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.patience import PATIENCE_S

__all__ = ["V3", "V5", "PahoClient"]

V3, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
TIMEOUT_S = PATIENCE_S
MESSAGES_S = PATIENCE_S


class PahoClient:
    """One client, connected when it is made; its session is stored if ``expiry_s`` is not 0.

    Args:
        listener: "plain", "tls", "ws" or "wss"; the encrypted ones verify with ``authority``.
        expiry_s: Of the session; 3.1.1 distinguishes only 0 (Clean Session) and other values (never).
        in_flight: Maximum of unacknowledged publishes.

    Attributes:
        paho: The client itself.
        messages: Received messages, in order.
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        *,
        listener: str = "plain",
        authority: str = "",
        version: MQTTProtocolVersion = V3,
        expiry_s: int = 0,
        in_flight: int = 20,
    ) -> None:
        self.version = version
        self.messages: list[paho.MQTTMessage] = []
        self.session_present = False
        self._condition = threading.Condition()
        self._connected: ReasonCode | None = None
        self._granted: list[list[Any]] = []
        self._taken = 0
        transport: Any = "websockets" if listener in ("ws", "wss") else "tcp"
        options: dict[str, Any] = {"clean_session": expiry_s == 0} if version != V5 else {}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, transport=transport, **options
        )
        self.paho.max_inflight_messages_set(in_flight)
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_message = lambda _client, _data, message: self._note(lambda: self.messages.append(message))
        self.paho.on_subscribe = lambda _client, _data, _mid, codes, _more: self._note(
            lambda: self._granted.append(codes)
        )
        self.paho.on_connect = lambda _client, _data, flags, code, _more: self._note(
            lambda: self._on_connect(flags, code)
        )
        if listener in ("tls", "wss"):
            self.paho.tls_set(authority)
        more: dict[str, Any] = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = expiry_s
            more = {"properties": properties, "clean_start": expiry_s == 0}
        self.paho.connect("localhost", port, **more)
        self.paho.loop_start()
        self.wait(lambda: self._connected is not None, "connected")
        assert self._connected is not None and not self._connected.is_failure, self._connected

    def _on_connect(self, flags: paho.ConnectFlags, code: ReasonCode) -> None:
        self._connected, self.session_present = code, bool(flags.session_present)

    def _note(self, change: Callable[[], None]) -> None:
        with self._condition:
            change()
            self._condition.notify_all()

    def wait(self, condition: Callable[[], bool], what: str, within_s: float = TIMEOUT_S) -> None:
        """Wait for a condition of ``messages``."""
        with self._condition:
            assert self._condition.wait_for(condition, within_s), f"not {what} after {within_s} s"

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe, and wait for the SUBACK that grants the QoS."""
        before = len(self._granted)
        if self.version == V5:
            self.paho.subscribe(topic_filter, options=SubscribeOptions(qos))
        else:
            self.paho.subscribe(topic_filter, qos)
        self.wait(lambda: len(self._granted) > before, f"subscribed to {topic_filter}")
        assert [code.value for code in self._granted[before]] == [qos]

    def publish(self, topic: str, payload: str, qos: int, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        handed = self.paho.publish(topic, payload, qos, retain)
        handed.wait_for_publish(TIMEOUT_S)
        assert handed.is_published()

    def receive(self) -> tuple[str, str, int, bool]:
        """Wait for the next message that was not received yet: (topic, payload, QoS, RETAIN)."""
        self.wait(lambda: len(self.messages) > self._taken, f"message {self._taken + 1}")
        message = self.messages[self._taken]
        self._taken += 1
        return message.topic, message.payload.decode(), message.qos, message.retain

    def wait_for(self, count: int) -> list[str]:
        """Wait for so many messages; return topic and payload of each that has come."""
        self.wait(lambda: len(self.messages) >= count, f"{count} messages", MESSAGES_S)
        return [f"{message.topic} {message.payload.decode()}" for message in self.messages]

    def close(self) -> None:
        """Disconnect."""
        self.paho.disconnect()
        self.paho.loop_stop()
