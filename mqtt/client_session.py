"""Client side of MQTT 3.1.1 and 5.0: one session over all its connections, with the timers of the present one.

Bytes and the time go in (``handle``), one event at a time comes out (``next_event``), packets to send stand in
``take_output``, and ``next_deadline`` says when ``handle`` must be called without bytes. No I/O, no clock: the caller
opens and closes streams, and reads its own monotonic clock.

    session.begin(now, bounds); open a stream; session.opened(now, Connect(...)); send session.take_output()
    at bytes, and at session.next_deadline():
        session.handle(now, data)
        while (event := session.next_event()) is not None: act on it, send session.take_output()
    when the stream has ended, or after MustClose: session.closed()

The session sends again: unanswered PUBLISHes go out with DUP on the next connection of the same session, in their
order; after PUBREC only PUBREL does. A message belongs to the caller after ``acknowledge`` and not before: a QoS 2
packet identifier is marked as handed over at that moment. When the broker has forgotten the session, it is forgotten
here too. The caller decides when to connect again. Source: MQTT 5.0 sections 4.1, 4.3 and 4.4.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from mqtt import property_values
from mqtt.codec import StreamDecoder, encode_packet
from mqtt.errors import LocalProtocolError, MqttError
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from mqtt.reasons import FAILURE, ReasonCode

__all__ = [
    "Accepted",
    "ClientBounds",
    "ClientSession",
    "ClientState",
    "Event",
    "MustClose",
    "OpenPublish",
    "PublishAnswered",
    "Received",
    "Refused",
    "RequestAnswered",
    "Timer",
    "ToldToLeave",
]

PINGS_PER_SILENCE = 3


class ClientState(Enum):
    """State of the connection; ``closed`` leads from each of them to AWAY."""

    AWAY = "no connection and no attempt"  # begin -> OPENING
    OPENING = "the caller opens a stream; the connect timer runs"  # opened -> CONNECTING
    CONNECTING = "CONNECT is sent; the connect timer runs"  # CONNACK -> CONNECTED or REFUSED
    CONNECTED = "requests are taken; the ping timer runs"  # disconnect -> LEAVING
    LEAVING = "DISCONNECT is sent, and nothing after it; the goodbye timer runs"
    REFUSED = "CONNACK carried an error; no timer runs, and the caller closes"


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """Bounds of one connection.

    Attributes:
        connect_timeout_s: For the stream and CONNACK together.
        goodbye_timeout_s: For the broker to close after DISCONNECT.
        silence_s: Close when nothing was heard for so long; a PINGREQ goes out three times as often.
        window: QoS 1 and 2 publishes in flight; the broker's Receive Maximum may lower it.
        heedless: Ignore the broker's Receive Maximum, as paho does after a reconnect.
    """

    connect_timeout_s: float = 3.0
    goodbye_timeout_s: float = 1.0
    silence_s: float = 3.0
    window: int = 16
    heedless: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    """The one timer that runs, on the caller's clock."""

    kind: Literal["connect", "ping", "goodbye"]
    due: float


@dataclass(slots=True)
class OpenPublish:
    """A QoS 1 or 2 PUBLISH whose packet identifier is in use."""

    token: int  # of the caller
    packet: Publish
    released: bool = False  # PUBREC was read: PUBREL is what is sent again


@dataclass(frozen=True, slots=True)
class Accepted:
    """CONNACK accepted the connection; ``forgotten`` and ``resent`` are tokens of publishes."""

    connack: Connack
    forgotten: tuple[int, ...]  # the broker has no session: nobody will answer these
    resent: tuple[int, ...]  # sent with DUP behind this event


@dataclass(frozen=True, slots=True)
class Refused:
    """CONNACK carried an error; MustClose follows."""

    connack: Connack


@dataclass(frozen=True, slots=True)
class Received:
    """A PUBLISH arrived. The caller stores it, and then calls ``acknowledge``."""

    packet: Publish


@dataclass(frozen=True, slots=True)
class PublishAnswered:
    """PUBACK, or the first PUBREC, answered a publish."""

    token: int
    reason_code: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """SUBACK or UNSUBACK answered a request."""

    token: int
    packet: Suback | Unsuback


@dataclass(frozen=True, slots=True)
class ToldToLeave:
    """The broker sent DISCONNECT; it closes next."""

    packet: Disconnect


@dataclass(frozen=True, slots=True)
class MustClose:
    """The caller closes the stream and calls ``closed``: nothing else comes out of this connection.

    ``reason`` is "refused" (CONNACK), "silent" (no CONNACK, or nothing heard), "protocol" (bytes that are no packet, or
    a packet out of place), or "local" (the broker did not close after DISCONNECT).
    """

    reason: Literal["refused", "silent", "protocol", "local"]


Event: TypeAlias = Accepted | Refused | Received | PublishAnswered | RequestAnswered | ToldToLeave | MustClose


