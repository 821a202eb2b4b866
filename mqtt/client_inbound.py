"""Messages that a broker sends to one client session, until their exchanges are over.

Decides which PUBLISH is new, which comes again, and when PUBACK and PUBREC leave: after the caller has acknowledged the
message, in the order in which the messages of that QoS came [MQTT-4.6.0-2] [MQTT-4.6.0-3]. A message that its caller
still holds when the connection ends is not handed over a second time when the broker sends it again. Our Receive
Maximum bounds the exchanges of one connection and begins anew with the next one (section 4.9).
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
    """A message that is handed over and not answered."""

    packet: Publish
    done: bool = False  # acknowledged by the caller


class ClientInbound:
    """Received messages of one session over all its connections.

    Attributes:
        taken: QoS 2 identifiers handed over and not released, on whichever connection.
    """

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self._unreleased: set[int] = set()  # of those, taken on the present connection
        self._open: dict[int, _Delivery] = {}  # of the present connection, by packet identifier
        self._earlier: dict[int, _Delivery] = {}  # of connections that ended
        self._order: dict[int, deque[_Delivery]] = {1: deque(), 2: deque()}  # as they came, by QoS
        self._receive_maximum = self._alias_maximum = 0
        self._aliases: dict[int, str] = {}

    @property
    def unanswered(self) -> int:
        """Return how many messages of the present connection are handed over and not answered."""
        return len(self._open)

    def begin(self, receive_maximum: int, alias_maximum: int) -> None:
        """Begin a connection with what its CONNECT says."""
        self._receive_maximum, self._alias_maximum = receive_maximum, alias_maximum

    def end(self) -> None:
        """Note that the connection ended: the broker will send again what was not answered."""
        self._earlier |= self._open
        self._open.clear()
        self._unreleased.clear()
        for order in self._order.values():
            order.clear()
        self._aliases.clear()

    def forget(self) -> None:
        """Discard all that the session kept."""
        self.taken.clear()
        self._unreleased.clear()
        self._earlier.clear()

    def receive(self, packet: Publish) -> tuple[Publish | None, list[Puback | Pubrec]]:
        """Take a PUBLISH; return the message for the caller, None if it has it, and what is answered now.

        Raises:
            RemoteProtocolError: The broker breaks the protocol; the reason code is for DISCONNECT.
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
        """Whether a QoS 2 message was handed over before, and comes again because PUBREC was lost."""
        return packet.qos == 2 and packet.packet_identifier in self.taken

    def acknowledge(self, packet: Publish) -> tuple[bool, list[Puback | Pubrec]]:
        """Note that the caller has done a message.

        Returns:
            Whether it is handed over now, and not for a second time; and what is answered now. A message of a session
            that is forgotten, and one that the broker took back, is answered by nothing.
        """
        identifier = packet.packet_identifier
        if packet.qos == 0 or identifier is None:
            return True, []
        delivery = self._open.get(identifier)
        if delivery is None or delivery.packet is not packet:
            delivery = self._earlier.get(identifier)
            if delivery is None or delivery.packet is not packet:
                return packet.qos == 1, []
            delivery.done = True  # answered when it comes again
            return True, []
        delivery.done = True
        first = packet.qos == 1 or identifier not in self.taken
        return first, self._answers(packet.qos)

    def pass_over(self, packet: Publish) -> None:
        """Forget a message that the caller does not keep: when the broker sends it again it is handed over again.

        On this connection the caller keeps none behind it, so no answer waits for it.
        """
        delivery = self._open.get(packet.packet_identifier or 0)
        if delivery is not None and delivery.packet is packet:
            del self._open[packet.packet_identifier or 0]
            assert self._order[packet.qos][-1] is delivery, "the caller has taken the message before"
            self._order[packet.qos].pop()

    def release(self, identifier: int) -> bool:
        """Take a PUBREL; return whether its message was handed over."""
        known = identifier in self.taken
        self.taken.discard(identifier)
        self._unreleased.discard(identifier)
        return known

    def restore(self, taken: Iterable[int], held: Iterable[Publish]) -> None:
        """Put back what a former process had handed over, and what its caller had not done."""
        self.taken.update(taken)
        for packet in held:
            assert packet.packet_identifier is not None
            self._earlier[packet.packet_identifier] = _Delivery(packet)

    def _is_full(self) -> bool:
        """Whether this connection has as many exchanges as Receive Maximum allows; exact at the bound alone."""
        if len(self._open) + len(self._unreleased) < self._receive_maximum:
            return False
        return len(self._open) + sum(each not in self._open for each in self._unreleased) >= self._receive_maximum

    def _answers(self, qos: int) -> list[Puback | Pubrec]:
        """Answer the messages of a QoS that are done, up to the first that is not."""
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
        """Put the topic in the place of its alias (section 3.3.2.3.4)."""
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
