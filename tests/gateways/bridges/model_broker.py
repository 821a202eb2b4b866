"""A broker of the simulation with one client's session, which outlives connections and the client's process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mqtt import StreamDecoder, encode_packet
from mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from mqtt.properties import Properties, PropertyId
from mqtt.property_values import receive_maximum
from mqtt.topics import matches

__all__ = ["Message", "ModelBroker"]


@dataclass(frozen=True)
class Message:
    """A message as a subscriber receives it."""

    topic: str
    payload: bytes
    qos: int = 1


@dataclass
class ModelBroker:
    """One broker.

    Attributes:
      judge: Reason code for a publish of the client.
      taken: Messages of the client, in the order of arrival.
      published: All messages, including those of other clients.
    """

    judge: Callable[[Publish], int] = lambda _packet: 0
    taken: list[Message] = field(default_factory=list)
    queue: deque[Message] = field(default_factory=deque)
    in_flight: dict[int, tuple[Message, bool]] = field(default_factory=dict)  # True: PUBREC received
    held: set[int] = field(default_factory=set)  # QoS 2 identifiers of the client
    filters: dict[str, tuple[int, bool]] = field(default_factory=dict)  # -> QoS, No Local
    has_session: bool = False
    packet_bytes_max: int = 0  # 0: no bound
    connected: bool = False
    output: bytearray = field(default_factory=bytearray)
    _decoder: StreamDecoder = field(default_factory=lambda: StreamDecoder(5))
    _window: int = 0
    _next: int = 0

    def open(self) -> None:
        """A client opens a stream."""
        self._decoder = StreamDecoder(5)
        self.output.clear()
        self.connected = False

    def cut(self) -> None:
        """The stream is closed; the session stays."""
        self.connected = False
        self.output.clear()

    def forget(self) -> None:
        """Lose the session and its queue, as a broker without a disk does."""
        self.cut()
        self.queue.clear()
        self.in_flight.clear()
        self.held.clear()
        self.filters.clear()
        self.has_session = False

    def restart_identifiers(self) -> None:
        """Use the lowest free packet identifier next, as many brokers always do."""
        self._next = 0

    def publish(self, message: Message) -> None:
        """Publish as another client."""
        self._route(message, own=False)

    def read(self, data: bytes) -> None:
        """Handle bytes of the client."""
        for packet in self._decoder.feed(data):
            self._take(packet)
        self._deliver()

    def _take(self, packet: Packet) -> None:
        match packet:
            case Connect():
                self._window = receive_maximum(packet.properties)
                properties: Properties = (
                    {PropertyId.MAXIMUM_PACKET_SIZE: self.packet_bytes_max} if self.packet_bytes_max else {}
                )
                self._send(Connack(self.has_session, properties=properties))
                self.connected = self.has_session = True
                for identifier, (message, released) in self.in_flight.items():
                    again = Publish(message.topic, message.payload, message.qos, False, True, identifier)
                    self._send(Pubrel(identifier) if released else again)
            case Publish():
                self._published(packet)
            case Puback() | Pubcomp():
                self.in_flight.pop(packet.packet_identifier, None)
            case Pubrec():
                if packet.packet_identifier in self.in_flight:
                    self.in_flight[packet.packet_identifier] = (self.in_flight[packet.packet_identifier][0], True)
                self._send(Pubrel(packet.packet_identifier))
            case Pubrel():
                self.held.discard(packet.packet_identifier)
                self._send(Pubcomp(packet.packet_identifier))
            case Subscribe():
                for each in packet.subscriptions:
                    self.filters[each.topic_filter] = (each.qos, each.no_local)
                codes = [each.qos for each in packet.subscriptions]
                self._send(Suback(packet.packet_identifier, codes))
            case Pingreq():
                self._send(Pingresp())
            case _:
                raise AssertionError(f"a gateway does not send {packet}")

    def _published(self, packet: Publish) -> None:
        identifier = packet.packet_identifier or 0
        repeat = packet.qos == 2 and identifier in self.held
        code = 0 if repeat else self.judge(packet)
        if code < 0x80 and not repeat:
            message = Message(packet.topic_name, packet.payload, packet.qos)
            self.taken.append(message)
            self._route(message, own=True)
        if packet.qos == 1:
            self._send(Puback(identifier, code))
        elif packet.qos == 2:
            if code < 0x80:
                self.held.add(identifier)
            self._send(Pubrec(identifier, code))

    def _route(self, message: Message, *, own: bool) -> None:
        granted = [
            qos
            for name, (qos, no_local) in self.filters.items()
            if matches(name, message.topic) and not (own and no_local)
        ]
        if granted:
            qos = min(message.qos, max(granted))
            self.queue.append(Message(message.topic, message.payload, qos))
        self._deliver()

    def _deliver(self) -> None:
        while self.connected and self.queue and len(self.in_flight) < self._window:
            message = self.queue.popleft()
            identifier = None
            if message.qos:
                while True:
                    self._next = self._next % 65_535 + 1
                    if self._next not in self.in_flight:
                        break
                identifier = self._next
                self.in_flight[identifier] = (message, False)
            self._send(Publish(message.topic, message.payload, message.qos, packet_identifier=identifier))

    def _send(self, packet: Packet) -> None:
        self.output += encode_packet(packet, 5)