class ClientSession:
    """One session; see the module for the order of calls.

    What survives a connection: ``outbound``, ``inbound``, and the latest packet identifier. All else belongs to the
    present connection, and ``closed`` discards it.

    Attributes:
        outbound: Open publishes by packet identifier, in order of sending. Bounded by the window.
        inbound: QoS 2 identifiers handed over and not released. Bounded by our Receive Maximum, which the broker keeps.
        first_identifier, last_identifier: Packet identifiers to use, both included. Programs that fight for one
            client identifier use ranges of their own, so that the broker cannot take one's message for another's.
        timer: The one that runs; each start of a timer makes a new object.
    """

    def __init__(self, first_identifier: int = 1, last_identifier: int = 0xFFFF) -> None:
        self.first_identifier, self.last_identifier = first_identifier, last_identifier
        self.latest_identifier = 0
        self.outbound: dict[int, OpenPublish] = {}
        self.inbound: set[int] = set()
        self.state = ClientState.AWAY
        self.timer: Timer | None = None
        self._bounds = ClientBounds()
        self._version = 5
        self._decoder = StreamDecoder(5)
        self._send_quota = 0
        self._requests: dict[int, int] = {}  # tokens of SUBSCRIBE and UNSUBSCRIBE by packet identifier
        self._now = self._heard = -math.inf
        self._packets: deque[Packet] = deque()  # decoded and not looked at: those of one ``handle``
        self._must_close: MustClose | None = None
        self._output: list[bytes] = []

    # The connection

    def begin(self, now: float, bounds: ClientBounds) -> None:
        """Start an attempt: the connect timer runs while the caller opens a stream."""
        if self.state is not ClientState.AWAY:
            raise LocalProtocolError(f"an attempt while there is a connection: {self.state.value}")
        self.state, self._bounds = ClientState.OPENING, bounds
        self._start("connect", now + bounds.connect_timeout_s)

    def opened(self, now: float, connect: Connect) -> None:
        """Send CONNECT: bytes can travel."""
        if self.state is not ClientState.OPENING:
            raise LocalProtocolError(f"CONNECT out of place: {self.state.value}")
        self.state, self._heard = ClientState.CONNECTING, now
        self._version, self._decoder = connect.protocol_version, StreamDecoder(connect.protocol_version)
        self._put(connect)

    def handle(self, now: float, data: bytes = b"") -> None:
        """Take bytes of the stream, and the time; ``next_event`` returns what they mean."""
        self._now = now
        if data and self.state is not ClientState.AWAY:
            self._heard = now
            try:
                self._packets.extend(self._decoder.feed(data))
            except MqttError:
                pass  # the decoder keeps it
            if self._decoder.error is not None:
                self._must_close = MustClose("protocol")  # after the packets that stand before it

    def next_event(self) -> Event | None:
        """Return the next event of what ``handle`` took, or None; answers that need no decision are in the output."""
        while self._packets:
            event = self._take(self._packets.popleft())
            if event is not None:
                return event
        if self._must_close is None and self.timer is not None and self.timer.due <= self._now:
            self._expired(self.timer)
        must_close, self._must_close = self._must_close, None
        return must_close

    def next_deadline(self) -> float:
        """Return when ``handle`` must be called at the latest; infinity while no timer runs."""
        return self.timer.due if self.timer is not None else math.inf

    def take_output(self) -> list[bytes]:
        """Return the packets to send since the last call, each as its bytes, in their order."""
        output, self._output = self._output, []
        return output

    def closed(self) -> tuple[int, ...]:
        """Note that the stream is closed, or was not opened; return the tokens of requests that nobody will answer.

        Open publishes stay for the next connection of the session; see ``forget``.
        """
        unanswered = tuple(self._requests.values())
        self._requests.clear()
        self._packets.clear()
        self._output.clear()
        self.timer = self._must_close = None
        self.state = ClientState.AWAY
        return unanswered

    # Requests, on a connection that was accepted

    @property
    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message may be sent now."""
        return self.state is ClientState.CONNECTED and len(self.outbound) < self._send_quota

    def next_identifier(self) -> int:
        """Return a packet identifier that nothing uses.

        Raises:
            LocalProtocolError: All are in use: requests are open that the broker does not answer.
        """
        candidate = self.latest_identifier
        for _ in range(self.first_identifier, self.last_identifier + 1):
            candidate = candidate + 1 if candidate >= self.first_identifier else self.first_identifier
            if candidate > self.last_identifier:
                candidate = self.first_identifier
            if candidate not in self.outbound and candidate not in self._requests:
                self.latest_identifier = candidate
                return candidate
        raise LocalProtocolError("all packet identifiers are in use")

    def publish(self, packet: Publish, token: int) -> None:
        """Send a message; with QoS 1 and 2 it carries an identifier of ``next_identifier``, and ``has_room`` holds."""
        if packet.qos:
            if packet.packet_identifier is None or not self.has_room:
                raise LocalProtocolError("a PUBLISH without an identifier, or above the window")
            self.outbound[packet.packet_identifier] = OpenPublish(token, packet)
        self._request(packet)

    def request(self, packet: Subscribe | Unsubscribe, token: int) -> None:
        """Send a SUBSCRIBE or UNSUBSCRIBE with an identifier of ``next_identifier``."""
        self._request(packet)
        self._requests[packet.packet_identifier] = token

    def acknowledge(self, packet: Publish) -> bool:
        """Answer a received PUBLISH; return whether the message is handed over now, and not for a second time."""
        identifier = packet.packet_identifier
        if packet.qos == 0 or identifier is None:
            return True
        if packet.qos == 1:
            self._put(Puback(identifier))
            return True
        first = identifier not in self.inbound
        self.inbound.add(identifier)
        self._put(Pubrec(identifier))
        return first

    def disconnect(self, now: float, reason_code: int = 0) -> None:
        """Send DISCONNECT, after which nothing may be sent [MQTT-3.14.4-2]; the broker's close says it was read."""
        self._request(Disconnect(reason_code))
        self.state = ClientState.LEAVING
        self._start("goodbye", now + self._bounds.goodbye_timeout_s)

    def forget(self) -> tuple[int, ...]:
        """Discard the session; return the tokens of publishes that will never be answered."""
        unanswered = tuple(publish.token for publish in self.outbound.values() if not publish.released)
        self.outbound.clear()
        self.inbound.clear()
        return unanswered

    # Packets

    def _take(self, packet: Packet) -> Event | None:
        if isinstance(packet, Connack):
            return self._connack(packet)
        if self.state is ClientState.CONNECTING:  # section 3.2: the first packet of the broker is CONNACK
            self._break("protocol")
            return None
        match packet:
            case Publish():
                return Received(packet)
            case Pubrel():
                known = packet.packet_identifier in self.inbound
                self.inbound.discard(packet.packet_identifier)
                self._put(Pubcomp(packet.packet_identifier, 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            case Puback() | Pubrec() | Pubcomp():
                return self._acknowledged(packet)
            case Suback() | Unsuback():
                token = self._requests.pop(packet.packet_identifier, None)
                return None if token is None else RequestAnswered(token, packet)
            case Disconnect():
                return ToldToLeave(packet)
            case _:
                pass  # PINGRESP: ``handle`` has noted that the broker was heard
        return None

    def _connack(self, packet: Connack) -> Event | None:
        if self.state is not ClientState.CONNECTING:
            self._break("protocol")
            return None
        if packet.reason_code:
            self.state = ClientState.REFUSED
            self._break("refused")
            return Refused(packet)
        forgotten = () if packet.session_present else self.forget()
        maximum = property_values.receive_maximum(packet.properties)
        window = self._bounds.window
        self._send_quota = window if self._bounds.heedless else min(window, maximum)
        self.state = ClientState.CONNECTED
        resent = tuple(publish.token for publish in self.outbound.values() if not publish.released)
        for identifier, publish in self.outbound.items():  # before anything else [MQTT-4.4.0-1]
            publish.packet.dup = True  # [MQTT-3.3.1-1]
            self._put(Pubrel(identifier) if publish.released else publish.packet)
        self._start("ping", self._now + self._bounds.silence_s / PINGS_PER_SILENCE)
        return Accepted(packet, forgotten, resent)

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> PublishAnswered | None:
        publish = self.outbound.get(packet.packet_identifier)
        answer = None if publish is None else PublishAnswered(publish.token, packet.reason_code)
        if isinstance(packet, Pubrec) and packet.reason_code < FAILURE:
            self._put(
                Pubrel(packet.packet_identifier, 0 if publish is not None else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            )
            if publish is None or publish.released:
                return None
            publish.released = True
            return answer
        if publish is not None:
            del self.outbound[packet.packet_identifier]
        return None if isinstance(packet, Pubcomp) else answer

    def _expired(self, timer: Timer) -> None:
        if timer.kind == "goodbye":
            self._break("local")
        elif timer.kind == "connect" or self._now - self._heard > self._bounds.silence_s:
            self._break("silent")
        else:
            self._put(Pingreq())
            self._start("ping", self._now + self._bounds.silence_s / PINGS_PER_SILENCE)

    def _start(self, kind: Literal["connect", "ping", "goodbye"], due: float) -> None:
        self.timer = Timer(kind, due)

    def _break(self, reason: Literal["refused", "silent", "protocol", "local"]) -> None:
        self._packets.clear()
        self.timer = None
        self._must_close = MustClose(reason)

    def _request(self, packet: Packet) -> None:
        if self.state is not ClientState.CONNECTED:
            raise LocalProtocolError(f"a request without a connection: {self.state.value}")
        self._put(packet)

    def _put(self, packet: Packet) -> None:
        if self.state is not ClientState.LEAVING:
            self._output.append(encode_packet(packet, self._version))
