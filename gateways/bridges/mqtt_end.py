"""One broker as an end of bridges: source of the messages of its filters, and publishing sink.

Both use one connection, so that No Local excludes the bridge's own messages. Converts packets, interprets the broker's
answers, and detects echoes at a broker without No Local. No I/O: packets pass through a client (``gateways/client.py``,
or one of the simulation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from gateways.bridges.echoes import BridgeEchoes, digest
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.message import BridgeMessage, SinkRecord, user_properties
from gateways.bridges.publishers import NamedPublishers
from gateways.bridges.pump import DeadLetter, SinkDelivery
from mqtt.client_session import Accepted
from mqtt.data_types import check_text
from mqtt.errors import MqttError
from mqtt.packets import Publish
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import FAILURE, ReasonCode
from mqtt.topics import validate_topic_name

__all__ = ["EndClient", "EndPublisher", "MqttEnd", "PublishingDeadLetters", "PublishingSink", "make_publish"]

OUTGOING_BYTES_MAX = 1024 * 1024  # unsent bytes: QoS 0 has no other bound
FORWARDED = (
    PropertyId.PAYLOAD_FORMAT_INDICATOR,
    PropertyId.MESSAGE_EXPIRY_INTERVAL,
    PropertyId.CONTENT_TYPE,
    PropertyId.RESPONSE_TOPIC,
    PropertyId.CORRELATION_DATA,
    PropertyId.USER_PROPERTY,
)
REJECTIONS = {
    ReasonCode.NOT_AUTHORIZED: "not_authorized",
    ReasonCode.TOPIC_NAME_INVALID: "topic_invalid",
    ReasonCode.PAYLOAD_FORMAT_INVALID: "payload_invalid",
    ReasonCode.PACKET_TOO_LARGE: "too_large",
}
FETCH_S = 10.0  # minimum time between the first unacknowledged excess message and a reconnection, while others are open
PUBLISHERS_MAX = 8  # per connection
REASON = "rejected-reason"
REJECTED_TOPIC_CHARACTERS_MAX = 16_000  # of a rejected topic: at most 64 000 bytes, which fit in a user property

Answer = Callable[[int, int], None]


class EndClient(Protocol):
    """The part of a client that an end uses."""

    @property
    def is_connected(self) -> bool:
        """Whether messages may be published."""

    @property
    def is_granted(self) -> bool:
        """Whether every filter is granted on the present connection."""

    @property
    def has_capacity(self) -> bool:
        """Whether a QoS 1 or 2 message may be sent now."""

    @property
    def outgoing_bytes(self) -> int:
        """Unsent bytes."""

    def publish(self, packet: Publish, token: int) -> bool:
        """Send; False: too large for this broker."""

    def acknowledge(self, packet: Publish) -> bool:
        """Mark a message as processed; return whether for the first time."""

    def pass_over(self, packet: Publish) -> None:
        """Leave a message unacknowledged: the broker sends it again on the next connection."""

    def break_off(self, reason: str) -> None:
        """End the present connection; the next one follows."""

    def refuse(self, text: str) -> None:
        """End the client: the broker lacks a required feature."""


class MqttEnd:
    """One connection of a bridge; a ``ClientUser``.

    Args:
      name: "cluster" or "remote".
      now: Clock of echoes.
      wall_ms: UTC.
      filters: The subscribed filters, for echo detection.
      has_no_local: The broker does not send back our own messages.

    Attributes:
      flow: Receives this end's messages; None: no filter is subscribed.
      reference_as: Client ID in message references, for sinks whose consumers drop repeats.
      named_filters: Filters whose messages need the publisher's name; None: not requested.
      when_done: Called with the identifier of each forwarded QoS 2 message if exchanges are stored (exactly once).
        Without it no message is published at QoS 2: a broker that waits for the PUBREL of a former process would drop
        the next message with that identifier as a repeat.
    """

    def __init__(
        self,
        name: str,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        filters: Sequence[str] = (),
        *,
        has_no_local: bool = True,
    ) -> None:
        self.name = name
        self.client: EndClient | None = None
        self.flow: BridgeFlow | None = None
        self._is_connected = False
        self._reason = "not connected yet"
        self.when_up: list[Callable[[], None]] = []
        self.when_down: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()
        self.has_no_local = has_no_local
        self.when_done: Callable[[int], None] | None = None
        self.version = 5
        self.named_filters: tuple[str, ...] | None = None
        self._named = NamedPublishers({})
        self.reference_as = ""  # "" for no references
        self._now, self._wall_ms = now, wall_ms
        self._publishers: list[EndPublisher] = []
        self._next_reference = 0
        self._unacknowledged: dict[int, Publish] = {}  # passed to the flow and not finished
        self._maximum_qos, self._retain_available = 2, True
        self._echoes = BridgeEchoes(filters)
        self._left_at = -1.0  # timestamp of the first message left unacknowledged on this connection; -1: none

    @property
    def is_up(self) -> bool:
        """Whether the broker has granted every filter on the present connection."""
        return self._is_connected and self.client is not None and self.client.is_granted

    @property
    def reason(self) -> str:
        """Return why this side is down; "" while it is up."""
        if self._is_connected:
            return "" if self.is_up else "the broker has not answered SUBSCRIBE yet"
        return self._reason

    def publisher(
        self, answer: Answer, flow: BridgeFlow | None = None, *, is_dead_letter: bool = False
    ) -> EndPublisher:
        """Return one more publisher on this connection; ``flow`` is stepped when capacity frees."""
        assert len(self._publishers) < PUBLISHERS_MAX
        made = EndPublisher(self, len(self._publishers), answer, flow, is_dead_letter)
        self._publishers.append(made)
        return made

    def get_publisher(self, token: int) -> tuple[EndPublisher, int]:
        """Return the publisher of a session's message, and its own token."""
        return self._publishers[token % PUBLISHERS_MAX], token // PUBLISHERS_MAX

    def get_token(self, flow: BridgeFlow, token: int, is_dead_letter: bool) -> int:
        """Return the session's token of a message of a flow's sink or dead letter; -1 if this end has none."""
        for index, each in enumerate(self._publishers):
            if each.flow is flow and each.is_dead_letter == is_dead_letter:
                return token * PUBLISHERS_MAX + index
        return -1

    # ClientUser

    def connected(self, accepted: Accepted) -> None:
        """Start work: publishes lost with the session are sent again in order, before queued ones."""
        maximum = accepted.connack.properties.get(PropertyId.MAXIMUM_QOS, 2)
        assert isinstance(maximum, int)
        self._maximum_qos = maximum
        if maximum < 2 and self.when_done is not None and self.client is not None:
            self.client.refuse(f"the {self.name} broker supports QoS {maximum} at most: exactly_once needs 2")
            return
        self._named = NamedPublishers(accepted.connack.properties)
        problem = self._named.problem(self.named_filters or ())
        if problem and self.client is not None:
            self.client.refuse(problem)
            return
        self._retain_available = accepted.connack.properties.get(PropertyId.RETAIN_AVAILABLE, 1) == 1
        if not accepted.connack.session_present:
            self._unacknowledged.clear()  # their acknowledgements are void
        if accepted.forgotten:
            self.counts["sessions_lost"] += 1
        for token in accepted.forgotten:
            self.answered(token, -1)  # while sending is blocked: all are queued again before the first is sent
        self._is_connected, self._left_at = True, -1.0
        for call in self.when_up:
            call()
        self.writable()

    def disconnected(self, reason: str) -> None:
        """Record the disconnection."""
        self._is_connected, self._reason = False, reason
        for call in self.when_down:
            call()

    def received(self, packet: Publish) -> None:
        """Handle a message of the broker."""
        flow = self.flow
        if flow is None:
            self._acknowledge(packet)
            return
        if not self.has_no_local and self._echoes.take(packet, self._now()):
            flow.drop("echo")
            self._acknowledge(packet)
            return
        if packet.qos == 0 and not flow.has_capacity:
            flow.drop("window_full")
            return
        if packet.qos and self.client is not None and (flow.pump.is_overfull or self._left_at >= 0):
            self._leave_to_broker(flow, self.client, packet)
            return
        if self.named_filters is not None:
            self._named.check(packet)
        self._next_reference += 1
        if packet.qos:
            self._unacknowledged[self._next_reference] = packet
        flow.take(
            self._next_reference,
            BridgeMessage(
                packet.topic_name,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.properties,
                reference=self._reference(packet) if self.reference_as else "",
                at_ms=self._wall_ms(),
            ),
        )

    def _leave_to_broker(self, flow: BridgeFlow, client: EndClient, packet: Publish) -> None:
        """Leave a message and all later ones to the broker if the window is full; skipping one would break the order.

        The connection is kept: a new one would bring the same messages while the sink is stuck.
        ``_reconnect_for_rest`` gets them.
        """
        client.pass_over(packet)
        flow.pump.counts["left_to_broker"] += 1
        if self._left_at < 0:
            self._left_at = self._now()

    def _reconnect_for_rest(self) -> None:
        """Reconnect after messages were left, once there is capacity: the broker then resends them.

        At once if no message is open, since then none is repeated; else after FETCH_S, if half of the window is free.
        """
        flow = self.flow
        if self._left_at < 0 or flow is None or self.client is None or not self._is_connected:
            return
        is_late = self._now() - self._left_at >= FETCH_S and flow.pump.is_half_free
        if not flow.pump.open_messages or is_late:
            self.client.break_off("the broker exceeded the window: it resends the rest on the next connection")

    def _reference(self, packet: Publish) -> str:
        """Return the reference of a message: the same if its session resends it, since the packet identifier stays."""
        return f"{self.reference_as}:{packet.packet_identifier or 0}:{digest(packet).hex()}" if packet.qos else ""

    def answered(self, token: int, reason_code: int) -> None:
        """Handle the answer to a publish; -1: the broker has lost it."""
        index = token % PUBLISHERS_MAX
        if token >= 0 and index < len(self._publishers):
            self._publishers[index].answer(token // PUBLISHERS_MAX, reason_code)

    def writable(self) -> None:
        """Send pending records."""
        for publisher in self._publishers:
            if publisher.flow is not None:
                publisher.flow.step()
        self._reconnect_for_rest()

    # Source

    def register(self, packet: Publish | None) -> int:
        """Register a message of a former process, if there is one, for ``finish``; return its reference."""
        self._next_reference += 1
        if packet is not None:
            self._unacknowledged[self._next_reference] = packet
        return self._next_reference

    def get_unacknowledged(self, reference: int) -> Publish | None:
        """Return an unacknowledged message, None if no acknowledgement is due."""
        return self._unacknowledged.get(reference)

    def finish(self, reference: int) -> None:
        """Acknowledge a message; no effect if its session was lost."""
        packet = self._unacknowledged.pop(reference, None)
        if packet is not None:
            self._acknowledge(packet)
        self._reconnect_for_rest()

    def _acknowledge(self, packet: Publish) -> None:
        if self.client is not None and packet.qos:
            first = self.client.acknowledge(packet)
            if first and packet.qos == 2 and self.when_done is not None:
                assert packet.packet_identifier is not None
                self.when_done(packet.packet_identifier)

    # Sink

    @property
    def has_capacity(self) -> bool:
        """Whether a message may be sent now."""
        client = self.client
        return (
            self._is_connected
            and client is not None
            and client.has_capacity
            and client.outgoing_bytes < OUTGOING_BYTES_MAX
        )

    def send(self, packet: Publish, index: int, token: int) -> str:
        """Send a packet; return "" or the reason of a failure, as a counter label."""
        assert self.client is not None
        packet.qos = min(packet.qos, self._maximum_qos, 1 if self.when_done is None else 2)
        packet.retain = packet.retain and self._retain_available
        if self.version != 5:
            packet.properties = {}
        try:
            validate_topic_name(packet.topic_name)
            check_text(packet.topic_name)
        except MqttError:
            return "topic_invalid"
        try:
            _check_properties(packet.properties)
            if not self.client.publish(packet, token * PUBLISHERS_MAX + index):
                return "too_large"
        except MqttError:
            if not self.client.is_connected:
                raise
            return "packet_invalid"  # a field is too long for any packet
        if not self.has_no_local:
            self._echoes.expect(packet, self._now())
        return ""


class EndPublisher:
    """One publisher on an end's connection.

    Attributes:
      answer: Called with the publisher's token and the reason code.
      flow: Stepped when capacity frees.
      is_dead_letter: It publishes records that the flow's sink rejected.
    """

    def __init__(self, end: MqttEnd, index: int, answer: Answer, flow: BridgeFlow | None, is_dead_letter: bool) -> None:
        self.answer, self.flow, self.is_dead_letter = answer, flow, is_dead_letter
        self._end, self._index = end, index

    @property
    def has_capacity(self) -> bool:
        """Whether one more message may be sent."""
        return self._end.has_capacity

    def publish(self, packet: Publish, token: int) -> str:
        """Send a packet; return "" or the reason of a failure."""
        return self._end.send(packet, self._index, token)


class PublishingSink:
    """Sink of a flow: publishes records at an end."""

    def __init__(self, end: MqttEnd, flow: BridgeFlow, wall_ms: Callable[[], int], bridge: str = "") -> None:
        self._flow, self._wall_ms, self._bridge = flow, wall_ms, bridge
        self._publisher = end.publisher(self._answered, flow)

    @property
    def has_capacity(self) -> bool:
        """Whether one more record may be sent."""
        return self._publisher.has_capacity

    def send(self, sending: SinkDelivery) -> None:
        """Publish; QoS 0 is finished at once."""
        packet = make_publish(sending.record, self._wall_ms(), self._bridge)
        if packet is None:
            self._flow.pump.counts["dropped_expired"] += 1
            self._flow.pump.done(sending.token)
            return
        problem = self._publisher.publish(packet, sending.token)
        if problem:
            self._flow.reject(sending.token, problem, f"{packet.topic_name[:100]!r}: {problem}")
        elif packet.qos == 0:
            self._flow.done(sending.token)

    def _answered(self, token: int, reason_code: int) -> None:
        if reason_code < 0:
            self._flow.retry(token, "the broker has lost its session", reason="session_lost", after_s=0.0)
        elif reason_code < FAILURE:
            self._flow.done(token)
        else:
            reason = REJECTIONS.get(ReasonCode(reason_code)) if reason_code in set(ReasonCode) else None
            text = f"the broker answered 0x{reason_code:02x}"
            if reason is None:
                self._flow.retry(token, text, reason="refused")
            else:
                self._flow.reject(token, reason, text)


class PublishingDeadLetters:
    """Dead letter of a flow: a topic at an end."""

    def __init__(self, end: MqttEnd, flow: BridgeFlow, topic: str) -> None:
        self._flow, self._topic = flow, topic
        self._publisher = end.publisher(self._answered, flow, is_dead_letter=True)

    @property
    def has_capacity(self) -> bool:
        """Whether one more may be sent."""
        return self._publisher.has_capacity

    def write(self, letter: DeadLetter) -> None:
        """Publish a rejected record with the reason; a former dead letter is dropped."""
        message = letter.record.message
        if message.topic == self._topic or any(name == REASON for name, _ in user_properties(message.properties)):
            self._flow.pump.counts["dropped_rejected_twice"] += 1
            self._flow.dead_letter_done(letter.token)
            return
        begin = message.topic[:REJECTED_TOPIC_CHARACTERS_MAX]  # the topic may be the fault
        topic = "".join(each if each.isprintable() else "?" for each in begin)
        user_values = [("rejected-topic", topic), (REASON, letter.reason)]
        packet = Publish(
            self._topic, message.payload, max(1, message.qos), properties={PropertyId.USER_PROPERTY: user_values}
        )
        problem = self._publisher.publish(packet, letter.token)
        if problem == "too_large":
            self._drop(letter.token)
        elif problem:
            self._flow.dead_letter_failed(letter.token, f"{self._topic}: {problem}")

    def _drop(self, token: int) -> None:
        """Drop a message that exceeds the broker's packet size: it would occupy the window without end."""
        message = self._flow.pump.get_origin(token)[1]
        text = f"{message.topic[:100]!r}, {len(message.payload)} bytes: {self._topic}: too_large"
        self._flow.dead_letter_dropped(token, "dead_letter_too_large", text)

    def _answered(self, token: int, reason_code: int) -> None:
        if 0 <= reason_code < FAILURE:
            self._flow.dead_letter_done(token)
        elif reason_code == ReasonCode.PACKET_TOO_LARGE:
            self._drop(token)
        else:
            self._flow.dead_letter_failed(token, f"{self._topic}: the broker answered 0x{reason_code & 0xFF:02x}")


def make_publish(record: SinkRecord, now_ms: int, bridge: str = "") -> Publish | None:
    """Return the packet of a record; None if its Message Expiry Interval has passed.

    Args:
      record: From the rules.
      now_ms: UTC.
      bridge: Appended to the property ``bridge-path``; "" for none.
    """
    message = record.message
    properties: Properties = {}
    given = message.properties
    if given:
        properties = {identifier: given[identifier] for identifier in FORWARDED if identifier in given}
        expiry_s = properties.get(PropertyId.MESSAGE_EXPIRY_INTERVAL)
        if isinstance(expiry_s, int) and message.at_ms:
            left_s = expiry_s - max(0, now_ms - message.at_ms) // 1000
            if left_s <= 0:
                return None
            properties[PropertyId.MESSAGE_EXPIRY_INTERVAL] = left_s
    if bridge or record.headers:
        found = properties.get(PropertyId.USER_PROPERTY, [])
        assert isinstance(found, list)
        users = [*found, *record.headers.items()]
        if bridge:
            path = ",".join([value for name, value in found if name == "bridge-path"] + [bridge])
            users = [(name, value) for name, value in users if name != "bridge-path"] + [("bridge-path", path)]
        properties[PropertyId.USER_PROPERTY] = users
    return Publish(record.target, record.payload, record.qos, record.retain, properties=properties)


def _check_properties(properties: Properties) -> None:
    """Refuse text for which a broker may end the connection: it would be sent again on each connection.

    Raises:
      MalformedPacket: A control character.
    """
    for value in properties.values():
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, list):
            for pair in value:
                if isinstance(pair, tuple):
                    check_text(pair[0])
                    check_text(pair[1])
