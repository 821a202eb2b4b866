"""A small MQTT client that writes down what it does (MQTT 3.1.1 and 5.0, QoS 0 to 2, durable sessions).

Owns one socket at a time and the waiting; what is sent again and handed over is ``client_session.py``. Every request is
written to the history before its first byte leaves, every answer and message before anything is done about it, and both
without an await in between, so the order of lines is the order of things. One program of a workload is one client.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from mqtt.codec import StreamDecoder, encode_packet
from mqtt.errors import MqttError
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
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt.properties import Properties, PropertyId
from stratamq.history.client_session import FAILURE, ClientSession, OpenPublish
from stratamq.history.operations import NEVER_EXPIRES_S, Kind, Phase
from stratamq.history.payloads import make_payload, read_payload
from stratamq.history.writer import HistoryWriter

READ_BYTES = 65_536
CONNECT_TIMEOUT_S = 3.0  # for TCP and CONNACK together; then the next address is tried
GOODBYE_TIMEOUT_S = 1.0  # for the broker to close after DISCONNECT; then the outcome is unknown

__all__ = ["Address", "ClientOptions", "PendingOperation", "RecordingClient"]

Address = tuple[str, int]


class Clock(Protocol):
    def now_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects; a workload changes single fields per CONNECT with ``dataclasses.replace``.

    Attributes:
        silence_s: Close when nothing was heard for so long, though PINGREQs were sent three times as often.
        resend: Keep open publishes for the next connection; without it they become unknown at once.
        window: QoS 1 and 2 publishes in flight; the broker's Receive Maximum may lower it.
    """

    protocol_version: int = 5
    clean_start: bool = False
    session_expiry_interval_s: int = NEVER_EXPIRES_S
    keep_alive_s: int = 10
    silence_s: float = 3.0
    resend: bool = True
    window: int = 16
    will_topic: str = ""
    will_payload: str = ""
    will_qos: int = 0
    will_delay_interval_s: int = 0

    @property
    def expiry_in_force_s(self) -> int:
        """Session expiry; 3.1.1 knows only "with the connection" (Clean Session) and "never"."""
        if self.protocol_version == 5:
            return self.session_expiry_interval_s
        return 0 if self.clean_start else NEVER_EXPIRES_S


@dataclass(slots=True)
class PendingOperation:
    """A request whose outcome is awaited."""

    operation: int
    kind: Kind
    fields: dict[str, Any]
    phase: Phase | None = None
    done: trio.Event = field(default_factory=trio.Event)

    async def outcome(self) -> Phase:
        """Wait for the answer: bounded by the end of the connection, or of the run for publishes that are resent."""
        await self.done.wait()
        assert self.phase is not None
        return self.phase


