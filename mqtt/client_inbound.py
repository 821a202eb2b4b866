"""Messages from a broker to one client session, until their exchanges are complete.

Decides which PUBLISH is new or a repeat, and when PUBACK and PUBREC are sent: after the caller has acknowledged the
message, in the order of arrival per QoS [MQTT-4.6.0-2] [MQTT-4.6.0-3]. If the connection ends while the caller still
holds a message, the broker's repeat is not delivered a second time. Our Receive Maximum bounds the exchanges of one
connection and restarts with the next one (section 4.9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mqtt.errors import RemoteProtocolError
from mqtt.packets import Puback, Publish, Pubrec
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode

__all__ = ["ClientInbound"]


@dataclass(slots=True)
class _Delivery:
    """A delivered, unanswered message."""

    packet: Publish
    done: bool = False  # acknowledged by the caller


class ClientInbound:
    """Received messages of one session over all its connections.

    Attributes:
        taken: QoS 2 identifiers delivered and not released, on any connection.
    """

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self._unreleased: set[int] = set()  # of those, delivered on the present connection
        self._open: dict[int, _Delivery] = {}  # of the present connection, by packet identifier
        self._earlier: dict[int, _Delivery] = {}  # of connections that ended
        self._order: dict[int, deque[_Delivery]] = {1: deque(), 2: deque()}  # in order of arrival, by QoS
        self._receive_maximum = self._alias_maximum = 0
        self._aliases: dict[int, str] = {}

    @property
    def unanswered(self) -> int:
        """Number of messages of the present connection that are delivered and not answered."""
        return len(self._open)

    def begin(self, receive_maximum: int, alias_maximum: int) -> None:
        """Start a connection with the bounds of its CONNECT."""
        self._receive_maximum, self._alias_maximum = receive_maximum, alias_maximum

    def end(self) -> None:
        """End the connection: the broker will repeat unanswered messages."""
        self._earlier |= self._open
        self._open.clear()
        self._unreleased.clear()
        for order in self._order.values():
            order.clear()
        self._aliases.clear()

    def forget(self) -> None:
        """Discard the state of the session."""
        self.taken.clear()
        self._unreleased.clear()
        self._earlier.clear()

    def receive(self, packet: Publish) -> tuple[Publish | None, list[Puback | Pubrec]]:
        """Process a PUBLISH; return the message for the caller, None for a repeat, and the answers to send now.

        Raises:
            RemoteProtocolError: The broker violates the protocol; the reason code is for DISCONNECT.
        """
        self._resolve_alias(packet)
        identifier = packet.packet_identifier
        if packet.qos == 0 or identifier is None:
            return packet, []
        if identifier in self._open:
            raise RemoteProtocolError(f"packet identifier {identifier} is in use [MQTT-2.2.1-4]")
        if self._is_full() and identifier not in self.taken:
            raise RemoteProtocolError("more messages than Receive Maximum", ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        earlier = self._earlier.pop(identifier, None)
        if earlier is not None and packet.dup and _is_same(earlier.packet, packet):
            self._open[identifier] = earlier
            self._order[packet.qos].append(earlier)
            return None, self._answers(packet.qos)
        delivery = _Delivery(packet)
        self._open[identifier] = delivery
        self._order[packet.qos].append(delivery)
        return packet, []

    def is_taken(self, packet: Publish) -> bool:
        """Return whether a QoS 2 message was delivered before, and is repeated because PUBREC was lost."""
        return packet.qos == 2 and packet.packet_identifier in self.taken

    def acknowledge(self, packet: Publish) -> tuple[bool, list[Puback | Pubrec]]:
        """Mark a message as processed by the caller.

        Returns:
            Whether it counts as delivered for the first time; and the answers to send now. A message of a forgotten
            session, or one that the broker replaced, gets no answer.
        """
        identifier = packet.packet_identifier
        if packet.qos == 0 or identifier is None:
            return True, []
        delivery = self._open.get(identifier)
        if delivery is None or delivery.packet is not packet:
            delivery = self._earlier.get(identifier)
            if delivery is None or delivery.packet is not packet:
                return packet.qos == 1, []
            delivery.done = True  # answered when it is repeated
            return True, []
        delivery.done = True
        first = packet.qos == 1 or identifier not in self.taken
        return first, self._answers(packet.qos)

    def pass_over(self, packet: Publish) -> None:
        """Forget a message that the caller does not store, so that the broker's repeat is delivered again.

        The caller stores no later message of this connection, so no answer waits for this one.
        """
        delivery = self._open.get(packet.packet_identifier or 0)
        if delivery is not None and delivery.packet is packet:
            del self._open[packet.packet_identifier or 0]
            assert self._order[packet.qos][-1] is delivery, "a later message was accepted"
            self._order[packet.qos].pop()

    def release(self, identifier: int) -> bool:
        """Process a PUBREL; return whether its message was delivered."""
        known = identifier in self.taken
        self.taken.discard(identifier)
        self._unreleased.discard(identifier)
        return known

    def restore(self, taken: Iterable[int], held: Iterable[Publish]) -> None:
        """Restore the delivered messages of a former process, and those that its caller had not processed."""
        self.taken.update(taken)
        for packet in held:
            assert packet.packet_identifier is not None
            self._earlier[packet.packet_identifier] = _Delivery(packet)

    def _is_full(self) -> bool:
        """Return whether this connection has as many exchanges as Receive Maximum allows; exact only at the bound."""
        if len(self._open) + len(self._unreleased) < self._receive_maximum:
            return False
        return len(self._open) + sum(each not in self._open for each in self._unreleased) >= self._receive_maximum

    def _answers(self, qos: int) -> list[Puback | Pubrec]:
        """Answer the processed messages of a QoS, up to the first unprocessed one."""
        answers: list[Puback | Pubrec] = []
        order = self._order[qos]
        while order and order[0].done:
            identifier = order.popleft().packet.packet_identifier
            assert identifier is not None
            del self._open[identifier]
            if qos == 1:
                answers.append(Puback(identifier))
            else:
                self.taken.add(identifier)
                self._unreleased.add(identifier)
                answers.append(Pubrec(identifier))
        return answers

    def _resolve_alias(self, packet: Publish) -> None:
        """Replace a topic alias by its topic (section 3.3.2.3.4)."""
        alias = packet.properties.pop(PropertyId.TOPIC_ALIAS, None)
        if alias is None:
            if not packet.topic_name:
                raise RemoteProtocolError("neither topic nor alias [MQTT-3.3.2-8]")
            return
        assert isinstance(alias, int)
        if not 0 < alias <= self._alias_maximum:
            raise RemoteProtocolError(f"topic alias {alias}", ReasonCode.TOPIC_ALIAS_INVALID)
        if packet.topic_name:
            self._aliases[alias] = packet.topic_name
        elif alias in self._aliases:
            packet.topic_name = self._aliases[alias]
        else:
            raise RemoteProtocolError(f"topic alias {alias} has no topic", ReasonCode.TOPIC_ALIAS_INVALID)


def _is_same(one: Publish, other: Publish) -> bool:
    return (one.qos, one.topic_name, one.payload) == (other.qos, other.topic_name, other.payload)
