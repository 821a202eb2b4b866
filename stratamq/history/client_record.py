"""Packets of a recording client, and the lines of its history (MQTT 3.1.1 and 5.0, QoS 0 to 2).

Every request is written to the history before its first byte is sent, every answer and message before it is processed,
so lines are in the order of events. ``mqtt/client_session.py`` decides on resends and deliveries. A ``ClientTransport``
transports the bytes of one connection: a trio socket, or a stream of the simulation. A program of a workload is one
client with one connection at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mqtt.client_session import (
    Accepted,
    ClientBounds,
    ClientSession,
    ClientState,
    ConnectRefused,
    Event,
    MustClose,
    PublishAnswered,
    PublishReceived,
    RequestAnswered,
    ServerDisconnect,
    Timer,
)
from mqtt.packets import Connect, Publish, Subscribe, SubscriptionRequest, Unsubscribe, Will
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import FAILURE
from stratamq.history.client_options import ClientOptions
from stratamq.history.operations import Kind, OperationPhase
from stratamq.history.payloads import make_payload, read_payload
from stratamq.history.writer import HistoryWriter

__all__ = ["ClientOptions", "ClientRecord", "ClientTransport", "PendingOperation"]


class ClientTransport(Protocol):
    """The byte transport of one connection from the attempt to the end; it calls the record's transport methods."""

    def send(self, data: bytes) -> None:
        """Send bytes; ignored before the stream is open."""

    def start(self, timer: Timer) -> None:
        """Call ``time_passed`` when the timer is due; replaces the previous timer."""

    def close(self, *, abort: bool) -> None:
        """Close the stream; with ``abort``, without delivering sent bytes."""


@dataclass(slots=True)
class PendingOperation:
    """A request; ``phase`` is None until its outcome is known."""

    operation: int
    kind: Kind
    fields: dict[str, Any]
    topic_filter: str = ""
    phase: OperationPhase | None = None


