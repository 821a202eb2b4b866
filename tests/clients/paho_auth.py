"""A client of paho-mqtt that authenticates by AUTH. paho writes and reads CONNECT, CONNACK and all properties.

paho-mqtt knows the properties of AUTH and has no handler for the packet; it is added here.
"""

import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.clients.paho_outcome import Outcome
from tests.patience import PATIENCE_S

__all__ = ["CONTINUE", "REAUTHENTICATE", "SUCCESS", "PahoAuth"]

SUCCESS, CONTINUE, REAUTHENTICATE = 0x00, 0x18, 0x19
TIMEOUT_S = PATIENCE_S
PROPERTIES: Any = Properties  # paho has no types for it


class PahoAuth(paho.Client):
    """One connection.

    Args:
        port: Where to connect.
        method: Name of the method.
        first: Data of CONNECT.
        prove: Returns the answer to the server's data.

    Attributes:
        outcome: CONNACK and the end.
        renewed: Set when the server has answered REAUTHENTICATE with SUCCESS.
    """

    def __init__(self, port: int, method: str, first: bytes, prove: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.method, self.prove = method, prove
        self.outcome = Outcome(self)
        self.renewed = threading.Event()
        self.connect("127.0.0.1", port, properties=self._said(PacketTypes.CONNECT, first))
        self.loop_start()
        assert self.outcome.wait(TIMEOUT_S)

    def send_auth(self, code: int, data: bytes) -> None:
        """Send AUTH; may be called by any thread."""
        body = bytes([code]) + bytes(self._said(PacketTypes.AUTH, data).pack())
        head = bytearray([PacketTypes.AUTH << 4])
        self._pack_remaining_length(head, len(body))
        self._packet_queue(PacketTypes.AUTH << 4, head + body, 0, 0)

    def close(self) -> None:
        """End the connection."""
        self.disconnect()
        self.loop_stop()

    def _said(self, packet: int, data: bytes) -> Any:
        reply = PROPERTIES(packet)
        reply.AuthenticationMethod, reply.AuthenticationData = self.method, data
        return reply

    def _packet_handle(self) -> MQTTErrorCode:
        if self._in_packet["command"] & 0xF0 != PacketTypes.AUTH << 4:
            return super()._packet_handle()
        packet = bytes(self._in_packet["packet"])
        parsed, _ = PROPERTIES(PacketTypes.AUTH).unpack(packet[1:])
        assert parsed.AuthenticationMethod == self.method
        if packet[0] == CONTINUE:
            self.send_auth(CONTINUE, self.prove(parsed.AuthenticationData))
        else:
            assert packet[0] == SUCCESS
            self.renewed.set()
        return MQTTErrorCode.MQTT_ERR_SUCCESS
