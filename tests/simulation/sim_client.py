"""An MQTT client of the simulation that writes a history: the client of ``stratamq/history`` without trio.

Decides nothing about sessions (``stratamq/history/client_session.py``): what is sent again and what is handed over is
decided there. One program has one connection at a time; what the program does is in ``workload.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mqtt.codec import StreamDecoder, encode_packet
from mqtt.errors import MqttError
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
from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World

__all__ = ["ClientOptions", "SimClient"]

CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class ClientOptions:
    """How a client connects."""

    protocol_version: int = 5
    clean_start: bool = False
    session_expiry_interval_s: int = NEVER_EXPIRES_S
    keep_alive_s: int = 10
    silence_s: float = 3.0
    resend: bool = True
    window: int = 16
    receive_maximum: int = 0
    will_topic: str = ""
    will_payload: str = ""
    will_qos: int = 1
    will_delay_interval_s: int = 0

    @property
    def expiry_in_force_s(self) -> int:
        """Session expiry; 3.1.1 knows only "with the connection" and "never"."""
        if self.protocol_version == 5:
            return self.session_expiry_interval_s
        return 0 if self.clean_start else NEVER_EXPIRES_S


@dataclass
class _Pending:
    operation: int
    kind: Kind
    fields: dict[str, Any]
    open: bool = True
    topic_filter: str = ""


class SimClient(Process):
    """One program with one client identifier."""

    def __init__(
        self, world: World, writer: HistoryWriter, process: str, client_id: str, options: ClientOptions
    ) -> None:
        super().__init__(world, process)
        self.up = True
        self.process, self.client_id, self.options = process, client_id, options
        self.writer = writer
        self.session = ClientSession()
        self.session_present = False
        self.connection = 0
        self.connected = False
        self.target = ""
        self.subscribed: set[str] = set()  # filters granted in this session
        self.on_connected: Callable[[], None] = lambda: None
        self.on_ended: Callable[[], None] = lambda: None
        self.on_receive: Callable[[str, str, bool], None] = lambda *_: None
        self.on_answer: Callable[[Kind, Phase], None] = lambda *_: None
        self.received: list[str] = []  # payloads handed over
        self.acknowledging = True  # False: reads and answers nothing, for scripts
        self._end: Endpoint | None = None
        self._decoder = StreamDecoder(5)
        self._attempt: _Pending | None = None
        self._goodbye: _Pending | None = None
        self._publishes: dict[int, _Pending] = {}  # by operation
        self._requests: dict[int, _Pending] = {}  # by packet identifier
        self._heard = 0.0
        self._quota = options.window
        self._epoch = 0  # of connections: calls of an earlier one are void

    # -- time

    def now_ns(self) -> int:
        return int(self.world.scheduler.now * 1_000_000_000)

    def turn(self) -> None:
        """Take what arrived."""
        end = self._end
        if end is None:
            return
        data = end.read()
        if data:
            self._heard = self.world.scheduler.now
            try:
                packets = self._decoder.feed(data)
            except MqttError:
                self._close("protocol")
                return
            for packet in packets:
                if self._end is end:
                    self._packet(packet)
        if self._end is end and (end.reset or (end.eof and not end.inbox)):
            self._close("peer", in_order=not end.reset)

    # -- requests

    def connect(self, address: str, options: ClientOptions | None = None) -> None:
        """Make one attempt; ``on_connected`` or ``on_ended`` follows."""
        self.drop()
        if options is not None:
            self.options = options
        self.target = address
        self.connection = self.writer.next_connection()
        self._epoch += 1
        self._attempt = self._invoke(Kind.CONNECT, target=address, **self._connect_fields())
        epoch = self._epoch
        self.world.network.connect(self.host, address, CONNECT_TIMEOUT_S, lambda end: self._opened(epoch, end))
        self.later(CONNECT_TIMEOUT_S, self._connect_timeout, epoch)

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> bool:
        """Send when connected and the window has room; False otherwise: nothing was done."""
        if not self.connected or (qos and len(self.session.outbound) >= self._quota):
            return False
        packet = Publish(topic, make_payload(payload), qos, retain)
        if qos:
            packet.packet_identifier = self.session.next_identifier(set(self._requests))
        pending = self._invoke(
            Kind.PUBLISH, topic=topic, payload=payload, qos=qos, retain=retain,
            packet_identifier=packet.packet_identifier or 0,
        )  # fmt: skip
        self._send(packet)
        if qos == 0:
            self._complete(pending, Phase.OK)
            return True
        assert packet.packet_identifier is not None
        self.session.outbound[packet.packet_identifier] = OpenPublish(pending.operation, packet)
        self._publishes[pending.operation] = pending
        return True

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Send a SUBSCRIBE."""
        if self.connected:
            identifier = self.session.next_identifier(set(self._requests))
            pending = self._invoke(Kind.SUBSCRIBE, topic_filter=topic_filter, qos=qos, packet_identifier=identifier)
            pending.topic_filter = topic_filter
            self._requests[identifier] = pending
            self._send(Subscribe(identifier, [SubscriptionRequest(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        """Send an UNSUBSCRIBE."""
        if self.connected:
            identifier = self.session.next_identifier(set(self._requests))
            self.subscribed.discard(topic_filter)
            self._requests[identifier] = self._invoke(
                Kind.UNSUBSCRIBE, topic_filter=topic_filter, packet_identifier=identifier
            )
            self._send(Unsubscribe(identifier, [topic_filter]))

    def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT; the broker's close says that it was read."""
        if self.connected and self._end is not None:
            self._goodbye = self._invoke(Kind.DISCONNECT, reason_code=reason_code)
            self._send(Disconnect(reason_code))
            self.connected = False
            self.later(1.0, self._goodbye_timeout, self._epoch)

    def drop(self) -> None:
        """Cut the connection without DISCONNECT."""
        self._close("local")

    def give_up(self) -> None:
        """Write open publishes down as unknown: the run is over."""
        self.drop()
        self._unknown(self.session.forget())

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._publishes or self._requests or (self._attempt is not None and self._attempt.open))

    @property
    def trying(self) -> bool:
        """Whether there is a connection, or an attempt at one."""
        return self._attempt is not None

    @property
    def asking(self) -> bool:
        """Whether a SUBACK or UNSUBACK is awaited."""
        return bool(self._requests)

    @property
    def publishing(self) -> bool:
        """Whether a PUBACK or PUBREC is awaited."""
        return bool(self._publishes)

    @property
    def has_room(self) -> bool:
        """Whether ``publish`` would take a QoS 1 message."""
        return self.connected and len(self.session.outbound) < self._quota

    def begin_read(self, topic: str) -> int:
        """Write down that the retained value of a topic is being read."""
        return self.writer.invoke(self.now_ns(), Kind.READ, topic=topic, **self._who())

    def end_read(self, operation: int, phase: Phase, payload: str) -> None:
        """Write down what was read."""
        self.writer.complete(self.now_ns(), phase, Kind.READ, operation, payload=payload, **self._who())

    # -- the connection

    def _opened(self, epoch: int, end: Endpoint | None) -> None:
        if epoch != self._epoch or self._attempt is None:
            if end is not None:
                end.close()
            return
        if end is None:
            self._close("refused")
            return
        self._end = end
        end.notify = self.turn
        self._decoder = StreamDecoder(self.options.protocol_version)
        self._heard = self.world.scheduler.now
        end.send(encode_packet(self._connect_packet(), self.options.protocol_version))

    def _connect_timeout(self, epoch: int) -> None:
        if epoch == self._epoch and self._attempt is not None and self._attempt.open:
            self._close("silent")

    def _goodbye_timeout(self, epoch: int) -> None:
        if epoch == self._epoch and self._goodbye is not None:
            self._close("local")

    def _ping(self, epoch: int) -> None:
        if epoch != self._epoch or not self.connected:
            return
        if self.world.scheduler.now - self._heard > self.options.silence_s:
            self._close("silent")
            return
        self._send(Pingreq())
        self.later(self.options.silence_s / 3, self._ping, epoch)

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._connack(packet)
        elif isinstance(packet, Publish):
            self._publish_received(packet)
        elif isinstance(packet, Pubrel):
            self._send(self.session.release(packet))
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self._acknowledged(packet)
        elif isinstance(packet, Suback | Unsuback):
            self._request_answered(packet)

    def _connack(self, packet: Connack) -> None:
        assert self._attempt is not None
        if packet.reason_code:
            self._complete(self._attempt, Phase.FAIL, reason_code=packet.reason_code)
            self._close("refused")
            return
        self.session_present = packet.session_present
        self._complete(self._attempt, Phase.OK, session_present=packet.session_present)
        if not packet.session_present:
            self.subscribed.clear()
            self._unknown(self.session.forget())
        maximum = packet.properties.get(PropertyId.RECEIVE_MAXIMUM, 0xFFFF)
        assert isinstance(maximum, int)
        self._quota = min(self.options.window, maximum)
        for operation, again in self.session.resumed():
            if operation:
                self._event(Kind.RESEND, operation=operation)
            self._send(again)
        self.connected = True
        self.later(self.options.silence_s / 3, self._ping, self._epoch)
        self.on_connected()

    def _publish_received(self, packet: Publish) -> None:
        if not self.acknowledging and packet.qos:
            return
        hand_over, answer = self.session.received(packet)
        payload, whole = read_payload(packet.payload)
        self._event(
            Kind.RECEIVE, topic=packet.topic_name, payload=payload, qos=packet.qos, dup=packet.dup,
            retain=packet.retain, packet_identifier=packet.packet_identifier or 0, handed_over=hand_over,
            damaged=not whole,
        )  # fmt: skip
        if answer is not None:
            self._send(answer)
        if hand_over:
            self.received.append(payload)
            self.on_receive(packet.topic_name, payload, packet.retain)

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> None:
        publish, answer = self.session.acknowledged(packet)
        if publish is not None:
            phase = Phase.FAIL if packet.reason_code >= FAILURE else Phase.OK
            self._complete(self._publishes.pop(publish.operation), phase, reason_code=packet.reason_code)
            self.on_answer(Kind.PUBLISH, phase)
        if answer is not None:
            self._send(answer)

    def _request_answered(self, packet: Suback | Unsuback) -> None:
        pending = self._requests.pop(packet.packet_identifier, None)
        if pending is None:
            return
        code = packet.reason_codes[0] if packet.reason_codes else 0
        phase = Phase.FAIL if code >= FAILURE else Phase.OK
        if phase is Phase.OK and pending.kind is Kind.SUBSCRIBE:
            self.subscribed.add(pending.topic_filter)
            self._complete(pending, phase, qos=code)
        else:
            self._complete(pending, phase, reason_code=code)
        self.on_answer(pending.kind, phase)

    def _close(self, reason: str, *, in_order: bool = False) -> None:
        """Write the end of a connection down, once, and what it leaves unanswered."""
        attempt, end, goodbye = self._attempt, self._end, self._goodbye
        if attempt is None:
            return
        accepted = self.connected or goodbye is not None
        self._attempt = self._end = self._goodbye = None
        self.connected = False
        if end is not None:
            if reason == "local" and not in_order:
                end.abort()
            else:
                end.close()
        if attempt.open:  # without a byte on the wire it has surely not happened
            self._complete(attempt, Phase.UNKNOWN if end is not None else Phase.FAIL, reason=reason)
        elif goodbye is not None:
            self._complete(goodbye, Phase.OK if in_order else Phase.UNKNOWN)
        elif accepted:
            self._event(Kind.CLOSE, reason=reason)
        requests, self._requests = self._requests, {}
        for pending in requests.values():
            self._complete(pending, Phase.UNKNOWN)
        if not self.options.resend:
            self._unknown(self.session.forget())
        self._epoch += 1
        self.on_ended()

    # -- packets and lines

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

    def _send(self, packet: Packet) -> None:
        if (self._end is not None and self._goodbye is None) or (
            self._end is not None and isinstance(packet, Disconnect)
        ):
            self._end.send(encode_packet(packet, self.options.protocol_version))

    def _who(self) -> dict[str, Any]:
        return {"process": self.process, "client_id": self.client_id, "connection": self.connection}

    def _invoke(self, kind: Kind, **fields: Any) -> _Pending:
        who = self._who()
        return _Pending(self.writer.invoke(self.now_ns(), kind, **who, **fields), kind, who)

    def _complete(self, pending: _Pending, phase: Phase, **fields: Any) -> None:
        who = pending.fields
        if pending.kind is Kind.PUBLISH and phase is not Phase.UNKNOWN:
            who = {**who, "connection": self.connection}
        self.writer.complete(self.now_ns(), phase, pending.kind, pending.operation, **who, **fields)
        pending.open = False

    def _unknown(self, operations: list[int]) -> None:
        for operation in operations:
            self._complete(self._publishes.pop(operation), Phase.UNKNOWN)

    def _event(self, kind: Kind, **fields: Any) -> None:
        self.writer.event(self.now_ns(), kind, **{**self._who(), **fields})
