"""QoS 1 and 2 messages from one client session to its broker, until their exchanges are complete.

Decides how many messages may be in flight (section 4.9), and the packets to resend on the next connection: unanswered
PUBLISHes with DUP in their order, only PUBREL after PUBREC [MQTT-4.4.0-1].
"""

from __future__ import annotations

from collections import deque

from mqtt.client_events import OpenPublish, PublishAnswered
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqtt.reasons import FAILURE, ReasonCode

__all__ = ["ClientOutbound"]


class ClientOutbound:
    """Open publishes of one session over all its connections.

    Attributes:
        open: By packet identifier, in order of sending. Bounded by the window.
        quota: Maximum in flight on this connection; 0 while disconnected.
    """

    def __init__(self) -> None:
        self.open: dict[int, OpenPublish] = {}
        self.quota = 0
        self._unsent: deque[int] = deque()  # open ones not yet resent on this connection: the quota was exhausted

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent now."""
        return len(self.open) < self.quota and not self._unsent

    def begin(self, quota: int) -> None:
        """Start a connection of the same session: all open publishes wait for their resend."""
        self.quota = quota
        self._unsent = deque(self.open)

    def end(self) -> None:
        """End the connection."""
        self.quota = 0
        self._unsent.clear()

    def resend(self) -> list[Publish | Pubrel]:
        """Return the packets to resend now, as many as the quota allows."""
        packets: list[Publish | Pubrel] = []
        in_flight = len(self.open) - len(self._unsent)
        while self._unsent and in_flight < self.quota:
            identifier = self._unsent.popleft()
            publish = self.open.get(identifier)
            if publish is None:
                continue
            in_flight += 1
            publish.packet.dup = True  # [MQTT-3.3.1-1]
            packets.append(Pubrel(identifier) if publish.released else publish.packet)
        return packets

    def discard(self, identifier: int) -> None:
        """Remove a message that cannot be resent."""
        del self.open[identifier]

    def forget(self) -> tuple[int, ...]:
        """Remove all messages; return the tokens of those that will never be answered."""
        unanswered = tuple(publish.token for publish in self.open.values() if not publish.released)
        self.open.clear()
        self._unsent.clear()
        return unanswered

    def answer(self, packet: Puback | Pubrec | Pubcomp) -> tuple[PublishAnswered | None, Pubrel | None]:
        """Process an answer; return the event for the caller, and the packet to send.

        An answer without an open publish has no event: a broker may send one after it lost its own state.

        Raises:
            RemoteProtocolError: The answer belongs to another QoS.
        """
        identifier = packet.packet_identifier
        publish = self.open.get(identifier)
        if publish is None:
            if isinstance(packet, Pubrec) and packet.reason_code < FAILURE:
                return None, Pubrel(identifier, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            return None, None
        if isinstance(packet, Puback) != (publish.packet.qos == 1):
            raise RemoteProtocolError(f"answer to a message of QoS {publish.packet.qos}, identifier {identifier}")
        answered = PublishAnswered(publish.token, packet.reason_code)
        if isinstance(packet, Pubrec) and packet.reason_code < FAILURE:
            if publish.released:
                return None, Pubrel(identifier)
            publish.released = True
            return answered, Pubrel(identifier)
        del self.open[identifier]
        return (None if isinstance(packet, Pubcomp) and publish.released else answered), None
