"""An MQTT client on a blocking socket: it sends and reads only on request."""

import socket
import time
from collections import deque
from typing import Any

from mqtt.codec import decode_packet, decode_varint, encode_packet
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from tests.clients.packets import Splitter
from tests.patience import PATIENCE_S

__all__ = ["BlockingClient"]

TIMEOUT_S = PATIENCE_S
READ_BYTES = 65_536


class BlockingClient:
    """One connection, from ``source`` if it is given; every wait ends with ``timeout_s``."""

    def __init__(self, port: int, version: int = 5, timeout_s: float = TIMEOUT_S, source: str = "") -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Splitter()
        self._packets: deque[bytes] = deque()
        self._identifier = 0

    def next_identifier(self) -> int:
        """Return the next packet identifier."""
        self._identifier = self._identifier % 65_535 + 1
        return self._identifier

    # Whole packets

    def send(self, packet: Packet | bytes) -> None:
        """Send a packet, or any bytes."""
        self.socket.sendall(packet if isinstance(packet, bytes) else encode_packet(packet, self.version))

    def next_bytes(self) -> bytes:
        """Return the next packet as its bytes, b"" at the end of file."""
        while not self._packets:
            data = self.socket.recv(READ_BYTES)
            if not data:
                return b""
            self._packets.extend(self._splitter.feed(data))
        return self._packets.popleft()

    def read(self) -> Packet | None:
        """Return the next packet, None at the end of file."""
        data = self.next_bytes()
        if not data:
            return None
        _, body = decode_varint(data, 1)
        return decode_packet(data[0], data[body:], self.version)

    # Conversations

    def connect(self, client_id: str, keep_alive_s: int = 60, **options: Any) -> Connack:
        """Send CONNECT; return the answer, also a refusal."""
        self.send(Connect(client_id, keep_alive_s=keep_alive_s, protocol_version=self.version, **options))
        connack = self.read()
        assert isinstance(connack, Connack), connack
        return connack

    def open(self, client_id: str, **options: Any) -> Connack:
        """Send CONNECT; return the CONNACK that accepts it."""
        connack = self.connect(client_id, **options)
        assert connack.reason_code == 0, connack
        return connack

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Send one SUBSCRIBE and wait for SUBACK."""
        self.send(Subscribe(self.next_identifier(), [SubscriptionRequest(name, qos) for name in filters], {}))
        suback = self.read()
        assert isinstance(suback, Suback), suback

    def subscribe_each(self, *filters: str) -> float:
        """Send one SUBSCRIBE (QoS 0) for each filter, all at once; return the seconds until the last SUBACK."""
        version = self.version
        requests = [Subscribe(self.next_identifier(), [SubscriptionRequest(name, 0)], {}) for name in filters]
        data = b"".join(encode_packet(request, version) for request in requests)
        began = time.monotonic()
        self.socket.sendall(data)
        for _ in filters:
            suback = self.next_bytes()
            assert suback[:1] == b"\x90" and suback[-1] == 0, suback
        return time.monotonic() - began

    def publish(self, topic: str, payload: bytes = b"x") -> int:
        """Publish with QoS 1; return the reason code of PUBACK, which may follow other packets."""
        self.send(Publish(topic, payload, 1, packet_identifier=self.next_identifier()))
        while not isinstance(packet := self.read(), Puback):
            if packet is None:
                raise ConnectionError("the broker closed the connection")
        return packet.reason_code

    def published(self) -> Publish:
        """Return the next packet, which is a PUBLISH."""
        packet = self.read()
        assert isinstance(packet, Publish), packet
        return packet

    def take(self) -> Publish:
        """Return the next PUBLISH, acknowledged if it has QoS 1; other packets before it do not count."""
        while not isinstance(packet := self.read(), Publish):
            if packet is None:
                raise ConnectionError("the broker closed the connection")
        if packet.qos == 1 and packet.packet_identifier is not None:
            self.send(Puback(packet.packet_identifier))
        return packet

    def disconnect(self) -> None:
        """Send DISCONNECT and close; a stored session stays."""
        self.send(Disconnect())
        self.close()

    def close(self) -> None:
        """Close without a word."""
        self.socket.close()