class RecordingClient:
    """One program with one client identifier.

    Args:
        nursery: Runs the task of each connection.
        addresses: Where to connect; the first one first.
        on_receive: Called with every message handed over: (client, topic, payload identifier, retain).
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        writer: HistoryWriter,
        clock: Clock,
        process: str,
        client_id: str,
        addresses: tuple[Address, ...],
        rng: random.Random,
        options: ClientOptions,
        on_receive: Callable[[RecordingClient, str, str, bool], None],
    ) -> None:
        self.process, self.client_id, self.options = process, client_id, options
        self.session = ClientSession()
        self.session_present = False
        self.connection = 0
        self.connected = False
        self.refused_code = 0
        self._nursery, self._writer, self._clock, self._rng = nursery, writer, clock, rng
        self._addresses, self._address = addresses, 0
        self._on_receive = on_receive
        self._changed = trio.Event()  # replaced whenever a connection begins or ends, or a publish is answered
        self._publishes: dict[int, PendingOperation] = {}  # by operation
        self._requests: dict[int, PendingOperation] = {}  # SUBSCRIBE and UNSUBSCRIBE by packet identifier
        self._link: _Link | None = None
        self._send_quota = options.window

    # Requests. None of them awaits between its invoke line and its bytes.

    async def connect(self, options: ClientOptions | None = None) -> bool:
        """Make one attempt; return whether the broker accepted.

        An older connection of this client is dropped first: one program has one connection. After a failure the next
        address is tried; after a success any, because a session must be found wherever its client comes back.
        """
        self.drop()
        if options is not None:
            self.options = options
        accepted: bool = await self._nursery.start(self._serve, self._addresses[self._address])
        if accepted:
            self._address = self._rng.randrange(len(self._addresses))
        else:
            self._address = (self._address + 1) % len(self._addresses)
        return accepted

    async def publish(self, topic: str, payload: str, qos: int, retain: bool = False) -> PendingOperation:
        """Send when connected and the window has room; return without waiting for the answer."""
        while not self.connected or (qos and len(self.session.outbound) >= self._send_quota):
            await self._changed.wait()
        packet = Publish(topic, make_payload(payload), qos, retain)
        if qos:
            packet.packet_identifier = self.session.next_identifier(set(self._requests))
        pending = self._invoke(
            Kind.PUBLISH,
            topic=topic,
            payload=payload,
            qos=qos,
            retain=retain,
            packet_identifier=packet.packet_identifier or 0,
        )
        self._send(packet)
        if qos == 0:
            self._complete(pending, Phase.OK)
            return pending
        assert packet.packet_identifier is not None
        self.session.outbound[packet.packet_identifier] = OpenPublish(pending.operation, packet)
        self._publishes[pending.operation] = pending
        return pending

    def subscribe(self, topic_filter: str, qos: int) -> PendingOperation | None:
        """Send a SUBSCRIBE; None when not connected."""
        if not self.connected:
            return None
        identifier = self.session.next_identifier(set(self._requests))
        pending = self._invoke(Kind.SUBSCRIBE, topic_filter=topic_filter, qos=qos, packet_identifier=identifier)
        self._requests[identifier] = pending
        self._send(Subscribe(identifier, [SubscriptionRequest(topic_filter, qos)]))
        return pending

    def unsubscribe(self, topic_filter: str) -> PendingOperation | None:
        """Send an UNSUBSCRIBE; None when not connected."""
        if not self.connected:
            return None
        identifier = self.session.next_identifier(set(self._requests))
        pending = self._invoke(Kind.UNSUBSCRIBE, topic_filter=topic_filter, packet_identifier=identifier)
        self._requests[identifier] = pending
        self._send(Unsubscribe(identifier, [topic_filter]))
        return pending

    async def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT and wait for the broker to close, which says that it was read."""
        link = self._link
        if link is None or not self.connected:
            return
        pending = self._invoke(Kind.DISCONNECT, reason_code=reason_code)
        self._send(Disconnect(reason_code))
        link.goodbye = pending  # nothing may follow a DISCONNECT [MQTT-3.14.4-2]
        self._not_connected()
        with trio.move_on_after(GOODBYE_TIMEOUT_S):
            await link.ended.wait()
        link.scope.cancel()
        await link.ended.wait()  # the task ends at once when cancelled
        self._complete(pending, Phase.OK if link.closed_in_order else Phase.UNKNOWN)

    def drop(self) -> None:
        """Cut the connection without DISCONNECT."""
        if self._link is not None:
            self._end(self._link, "local")

    async def wait_connected(self) -> None:
        while not self.connected:
            await self._changed.wait()

    async def wait_ended(self) -> None:
        while self.connected:
            await self._changed.wait()

    def give_up(self) -> None:
        """Write open publishes down as unknown: the run is over."""
        self.drop()
        self._unknown(self.session.forget())

    # The connection

    async def _serve(self, address: Address, task_status: trio.TaskStatus[bool]) -> None:
        """Run one connection from CONNECT to its end; report whether it was accepted."""
        self.connection = self._writer.next_connection()
        target = f"{address[0]}:{address[1]}"
        attempt = self._invoke(Kind.CONNECT, target=target, **self._connect_fields())
        link = _Link(StreamDecoder(self.options.protocol_version), self.connection, attempt)
        self._link = link
        try:
            with link.scope:
                await self._run_link(link, address, task_status)
        finally:
            link.ended.set()
            self._end(link, "peer")
            if not link.reported:
                task_status.started(False)

    async def _run_link(self, link: _Link, address: Address, task_status: trio.TaskStatus[bool]) -> None:
        stream: trio.SocketStream | None = None
        link.scope.deadline = trio.current_time() + CONNECT_TIMEOUT_S
        try:
            stream = await trio.open_tcp_stream(*address)
        except OSError:
            return
        async with stream:
            link.sent_connect = True
            self._send(self._connect_packet())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_loop, link, stream)
                await self._read_loop(link, stream, nursery, task_status)
                nursery.cancel_scope.cancel()

    async def _read_loop(
        self, link: _Link, stream: trio.SocketStream, nursery: trio.Nursery, task_status: trio.TaskStatus[bool]
    ) -> None:
        while True:
            try:
                data = await stream.receive_some(READ_BYTES)
                packets = link.decoder.feed(data)
            except (trio.BrokenResourceError, MqttError):
                return
            if not data:
                link.closed_in_order = True
                return
            for packet in packets:
                if link.over:
                    return
                self._packet(link, packet)
                if isinstance(packet, Connack) and not link.reported:
                    link.reported = True
                    task_status.started(self.connected)
                    if not self.connected:
                        return
                    nursery.start_soon(self._ping_loop, link)
            if link.accepted:
                link.scope.deadline = trio.current_time() + self.options.silence_s

    async def _write_loop(self, link: _Link, stream: trio.SocketStream) -> None:
        while True:
            data, link.outgoing = bytes(link.outgoing), bytearray()
            try:
                if data:
                    await stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the reader sees the end, after what was still readable
            if not link.outgoing:
                link.wake = trio.Event()
                await link.wake.wait()

    async def _ping_loop(self, link: _Link) -> None:
        while not link.over:
            await trio.sleep(self.options.silence_s / 3)
            if link.goodbye is None:
                self._send(Pingreq())

    def _packet(self, link: _Link, packet: Packet) -> None:
        match packet:
            case Connack():
                self._connack(link, packet)
            case Publish():
                self._publish_received(packet)
            case Pubrel():
                self._send(self.session.release(packet))
            case Puback() | Pubrec() | Pubcomp():
                self._acknowledged(packet)
            case Suback() | Unsuback():
                self._request_answered(packet)
            case Disconnect():
                link.told_code = packet.reason_code
            case Pingresp() | _:
                pass

    def _connack(self, link: _Link, packet: Connack) -> None:
        attempt = link.attempt
        if packet.reason_code:
            self.refused_code = packet.reason_code
            self._complete(attempt, Phase.FAIL, reason_code=packet.reason_code)
            return
        self.session_present = packet.session_present
        self._complete(attempt, Phase.OK, session_present=packet.session_present)
        if not packet.session_present:
            self._unknown(self.session.forget())
        maximum = packet.properties.get(PropertyId.RECEIVE_MAXIMUM, 0xFFFF)
        assert isinstance(maximum, int)
        self._send_quota = min(self.options.window, maximum)
        for operation, again in self.session.resumed():
            if operation:
                self._event(Kind.RESEND, operation=operation)
            self._send(again)
        link.accepted = self.connected = True
        self._notify()

    def _publish_received(self, packet: Publish) -> None:
        hand_over, answer = self.session.received(packet)
        payload, whole = read_payload(packet.payload)
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
        if answer is not None:
            self._send(answer)
        if hand_over:
            self._on_receive(self, packet.topic_name, payload, packet.retain)

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> None:
        publish, answer = self.session.acknowledged(packet)
        if publish is not None:
            failed = packet.reason_code >= FAILURE
            pending = self._publishes.pop(publish.operation)
            self._complete(pending, Phase.FAIL if failed else Phase.OK, reason_code=packet.reason_code)
        if answer is not None:
            self._send(answer)
        self._notify()

    def _request_answered(self, packet: Suback | Unsuback) -> None:
        pending = self._requests.pop(packet.packet_identifier, None)
        if pending is None:
            return
        code = packet.reason_codes[0] if packet.reason_codes else 0
        if code >= FAILURE:
            self._complete(pending, Phase.FAIL, reason_code=code)
        elif pending.kind is Kind.SUBSCRIBE:
            self._complete(pending, Phase.OK, qos=code)
        else:
            self._complete(pending, Phase.OK, reason_code=code)

    def _end(self, link: _Link, reason: str) -> None:
        """Write the end of a connection down, once, and what it leaves unanswered."""
        if link.over:
            return
        link.over = True
        link.scope.cancel()
        if link is self._link:
            self._link = None
            self.connected = False
        if link.attempt.phase is None:  # without a byte on the wire it has surely not happened
            self._complete(link.attempt, Phase.UNKNOWN if link.sent_connect else Phase.FAIL, reason=reason)
        elif link.accepted and link.goodbye is None:
            if link.scope.cancelled_caught and reason == "peer":
                reason = "silent"
            self._event(Kind.CLOSE, connection=link.connection, reason=reason, reason_code=link.told_code)
        requests, self._requests = self._requests, {}
        for pending in requests.values():
            self._complete(pending, Phase.UNKNOWN)
        if not self.options.resend:
            self._unknown(self.session.forget())
        self._notify()

    def _not_connected(self) -> None:
        self.connected = False
        self._notify()

    # Packets and lines

    def _connect_fields(self) -> dict[str, Any]:
        options = self.options
        return {
            "protocol_version": options.protocol_version,
            "clean_start": options.clean_start,
            "session_expiry_interval_s": options.expiry_in_force_s,
            "will_topic": options.will_topic,
            "will_payload": options.will_payload,
            "will_qos": options.will_qos,
            "will_delay_interval_s": options.will_delay_interval_s,
        }

    def _connect_packet(self) -> Connect:
        options = self.options
        properties: Properties = {}
        will_properties: Properties = {}
        if options.protocol_version == 5:
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = options.session_expiry_interval_s
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

    def _send(self, packet: Packet) -> None:
        if self._link is not None and self._link.goodbye is None:
            self._link.outgoing += encode_packet(packet, self.options.protocol_version)
            self._link.wake.set()

    def _who(self) -> dict[str, Any]:
        return {"process": self.process, "client_id": self.client_id, "connection": self.connection}

    def _invoke(self, kind: Kind, **fields: Any) -> PendingOperation:
        who = self._who()
        return PendingOperation(self._writer.invoke(self._clock.now_ns(), kind, **who, **fields), kind, who)

    def _complete(self, pending: PendingOperation, phase: Phase, **fields: Any) -> None:
        """Write the outcome; a resent publish is answered on a later connection than it was invoked on."""
        who = pending.fields
        if pending.kind is Kind.PUBLISH and phase is not Phase.UNKNOWN:
            who = {**who, "connection": self.connection}
        self._writer.complete(self._clock.now_ns(), phase, pending.kind, pending.operation, **who, **fields)
        pending.phase = phase
        pending.done.set()

    def _unknown(self, operations: list[int]) -> None:
        for operation in operations:
            self._complete(self._publishes.pop(operation), Phase.UNKNOWN)

    def _event(self, kind: Kind, **fields: Any) -> None:
        self._writer.event(self._clock.now_ns(), kind, **{**self._who(), **fields})

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@dataclass(slots=True)
class _Link:
    """One connection while it lasts."""

    decoder: StreamDecoder
    connection: int
    attempt: PendingOperation
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    outgoing: bytearray = field(default_factory=bytearray)  # bounded by the window and one answer per packet read
    wake: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    goodbye: PendingOperation | None = None
    sent_connect: bool = False
    reported: bool = False
    accepted: bool = False
    closed_in_order: bool = False
    over: bool = False
    told_code: int | None = None
