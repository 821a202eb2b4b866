"""An MQTT 3.1.1 client on a blocking socket: it costs next to nothing, so that what is measured is the cluster."""

import socket
import time

__all__ = ["PUBLISH", "PlainClient"]

TIMEOUT_S = 30.0
CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9


class PlainClient:
    """One connection; packets below 128 bytes only."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._identifier = 0
        self._send(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + _text(name))
        kind, body = self.packet()
        assert kind == CONNACK and body[1] == 0

    def _send(self, kind: int, body: bytes) -> None:
        assert len(body) < 128
        self._socket.sendall(bytes((kind, len(body))) + body)

    def packet(self) -> tuple[int, bytes]:
        """Return the next packet: (type, body)."""
        while len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]:
            more = self._socket.recv(65_536)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._buffer += more
        end = 2 + self._buffer[1]
        kind, body, self._buffer = self._buffer[0] >> 4, self._buffer[2:end], self._buffer[end:]
        return kind, body

    def _next(self) -> bytes:
        self._identifier = self._identifier % 65_535 + 1
        return self._identifier.to_bytes(2, "big")

    def publish(self, topic: str) -> None:
        """Publish with QoS 1 and wait for PUBACK."""
        self._send(0x32, _text(topic) + self._next() + b"x")
        assert self.packet()[0] == PUBACK

    def subscribe(self, *topic_filters: str) -> float:
        """Send one SUBSCRIBE (QoS 0) for each filter, all at once; return the seconds until the last SUBACK."""
        began = time.monotonic()
        for topic_filter in topic_filters:
            self._send(0x82, self._next() + _text(topic_filter) + b"\x00")
        for _ in topic_filters:
            kind, body = self.packet()
            assert kind == SUBACK and body[2] == 0
        return time.monotonic() - began

    def close(self) -> None:
        """Close without a word."""
        self._socket.close()


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()