class ClientRecord:
    """One program with one client identifier.

    Args:
        now: Returns the time of the session's timers, in seconds.
        now_ns: Returns the time of the history's next line.
    """

    def __init__(
        self,
        writer: HistoryWriter,
        now: Callable[[], float],
        now_ns: Callable[[], int],
        process: str,
        client_id: str,
        options: ClientOptions,
    ) -> None:
        self.process, self.client_id, self.options = process, client_id, options
        self.writer, self.now, self.now_ns = writer, now, now_ns
        self.session = ClientSession()
        self.session_present = False
        self.connection = 0
        self.refused_code = 0
        self.subscribed: set[str] = set()  # filters granted in this session
        self._way: ClientTransport | None = None  # of the current connection or attempt
        self._attempt: PendingOperation | None = None  # its CONNECT
        self._goodbye: PendingOperation | None = None  # DISCONNECT was sent
        self._server_code: int | None = None  # from the broker's DISCONNECT
        self._publishes: dict[int, PendingOperation] = {}  # by operation number, the session's token
        self._requests: dict[int, PendingOperation] = {}  # SUBSCRIBE and UNSUBSCRIBE, by operation
        self._timer: Timer | None = None  # the timer of the transport

    # Notifications, overridden by programs.

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        """A message was recorded and is delivered to the program."""

    def _accepted(self) -> None:
        """CONNACK accepted the connection."""

    def _answered(self, kind: Kind, phase: OperationPhase) -> None:
        """A publish with QoS, a SUBSCRIBE or an UNSUBSCRIBE was answered."""

    def _changed(self) -> None:
        """An outcome is known, window capacity is available, or the connection has ended."""

    def _closed(self) -> None:
        """The connection, or the attempt, has ended."""

    # Calls from a transport; calls from an old transport are ignored.

    def is_on(self, way: ClientTransport) -> bool:
        """Return whether this is the transport of the current connection or attempt."""
        return way is self._way

    def opened(self, way: ClientTransport) -> None:
        """Send CONNECT, because the stream is open."""
        if way is self._way:
            self.session.opened(self.now(), self._connect_packet())
            self._flush()

    def arrived(self, way: ClientTransport, data: bytes) -> None:
        """Process bytes from the broker."""
        if way is self._way:
            self.session.handle(self.now(), data)
            self._take_events()

    def time_passed(self, way: ClientTransport) -> None:
        """Process the due timer."""
        if way is self._way:
            self.session.handle(self.now())
            self._take_events()

    def lost(self, way: ClientTransport, reason: str = "peer", *, in_order: bool = False) -> None:
        """Record the end of the stream, or that it was not opened ("refused").

        Args:
            way: The transport of the stream.
            reason: "peer" or "refused".
            in_order: The broker closed the stream, and all its bytes were read.
        """
        if way is self._way:
            self._close(reason, in_order=in_order)

    # Requests. Each sends its bytes immediately after its invoke line.

    @property
    def connected(self) -> bool:
        """Return whether requests may be sent."""
        return self.session.state is ClientState.CONNECTED

    @property
    def has_room(self) -> bool:
        """Return whether a QoS 1 or 2 message may be sent now."""
        return self.session.has_room

    def begin_read(self, topic: str) -> PendingOperation:
        """Record the start of a read of a topic's retained value."""
        return self._invoke(Kind.READ, topic=topic)

    def end_read(self, reading: PendingOperation, phase: OperationPhase, payload: str) -> None:
        """Record the value of a read, on the connection of its start."""
        self._complete(reading, phase, payload=payload)

    def _begin(self, target: str, way: ClientTransport) -> PendingOperation:
        """Record a connection attempt; there is no other connection."""
        self._way = way
        self.connection = self.writer.next_connection()
        self._server_code = None
        options = self.options
        self._attempt = self._invoke(
            Kind.CONNECT,
            target=target,
            protocol_version=options.protocol_version,
            clean_start=options.clean_start,
            session_expiry_interval_s=options.expiry_in_force_s,
            will_topic=options.will_topic,
            will_payload=options.will_payload,
            will_qos=options.will_qos,
            will_delay_interval_s=options.will_delay_interval_s,
        )
        bounds = ClientBounds(silence_s=options.silence_s, window=options.window, heedless=options.heedless)
        self.session.begin(self.now(), bounds)
        return self._attempt

    def _publish(self, topic: str, payload: str, qos: int, retain: bool) -> PendingOperation:
        """Send a message; the caller has checked ``has_room``."""
        packet = Publish(topic, make_payload(payload), qos, retain)
        if qos:
            packet.packet_identifier = self.session.next_identifier()
        pending = self._invoke(
            Kind.PUBLISH,
            topic=topic,
            payload=payload,
            qos=qos,
            retain=retain,
            packet_identifier=packet.packet_identifier or 0,
        )
        self.session.publish(packet, pending.operation)
        self._flush()
        if qos == 0:
            self._complete(pending, OperationPhase.OK)
        else:
            self._publishes[pending.operation] = pending
        return pending

    def subscribe(self, topic_filter: str, qos: int) -> PendingOperation | None:
        """Send a SUBSCRIBE; None when not connected."""
        if not self.connected:
            return None
        identifier = self.session.next_identifier()
        pending = self._invoke(Kind.SUBSCRIBE, topic_filter=topic_filter, qos=qos, packet_identifier=identifier)
        pending.topic_filter = topic_filter
        return self._request(Subscribe(identifier, [SubscriptionRequest(topic_filter, qos)]), pending)

    def unsubscribe(self, topic_filter: str) -> PendingOperation | None:
        """Send an UNSUBSCRIBE; None when not connected."""
        if not self.connected:
            return None
        identifier = self.session.next_identifier()
        self.subscribed.discard(topic_filter)
        pending = self._invoke(Kind.UNSUBSCRIBE, topic_filter=topic_filter, packet_identifier=identifier)
        return self._request(Unsubscribe(identifier, [topic_filter]), pending)

    def _request(self, packet: Subscribe | Unsubscribe, pending: PendingOperation) -> PendingOperation:
        self._requests[pending.operation] = pending
        self.session.request(packet, pending.operation)
        self._flush()
        return pending

    def _send_disconnect(self, reason_code: int) -> None:
        """Send DISCONNECT; the broker's close or a timer ends the connection."""
        self._goodbye = self._invoke(Kind.DISCONNECT, reason_code=reason_code)
        self.session.disconnect(self.now(), reason_code)
        self._flush()
        self._changed()

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        self._close("local")

    def give_up(self) -> None:
        """Record open publishes as unknown at the end of the run."""
        self.drop()
        self._forgotten(self.session.forget())

    def _forgotten(self, operations: tuple[int, ...]) -> None:
        for operation in operations:
            self._complete(self._publishes.pop(operation), OperationPhase.UNKNOWN)

    # Events of the session.

    def _take_events(self) -> None:
        while (event := self.session.next_event()) is not None:
            self._take(event)
            self._flush()
        self._flush()
        self._changed()

    def _flush(self) -> None:
        """Send the session's output, and start its timer."""
        for data in self.session.take_output():
            if self._way is not None:
                self._way.send(data)
        timer = self.session.timer
        if timer is not self._timer:
            self._timer = timer
            if timer is not None and self._way is not None:
                self._way.start(timer)

    def _take(self, event: Event) -> None:
        match event:
            case Accepted():
                self._connack(event)
            case ConnectRefused(connack):
                assert self._attempt is not None
                self.refused_code = connack.reason_code
                self._complete(self._attempt, OperationPhase.FAIL, reason_code=connack.reason_code)
            case PublishReceived(packet):
                self._received(packet)
            case PublishAnswered(operation, code):
                phase = OperationPhase.FAIL if code >= FAILURE else OperationPhase.OK
                self._complete(self._publishes.pop(operation), phase, reason_code=code)
                self._answered(Kind.PUBLISH, phase)
            case RequestAnswered(operation, packet):
                self._request_answered(self._requests.pop(operation), packet.reason_codes)
            case ServerDisconnect(packet):
                self._server_code = packet.reason_code
            case MustClose(reason):
                self._close(reason)

    def _connack(self, event: Accepted) -> None:
        assert self._attempt is not None
        self.session_present = event.connack.session_present
        self._complete(self._attempt, OperationPhase.OK, session_present=self.session_present)
        if not self.session_present:
            self.subscribed.clear()
            self._forgotten(event.forgotten)
        for operation in event.resent:
            self._event(Kind.RESEND, operation=operation)
        self._flush()
        self._accepted()

    def _received(self, packet: Publish) -> None:
        payload, whole = read_payload(packet.payload)
        hand_over = self.session.acknowledge(packet)  # sent by the next ``_flush``
        self._event(
            Kind.RECEIVE,
            topic=packet.topic_name,
            payload=payload,
            qos=packet.qos,
            dup=packet.dup,
            retain=packet.retain,
            packet_identifier=packet.packet_identifier or 0,
            handed_over=hand_over,
            damaged=not whole,
        )
        self._flush()
        if hand_over:
            self._handed_over(packet.topic_name, payload, packet.retain)

    def _request_answered(self, pending: PendingOperation, codes: list[int]) -> None:
        code = codes[0] if codes else 0
        phase = OperationPhase.FAIL if code >= FAILURE else OperationPhase.OK
        if phase is OperationPhase.OK and pending.kind is Kind.SUBSCRIBE:
            self.subscribed.add(pending.topic_filter)
            self._complete(pending, phase, qos=code)
        else:
            self._complete(pending, phase, reason_code=code)
        self._answered(pending.kind, phase)

    def _close(self, reason: str, *, in_order: bool = False) -> None:
        """Close the connection; record its end and its unanswered operations. Without a connection, return.

        Args:
            reason: "local", "peer", "silent", "refused" or "protocol".
            in_order: The broker closed the stream, and all its bytes were read.
        """
        way, attempt, goodbye = self._way, self._attempt, self._goodbye
        if way is None or attempt is None:
            return
        self._way = None
        way.close(abort=reason == "local")
        sent = self.session.state is not ClientState.OPENING
        unanswered = self.session.closed()
        self._attempt = self._goodbye = self._timer = None
        if attempt.phase is None:  # without a sent byte it certainly did not happen
            self._complete(attempt, OperationPhase.UNKNOWN if sent else OperationPhase.FAIL, reason=reason)
        elif goodbye is not None:
            self._complete(goodbye, OperationPhase.OK if in_order else OperationPhase.UNKNOWN)
        elif attempt.phase is OperationPhase.OK:
            self._event(Kind.CLOSE, reason=reason, reason_code=self._server_code)
        for operation in unanswered:
            self._complete(self._requests.pop(operation), OperationPhase.UNKNOWN)
        if not self.options.resend:
            self._forgotten(self.session.forget())
        self._changed()
        self._closed()

    # Packets and lines.

    def _connect_packet(self) -> Connect:
        options = self.options
        properties: Properties = {}
        will_properties: Properties = {}
        if options.protocol_version == 5:
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = options.session_expiry_interval_s
            if options.receive_maximum:
                properties[PropertyId.RECEIVE_MAXIMUM] = options.receive_maximum
            if options.will_delay_interval_s:
                will_properties[PropertyId.WILL_DELAY_INTERVAL] = options.will_delay_interval_s
        will = None
        if options.will_payload:
            payload = make_payload(options.will_payload)
            will = Will(options.will_topic, payload, options.will_qos, False, will_properties)
        return Connect(
            client_id=self.client_id,
            clean_start=options.clean_start,
            keep_alive_s=options.keep_alive_s,
            protocol_version=options.protocol_version,
            will=will,
            properties=properties,
        )

    def _who(self) -> dict[str, Any]:
        return {"process": self.process, "client_id": self.client_id, "connection": self.connection}

    def _invoke(self, kind: Kind, **fields: Any) -> PendingOperation:
        who = self._who()
        return PendingOperation(self.writer.invoke(self.now_ns(), kind, **who, **fields), kind, who)

    def _complete(self, pending: PendingOperation, phase: OperationPhase, **fields: Any) -> None:
        """Record the outcome; a resent publish is answered on a later connection than its invoke."""
        who = pending.fields
        if pending.kind is Kind.PUBLISH and phase is not OperationPhase.UNKNOWN:
            who = {**who, "connection": self.connection}
        self.writer.complete(self.now_ns(), phase, pending.kind, pending.operation, **who, **fields)
        pending.phase = phase
        self._changed()

    def _event(self, kind: Kind, **fields: Any) -> None:
        self.writer.event(self.now_ns(), kind, **self._who(), **fields)
