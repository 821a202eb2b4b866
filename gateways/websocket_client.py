"""The client's half of MQTT over WebSocket: handshake and frames of RFC 6455, by wsproto.

No I/O: the caller moves bytes. Packets need not align with frames [MQTT-6.0.0-2]; the subprotocol is "mqtt"
[MQTT-6.0.0-3]; a text frame ends the connection [MQTT-6.0.0-1].
"""

from __future__ import annotations

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

__all__ = ["WebSocketClient"]

SUBPROTOCOL = "mqtt"
HANDSHAKE_BYTES_MAX = 16 * 1024


class WebSocketClient:
    """One connection's WebSocket layer.

    Attributes:
      is_open: The server accepted the handshake.
      failure: The reason why the connection is unusable, "" while it is usable.
    """

    def __init__(self, host: str, path: str) -> None:
        self.is_open = False
        self.failure = ""
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._output = bytearray(
            self._connection.send(Request(host=host, target=path, subprotocols=[SUBPROTOCOL]))  # the handshake request
        )
        self._handshake_bytes = 0

    def receive(self, data: bytes) -> bytes:
        """Return the MQTT bytes of the frames in ``data``; if ``failure`` is set, no more will follow."""
        if self.failure:
            return b""
        if not self.is_open:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self.failure = "the WebSocket handshake has no end"
                return b""
        received = bytearray()
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                self._take(event, received)
                if self.failure:
                    break
        except (ProtocolError, ValueError) as error:
            self.failure = f"no WebSocket: {error}"
        return bytes(received)

    def _take(self, event: object, received: bytearray) -> None:
        if isinstance(event, BytesMessage):
            received += event.data
        elif isinstance(event, AcceptConnection):
            self.is_open = event.subprotocol == SUBPROTOCOL
            if not self.is_open:
                self.failure = "the server does not speak the subprotocol mqtt"
        elif isinstance(event, Ping):
            self._output += self._connection.send(event.response())
        elif isinstance(event, RejectConnection):
            self.failure = f"the WebSocket handshake was answered with status {event.status_code}"
        elif isinstance(event, TextMessage):
            self.failure = "a text frame"
        elif isinstance(event, CloseConnection):
            self.failure = "closed"

    def wrap(self, data: bytes) -> bytes:
        """Return a frame with MQTT bytes, empty after the server closed. The handshake must be done."""
        return b"" if self.failure else bytes(self._connection.send(BytesMessage(data=data)))

    def take_output(self) -> bytes:
        """Return the bytes that the layer has to send."""
        output = bytes(self._output)
        self._output.clear()
        return output
