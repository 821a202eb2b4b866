"""A client of the simulated cluster that writes arbitrary bytes, and reads packets as short texts."""

from typing import Any

from mqtt.codec import decode_packet
from mqtt.errors import MqttError
from mqtt.packets import Connack, Disconnect, Publish, Suback
from tests.clients.packets import Splitter, connect, session_expiry, subscribe
from tests.simulation.cluster import Cluster
from tests.simulation.network import Endpoint

__all__ = ["RawClient"]

QUIET_S = 0.3  # longer than any exchange of an idle cluster takes


class RawClient:
    """One client identifier on one connection at a time.

    Args:
        cluster: The cluster.
        client_id: Its client identifier.
        version: 4 or 5.
        stored: Whether its session outlives the connection.
        properties: Of CONNECT, encoded, besides Session Expiry Interval.
    """

    def __init__(
        self, cluster: Cluster, client_id: str, version: int, *, stored: bool = False, properties: bytes = b""
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self.version = version
        self._stored = stored
        self._properties = properties
        self.identifier = 0  # of the newest received PUBLISH
        self.open(clean=True)

    def open(self, *, clean: bool = False, edge: str = "e1") -> list[str]:
        """Connect, after the end of the previous connection; return the packets after CONNACK."""
        ends: list[Endpoint | None] = []
        self._cluster.network.connect(self._client_id, f"{edge}:2", 5.0, ends.append)
        self._cluster.until(lambda: bool(ends))
        end = ends[0]
        assert end is not None
        self.end, self._splitter = end, Splitter()
        properties = self._properties + (session_expiry(600) if self._stored else b"")
        clean = clean and not (self._stored and self.version == 4)
        came = self.say(connect(self._client_id.encode(), self.version, properties, clean=clean or not self._stored))
        assert came[0].startswith("CONNACK 0x00"), came
        return came[1:]

    def drop(self) -> None:
        """Break the connection."""
        self.end.abort()
        self._cluster.run(QUIET_S)

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        """Subscribe."""
        came = self.say(subscribe(topic_filter, qos, self.version))
        assert came == [f"SUBACK {qos:#04x}"], came

    def say(self, *packets: bytes) -> list[str]:
        """Write packets together; return the answers until a pause, and ``closed``."""
        self.end.send(b"".join(packets))
        self._cluster.run(QUIET_S)
        return self.read()

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self._cluster.run(seconds)

    def read(self) -> list[str]:
        """Return the packets received since the last call."""
        came = [self._text(packet) for packet in self._splitter.feed(self.end.read())]
        return came + ["closed"] * (self.end.eof or self.end.reset)

    def _text(self, data: bytes) -> str:
        body = 2
        while data[body - 1] > 127:
            body += 1
        try:
            packet: Any = decode_packet(data[0], data[body:], self.version)
        except MqttError as error:
            return f"malformed {error}"
        name = type(packet).__name__.upper()
        if isinstance(packet, Publish):
            self.identifier = packet.packet_identifier or 0
            expiry = packet.properties.get(2)
            left = "" if expiry is None else f" expiry {expiry}"
            flags = f"{' dup' if packet.dup else ''}{' retain' if packet.retain else ''}"
            given = packet.properties.get(0x0B)
            identifiers = "".join(f" #{each}" for each in given) if isinstance(given, list | tuple) else ""
            return f"PUBLISH q{packet.qos} {bytes(packet.payload).decode()}{flags}{left}{identifiers}"
        if isinstance(packet, Suback):
            return f"{name} {' '.join(f'{code:#04x}' for code in packet.reason_codes)}"
        if isinstance(packet, (Connack, Disconnect)):
            return f"{name} {packet.reason_code:#04x}"
        code = getattr(packet, "reason_code", 0)
        return name + (f" {code:#04x}" if code else "")
