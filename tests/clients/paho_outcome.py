"""The outcome of a connection of paho-mqtt: its CONNACK, and its end."""

import threading

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["Outcome"]


class Outcome(threading.Event):
    """Set when CONNACK has come.

    Attributes:
        code: Of CONNACK; -1 before.
        final: Authentication Data of CONNACK.
        gone: Set when the connection has ended.
        ended: Reason code of that; -1 before.
    """

    def __init__(self, client: paho.Client) -> None:
        super().__init__()
        self.code = self.ended = -1
        self.final = b""
        self.gone = threading.Event()
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected

    def _connected(
        self, client: object, data: object, flags: object, code: ReasonCode, more: Properties | None
    ) -> None:
        del client, data, flags
        self.code, self.final = code.value, getattr(more, "AuthenticationData", b"")
        self.set()

    def _disconnected(
        self, client: object, data: object, flags: object, code: ReasonCode, more: Properties | None
    ) -> None:
        del client, data, flags, more
        self.ended = code.value
        self.gone.set()
