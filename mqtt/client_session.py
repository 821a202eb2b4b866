"""Client side of an MQTT session, as a recording client keeps it across connections.

Decides what is sent again and what is handed over: unanswered PUBLISHes go out again with DUP on the next connection of
the same session, in their order; after PUBREC only PUBREL does; a QoS 2 packet identifier that was not released is not
handed over twice. A session that the broker forgot is forgotten here too, and its open publishes become unknown.
No I/O, no clock. Source: MQTT 5.0 sections 4.1, 4.3 and 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel

__all__ = ["ClientSession", "OpenPublish"]

FAILURE = 0x80  # reason codes from here on are errors (section 2.4)


@dataclass(slots=True)
class OpenPublish:
    """A QoS 1 or 2 PUBLISH whose packet identifier is in use."""

    operation: int
    packet: Publish
    released: bool = False  # PUBREC was read: PUBREL is what is sent again


@dataclass(slots=True)
class ClientSession:
    """State that survives a connection.

    Attributes:
        first_identifier, last_identifier: Packet identifiers to use, both included. Programs that fight for one
            client identifier use ranges of their own, so that the broker cannot take one's message for another's.
    """

    first_identifier: int = 1
    last_identifier: int = 0xFFFF
    outbound: dict[int, OpenPublish] = field(default_factory=dict)  # by packet identifier, in order of sending
    inbound: set[int] = field(default_factory=set)  # QoS 2 identifiers handed over and not released
    _latest_identifier: int = 0

    def next_identifier(self, in_use: set[int]) -> int:
        """Return a packet identifier that neither a publish nor one of in_use has; callers bound their windows."""
        candidate = self._latest_identifier
        while True:
            candidate = candidate + 1 if candidate >= self.first_identifier else self.first_identifier
            if candidate > self.last_identifier:
                candidate = self.first_identifier
            if candidate not in self.outbound and candidate not in in_use:
                self._latest_identifier = candidate
                return candidate

    def resumed(self) -> list[tuple[int, Packet]]:
        """Return what to send first on a connection that resumes the session: (operation, packet) [MQTT-4.4.0-1]."""
        again: list[tuple[int, Packet]] = []
        for identifier, publish in self.outbound.items():
            publish.packet.dup = True  # [MQTT-3.3.1-1]
            packet: Packet = Pubrel(identifier) if publish.released else publish.packet
            again.append((0 if publish.released else publish.operation, packet))
        return again

    def forget(self) -> list[int]:
        """Discard everything; return the operations that will never be answered."""
        unanswered = [publish.operation for publish in self.outbound.values() if not publish.released]
        self.outbound.clear()
        self.inbound.clear()
        return unanswered

    def acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> tuple[OpenPublish | None, Packet | None]:
        """Take an acknowledgement; return the publish that it answers for the first time, and the packet to send."""
        publish = self.outbound.get(packet.packet_identifier)
        if isinstance(packet, Pubrec) and packet.reason_code < FAILURE:
            if publish is None:
                return None, Pubrel(packet.packet_identifier, 0x92)
            first = not publish.released
            publish.released = True
            return (publish if first else None), Pubrel(packet.packet_identifier)
        if publish is not None:
            del self.outbound[packet.packet_identifier]
        return (None if isinstance(packet, Pubcomp) else publish), None

    def received(self, packet: Publish) -> tuple[bool, Packet | None]:
        """Take a PUBLISH; return whether to hand it over, and its acknowledgement."""
        identifier = packet.packet_identifier or 0
        if packet.qos == 0:
            return True, None
        if packet.qos == 1:
            return True, Puback(identifier)
        first = identifier not in self.inbound
        self.inbound.add(identifier)
        return first, Pubrec(identifier)

    def release(self, packet: Pubrel) -> Packet:
        """Take a PUBREL; return the PUBCOMP."""
        known = packet.packet_identifier in self.inbound
        self.inbound.discard(packet.packet_identifier)
        return Pubcomp(packet.packet_identifier, 0 if known else 0x92)
