"""Client side of MQTT 3.1.1 and 5.0: one session over all its connections, with the timers of the present one.

``handle`` takes bytes and the time, ``next_event`` returns one event at a time, ``take_output`` returns the packets to
send, and ``next_deadline`` returns when ``handle`` must be called without bytes. No I/O, no clock: the caller opens and
closes streams, and reads its own monotonic clock.

    session.begin(now, bounds); open a stream; session.opened(now, Connect(...)); send session.take_output()
    at bytes, and at session.next_deadline():
        session.handle(now, data)
        while (event := session.next_event()) is not None: act on it, send session.take_output()
    when the stream has ended, or after MustClose: session.closed()

The session resends unanswered messages (``mqtt/client_outbound.py``). The caller owns a message only after
``acknowledge``, which also sends PUBACK and PUBREC (``mqtt/client_inbound.py``). If the session outlives its process,
the changes of ``take_changes`` must be durable before the output is sent. If the broker has lost the session, it is
discarded here too. The caller decides when and where to reconnect. Source: MQTT 5.0 sections 4.1, 4.3, 4.4 and 4.9.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Literal

from mqtt import property_values
from mqtt.client_events import (
    Accepted,
    ClientBounds,
    ClientState,
    ConnectRefused,
    Event,
    MustClose,
    OpenPublish,
    PublishAnswered,
    PublishReceived,
    RequestAnswered,
    ServerDisconnect,
    StateChange,
    Timer,
)
from mqtt.client_inbound import ClientInbound
from mqtt.client_outbound import ClientOutbound
from mqtt.codec import Limits, StreamDecoder, encode_packet
from mqtt.errors import LocalProtocolError, MqttError, RemoteProtocolError
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
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
    Unsuback,
    Unsubscribe,
)
from mqtt.reasons import ReasonCode

__all__ = [
    "Accepted",
    "ClientBounds",
    "ClientSession",
    "ClientState",
    "ConnectRefused",
    "Event",
    "MustClose",
    "OpenPublish",
    "PublishAnswered",
    "PublishReceived",
    "RequestAnswered",
    "ServerDisconnect",
    "StateChange",
    "Timer",
]

PINGS_PER_SILENCE = 3
UNBOUNDED_RECEIVE_MAXIMUM = 65_535  # 3.1.1 has no Receive Maximum: packet identifiers are the bound


class ClientSession:
    """One session; see the module for the order of calls.

    Open messages of both directions and the latest packet identifier survive a connection; ``closed`` discards the
    other state.

    Attributes:
        first_identifier, last_identifier: Packet identifiers to use, both included. Programs that compete for one
        client identifier use separate ranges, so that the broker cannot confuse their messages.
        is_kept: Record changes for ``take_changes``, which the caller must then call to bound their number.
        timer: The running one; each start of a timer makes a new object.
    """

    def __init__(self, first_identifier: int = 1, last_identifier: int = 0xFFFF, *, is_kept: bool = False) -> None:
        self.first_identifier, self.last_identifier = first_identifier, last_identifier
        self.is_kept = is_kept
        self.latest_identifier = 0
        self.state = ClientState.AWAY
        self.timer: Timer | None = None
        self._out = ClientOutbound()
        self._in = ClientInbound()
        self._bounds = ClientBounds()
        self._version = 5
        self._decoder = StreamDecoder(5)
        self._packet_bytes_max = 0  # Maximum Packet Size of the broker; 0: no bound
        self._ping_s = 0.0
        self._requests: dict[int, int] = {}  # tokens of SUBSCRIBE and UNSUBSCRIBE by packet identifier
        self._now = self._received_at = -math.inf
        self._packets: deque[Packet] = deque()  # decoded by one ``handle`` and not processed yet
        self._events: deque[Event] = deque()  # additional events of one packet
        self._must_close: MustClose | None = None
        self._output: list[bytes] = []
        self._changes: list[StateChange] = []

    @property
    def outbound(self) -> dict[int, OpenPublish]:
        """The open publishes by packet identifier, in order of sending."""
        return self._out.open

    @property
    def inbound(self) -> set[int]:
        """The QoS 2 identifiers delivered and not released."""
        return self._in.taken

    @property
    def in_flight(self) -> int:
        """Number of unanswered messages of both directions."""
        return len(self._out.open) + self._in.unanswered

    # The connection

    def begin(self, now: float, bounds: ClientBounds) -> None:
        """Start an attempt: the connect timer runs while the caller opens a stream."""
        if self.state is not ClientState.AWAY:
            raise LocalProtocolError(f"an attempt while there is a connection: {self.state.value}")
        self.state, self._bounds = ClientState.OPENING, bounds
        self._start("connect", now + bounds.connect_timeout_s)

    def opened(self, now: float, connect: Connect) -> None:
        """Send CONNECT on the opened stream. Its properties state the limits of this side."""
        if self.state is not ClientState.OPENING:
            raise LocalProtocolError(f"CONNECT out of place: {self.state.value}")
        self.state, self._received_at = ClientState.CONNECTING, now
        self._version, properties = connect.protocol_version, connect.properties
        bytes_max = property_values.maximum_packet_size(properties)
        limits = Limits(maximum_packet_size=bytes_max) if bytes_max else Limits()
        self._decoder = StreamDecoder(connect.protocol_version, limits)
        receive_maximum = property_values.receive_maximum(properties) if self._version == 5 else 0
        bound = receive_maximum + self._bounds.excess if receive_maximum else UNBOUNDED_RECEIVE_MAXIMUM
        self._in.begin(bound, property_values.topic_alias_maximum(properties))
        self._put(connect)

    def handle(self, now: float, data: bytes = b"") -> None:
        """Process bytes of the stream, and the time; ``next_event`` returns the results."""
        self._now = now
        if data and self.state is not ClientState.AWAY:
            self._received_at = now
            try:
                self._packets.extend(self._decoder.feed(data))
            except MqttError:
                pass  # ``next_event`` reads it from the decoder

    def next_event(self) -> Event | None:
        """Return the next event of the handled bytes, or None; answers without a decision are in the output."""
        while self._events or self._packets:
            event = self._events.popleft() if self._events else self._process(self._packets.popleft())
            if event is not None:
                return event
        if self._must_close is None and self._decoder.error is not None and self.state is not ClientState.AWAY:
            self._break_protocol(self._decoder.error)  # after the packets before it
            self._decoder.error = None
        if self._must_close is None and self.timer is not None and self.timer.due <= self._now:
            self._expired(self.timer)
        must_close, self._must_close = self._must_close, None
        return must_close

    def next_deadline(self) -> float:
        """Return the latest time for the next ``handle``; infinity without a timer."""
        return self.timer.due if self.timer is not None else math.inf

    def take_output(self) -> list[bytes]:
        """Return the encoded packets to send since the last call, in order."""
        output, self._output = self._output, []
        return output

    def take_changes(self) -> list[StateChange]:
        """Return the changes that must be durable before the current output is sent."""
        changes, self._changes = self._changes, []
        return changes

    def closed(self) -> tuple[int, ...]:
        """Reset after the stream closed, or failed to open; return the tokens of requests that stay unanswered.

        Open publishes stay for the next connection of the session; see ``forget``.
        """
        unanswered = tuple(self._requests.values())
        self._requests.clear()
        self._packets.clear()
        self._events.clear()
        self._output.clear()
        self._in.end()
        self._out.end()
        self.timer = self._must_close = None
        self.state = ClientState.AWAY
        return unanswered

    def restore(
        self, open_publishes: dict[int, OpenPublish], taken: Iterable[int], held: Iterable[Publish] = ()
    ) -> None:
        """Restore the changes of ``take_changes`` of a former process, before the first connection.

        The caller still has the messages of ``held``: they are not delivered again, and ``acknowledge`` answers them.
        """
        self._out.open.update(open_publishes)
        self.latest_identifier = max(open_publishes, default=0)
        self._in.restore(taken, held)

    # Requests, on an accepted connection

    @property
    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message may be sent now."""
        return self.state is ClientState.CONNECTED and self._out.has_room

    def next_identifier(self) -> int:
        """Return an unused packet identifier.

        Raises:
            LocalProtocolError: All are in use by requests that the broker has not answered.
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

    def publish(self, packet: Publish, token: int) -> bool:
        """Send a message; with QoS 1 and 2 it must have an identifier of ``next_identifier``, and ``has_room`` must
        hold.

        Returns:
            False for a message above the Maximum Packet Size of the broker [MQTT-3.2.2-15]: it is not sent.
        """
        if self.state is not ClientState.CONNECTED:
            raise LocalProtocolError(f"a request without a connection: {self.state.value}")
        if packet.qos and (packet.packet_identifier is None or not self.has_room):
            raise LocalProtocolError("a PUBLISH without an identifier, or above the window")
        data = encode_packet(packet, self._version)
        if self._packet_bytes_max and len(data) > self._packet_bytes_max:
            return False
        if packet.qos:
            assert packet.packet_identifier is not None
            self._out.open[packet.packet_identifier] = OpenPublish(token, packet)
            self._note(StateChange("sent", packet.packet_identifier, token))
        self._output.append(data)
        return True

    def request(self, packet: Subscribe | Unsubscribe, token: int) -> None:
        """Send a SUBSCRIBE or UNSUBSCRIBE with an identifier of ``next_identifier``."""
        self._request(packet)
        self._requests[packet.packet_identifier] = token

    def acknowledge(self, packet: Publish) -> bool:
        """Answer a received PUBLISH; return whether the message counts as delivered for the first time.

        After the end of its connection this is remembered: the broker repeats the message, and then gets the answer.
        """
        first, answers = self._in.acknowledge(packet)
        self._answer(answers)
        return first

    def pass_over(self, packet: Publish) -> None:
        """Leave a received PUBLISH and all later ones to the broker, which repeats them on the next connection."""
        self._in.pass_over(packet)

    def is_repeat(self, packet: Publish) -> bool:
        """Return whether a received QoS 2 message was delivered before: it needs only an acknowledgement."""
        return self._in.is_taken(packet)

    def disconnect(self, now: float, reason_code: int = 0) -> None:
        """Send DISCONNECT as the last packet [MQTT-3.14.4-2]; the broker's close confirms it."""
        self._request(Disconnect(reason_code))
        self.state = ClientState.LEAVING
        self._start("goodbye", now + self._bounds.goodbye_timeout_s)

    def forget(self) -> tuple[int, ...]:
        """Discard the session; return the tokens of publishes that will never be answered."""
        self._note(StateChange("forgotten"))
        self._in.forget()
        return self._out.forget()

    # Packets

    def _process(self, packet: Packet) -> Event | None:
        if isinstance(packet, Connack):
            return self._connack(packet)
        if self.state is ClientState.CONNECTING:  # section 3.2: the first packet of the broker is CONNACK
            self._break("protocol", "a packet before CONNACK")
            return None
        try:
            return self._process_accepted(packet)
        except RemoteProtocolError as error:
            self._break_protocol(error)
            return None

    def _process_accepted(self, packet: Packet) -> Event | None:
        match packet:
            case Publish():
                message, answers = self._in.receive(packet)
                self._answer(answers)
                return None if message is None else PublishReceived(message)
            case Pubrel():
                known = self._in.release(packet.packet_identifier)
                if known:
                    self._note(StateChange("finished", packet.packet_identifier))
                self._put(Pubcomp(packet.packet_identifier, 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            case Puback() | Pubrec() | Pubcomp():
                return self._acknowledged(packet)
            case Suback() | Unsuback():
                token = self._requests.pop(packet.packet_identifier, None)
                return None if token is None else RequestAnswered(token, packet)
            case Disconnect():
                return ServerDisconnect(packet)
            case Pingresp():
                pass  # ``handle`` has restarted the silence time
            case _:
                raise RemoteProtocolError(f"{type(packet).__name__.upper()} from a broker")
        return None

    def _connack(self, packet: Connack) -> Event | None:
        if self.state is not ClientState.CONNECTING:
            self._break("protocol", "a second CONNACK")
            return None
        if packet.reason_code:
            self.state = ClientState.REFUSED
            self._break("refused")
            return ConnectRefused(packet)
        forgotten = () if packet.session_present else self.forget()
        properties = packet.properties
        window = self._bounds.window
        self._packet_bytes_max = property_values.maximum_packet_size(properties)
        self.state = ClientState.CONNECTED
        heedless = self._bounds.heedless
        self._out.begin(window if heedless else min(window, property_values.receive_maximum(properties)))
        resent = tuple(publish.token for publish in self.outbound.values() if not publish.released)
        self._resend()  # before any other packet [MQTT-4.4.0-1]
        keep_alive_s = property_values.server_keep_alive(properties)
        self._ping_s = self._bounds.silence_s / PINGS_PER_SILENCE
        if keep_alive_s:
            self._ping_s = min(self._ping_s, keep_alive_s / 2)
        self._start("ping", self._now + self._ping_s)
        return Accepted(packet, forgotten, resent)

    def _resend(self) -> None:
        while packets := self._out.resend():
            for packet in packets:
                data = encode_packet(packet, self._version)
                if isinstance(packet, Publish) and 0 < self._packet_bytes_max < len(data):
                    identifier = packet.packet_identifier
                    assert identifier is not None
                    token = self.outbound[identifier].token
                    self._out.discard(identifier)  # this broker would close the connection [MQTT-3.2.2-15]
                    self._note(StateChange("ended", identifier, token))
                    self._events.append(PublishAnswered(token, ReasonCode.PACKET_TOO_LARGE))
                elif self.state is not ClientState.LEAVING:
                    self._output.append(data)

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> PublishAnswered | None:
        publish = self.outbound.get(packet.packet_identifier)
        answered, release = self._out.answer(packet)
        if publish is not None:
            identifier, token = packet.packet_identifier, publish.token
            if identifier not in self.outbound:
                self._note(StateChange("ended", identifier, token))
                self._resend()
            elif answered is not None:
                self._note(StateChange("released", identifier, token))
        if release is not None:
            self._put(release)
        return answered

    def _answer(self, answers: list[Puback | Pubrec]) -> None:
        for answer in answers:
            if isinstance(answer, Pubrec):
                self._note(StateChange("taken", answer.packet_identifier))
            self._put(answer)

    def _expired(self, timer: Timer) -> None:
        if timer.kind == "goodbye":
            self._break("local")
        elif timer.kind == "connect" or self._now - self._received_at > self._bounds.silence_s:
            self._break("silent")
        else:
            self._put(Pingreq())
            self._start("ping", self._now + self._ping_s)

    def _start(self, kind: Literal["connect", "ping", "goodbye"], due: float) -> None:
        self.timer = Timer(kind, due)

    def _break_protocol(self, error: MqttError) -> None:
        """End the connection because of a fault of the broker; MQTT 5 sends it the reason (section 4.13)."""
        if self.state is ClientState.CONNECTED and self._version == 5:
            self._put(Disconnect(error.reason_code))
        self._break("protocol", str(error))

    def _break(self, reason: Literal["refused", "silent", "protocol", "local"], detail: str = "") -> None:
        self._packets.clear()
        self.timer = None
        self._must_close = MustClose(reason, detail)

    def _request(self, packet: Packet) -> None:
        if self.state is not ClientState.CONNECTED:
            raise LocalProtocolError(f"a request without a connection: {self.state.value}")
        self._put(packet)

    def _note(self, change: StateChange) -> None:
        if self.is_kept:
            self._changes.append(change)

    def _put(self, packet: Packet) -> None:
        if self.state is not ClientState.LEAVING:
            self._output.append(encode_packet(packet, self._version))
