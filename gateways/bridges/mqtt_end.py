"""One broker as an end of bridges: a source of the messages of its filters, and a sink that publishes.

Both by one connection, so that No Local keeps away what the bridge itself has published. Decides what a packet becomes
on its way, what a broker's answer means, and which message is an echo at a broker without No Local. No I/O: packets go
to and come from a client (``gateways/client.py``, or one of the simulation).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from gateways.bridges.flow import Flow
from gateways.bridges.message import BridgeMessage, Record, user_properties
from gateways.bridges.pump import DeadLetter, Sending
from mqtt.client_session import Accepted
from mqtt.data_types import check_text
from mqtt.errors import MqttError
from mqtt.packets import Publish
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import FAILURE, ReasonCode
from mqtt.topics import matches, validate_topic_name

__all__ = ["EndClient", "MqttEnd", "Publisher", "PublishingDeadLetters", "PublishingSink", "make_publish"]

OUTGOING_BYTES_MAX = 1024 * 1024  # that wait for the kernel: QoS 0 has no other bound
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
PUBLISHERS_MAX = 8  # that share one connection
ECHOES_MAX = 65_536  # awaited at once
REASON = "rejected-reason"
TOLD_CHARACTERS_MAX = 16_000  # of a rejected topic: at most 64 000 bytes, which a user property has room for
ECHO_S = 60.0  # an echo comes sooner, or not at all

Answer = Callable[[int, int], None]


class EndClient(Protocol):
    """The client of an end, as far as the end needs it."""

    @property
    def is_connected(self) -> bool:
        """Whether messages may be published."""

    @property
    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message may be sent now."""

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait for the kernel."""

    def publish(self, packet: Publish, token: int) -> bool:
        """Send; False: too large for this broker."""

    def acknowledge(self, packet: Publish) -> None:
        """A message is done."""

    def break_off(self, reason: str) -> None:
        """End the present connection; the next one follows."""


class MqttEnd:
    """One connection of a bridge; a ``ClientUser``.

    Args:
        name: "cluster" or "remote", for people.
        now: Clock of echoes.
        wall_ms: UTC.
        filters: What is subscribed, to know which of our own messages come back.
        has_no_local: The broker keeps our own messages away.
    Attributes:
        flow: Takes what this end gives; None: nothing is subscribed.
        reference_as: Client ID in the references of messages, for sinks whose consumers drop repeats.
        is_up: CONNACK came, and the connection stands.
        reason: Why it does not.
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
        self.flow: Flow | None = None
        self.is_up = False
        self.reason = "not connected yet"
        self.when_up: list[Callable[[], None]] = []
        self.when_down: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()
        self.has_no_local = has_no_local
        self.version = 5
        self.reference_as = ""  # client ID in references of messages; "" for none
        self._now, self._wall_ms, self._filters = now, wall_ms, filters
        self._publishers: list[Publisher] = []
        self._next_reference = 0
        self._taken: dict[int, Publish] = {}  # given to the flow and not finished
        self._maximum_qos, self._retain_available = 2, True
        self._echoes: OrderedDict[bytes, deque[float]] = OrderedDict()  # -> when each was published
        self._echoes_awaited = 0

    def publisher(self, answer: Answer, flow: Flow | None = None) -> Publisher:
        """Return one more sender on this connection; ``flow`` is told when there is room."""
        assert len(self._publishers) < PUBLISHERS_MAX
        made = Publisher(self, len(self._publishers), answer, flow)
        self._publishers.append(made)
        return made

    # As the user of a client

    def connected(self, accepted: Accepted) -> None:
        """Take up work: what the broker forgot is sent anew, in order, before what waits."""
        maximum = accepted.connack.properties.get(PropertyId.MAXIMUM_QOS, 2)
        assert isinstance(maximum, int)
        self._maximum_qos = maximum
        self._retain_available = accepted.connack.properties.get(PropertyId.RETAIN_AVAILABLE, 1) == 1
        if not accepted.connack.session_present:
            self._taken.clear()  # nobody waits for their acknowledgement
        if accepted.forgotten:
            self.counts["sessions_lost"] += 1
        for token in accepted.forgotten:
            self.answered(token, -1)  # while there is no room: all are back in their lanes before the first is sent
        self.is_up, self.reason = True, ""
        for call in self.when_up:
            call()
        self.room()

    def parted(self, reason: str) -> None:
        """Note that there is no connection."""
        self.is_up, self.reason = False, reason
        for call in self.when_down:
            call()

    def received(self, packet: Publish) -> None:
        """Take a message of the broker."""
        flow = self.flow
        if flow is None:
            self._acknowledge(packet)
            return
        if not self.has_no_local and self._take_echo(packet):
            flow.drop("echo")
            self._acknowledge(packet)
            return
        if packet.qos == 0 and not flow.has_room:
            flow.drop("window_full")
            return
        if packet.qos and flow.pump.is_overfull and self.client is not None:
            self.counts["overfull"] += 1
            self.client.break_off("the broker sends more than the window has room for")  # it sends this one again
            return
        self._next_reference += 1
        if packet.qos:
            self._taken[self._next_reference] = packet
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

    def _reference(self, packet: Publish) -> str:
        """Name a message: the same when it comes again in its session, which keeps its packet identifier."""
        return f"{self.reference_as}:{packet.packet_identifier or 0}:{_digest(packet).hex()}" if packet.qos else ""

    def answered(self, token: int, reason_code: int) -> None:
        """Take the answer to a publish; -1: the broker has forgotten it."""
        index = token % PUBLISHERS_MAX
        if token >= 0 and index < len(self._publishers):
            self._publishers[index].answer(token // PUBLISHERS_MAX, reason_code)

    def room(self) -> None:
        """Note that the connection may take more."""
        for publisher in self._publishers:
            if publisher.flow is not None:
                publisher.flow.step()

    # As a source

    def finish(self, reference: int) -> None:
        """Acknowledge a message; of a session that was forgotten there is nothing to acknowledge."""
        packet = self._taken.pop(reference, None)
        if packet is not None:
            self._acknowledge(packet)

    def _acknowledge(self, packet: Publish) -> None:
        if self.client is not None and packet.qos:
            self.client.acknowledge(packet)

    # As a sink

    @property
    def has_room(self) -> bool:
        """Whether a message may be sent now."""
        client = self.client
        return self.is_up and client is not None and client.has_room and client.outgoing_bytes < OUTGOING_BYTES_MAX

    def send(self, packet: Publish, index: int, token: int) -> str:
        """Send a packet; return "" or why it cannot be sent, as a label of a counter."""
        assert self.client is not None
        packet.qos = min(packet.qos, self._maximum_qos)
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
            return "packet_invalid"  # a field that no packet has room for
        if not self.has_no_local:
            self._expect_echo(packet)
        return ""

    # Echoes: a broker of 3.1.1 sends what the bridge publishes back to it, where a filter of the bridge matches

    def _expect_echo(self, packet: Publish) -> None:
        if any(matches(each, packet.topic_name) for each in self._filters):
            key = _digest(packet)
            self._echoes.setdefault(key, deque()).append(self._now())
            self._echoes.move_to_end(key)
            self._echoes_awaited += 1
            while self._echoes_awaited > ECHOES_MAX:
                oldest = next(iter(self._echoes))
                self._forget_echo(oldest)
                self.counts["echoes_forgotten"] += 1

    def _take_echo(self, packet: Publish) -> bool:
        key = _digest(packet)
        while (published := self._echoes.get(key)) and published[0] < self._now() - ECHO_S:
            self._forget_echo(key)
        if not published:
            return False
        self._forget_echo(key)
        return True

    def _forget_echo(self, key: bytes) -> None:
        published = self._echoes[key]
        published.popleft()
        self._echoes_awaited -= 1
        if not published:
            del self._echoes[key]


class Publisher:
    """One of those that publish on an end's connection; a ``Sink`` and ``DeadLetters``.

    Attributes:
        answer: Called with the caller's token and the reason code.
        flow: Told when there is room.
    """

    def __init__(self, end: MqttEnd, index: int, answer: Answer, flow: Flow | None) -> None:
        self.answer, self.flow = answer, flow
        self._end, self._index = end, index

    @property
    def has_room(self) -> bool:
        """Whether one more message may be sent."""
        return self._end.has_room

    def publish(self, packet: Publish, token: int) -> str:
        """Send a packet; return "" or why it cannot be sent."""
        return self._end.send(packet, self._index, token)


class PublishingSink:
    """Sink of a flow: records are published at an end."""

    def __init__(self, end: MqttEnd, flow: Flow, wall_ms: Callable[[], int], bridge: str = "") -> None:
        self._flow, self._wall_ms, self._bridge = flow, wall_ms, bridge
        self._publisher = end.publisher(self._answered, flow)

    @property
    def has_room(self) -> bool:
        """Whether one more record may be sent."""
        return self._publisher.has_room

    def send(self, sending: Sending) -> None:
        """Publish; QoS 0 is done when it is on its way."""
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

    def __init__(self, end: MqttEnd, flow: Flow, topic: str) -> None:
        self._flow, self._topic = flow, topic
        self._publisher = end.publisher(self._answered, flow)

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return self._publisher.has_room

    def bury(self, letter: DeadLetter) -> None:
        """Publish a rejected record with what was wrong; one that was a dead letter before goes round no more."""
        message = letter.record.message
        if message.topic == self._topic or any(name == REASON for name, _ in user_properties(message.properties)):
            self._flow.pump.counts["dropped_rejected_twice"] += 1
            self._flow.dead_letter_done(letter.token)
            return
        begin = message.topic[:TOLD_CHARACTERS_MAX]  # the topic may be what was wrong
        topic = "".join(each if each.isprintable() else "?" for each in begin)
        told = [("rejected-topic", topic), (REASON, letter.reason)]
        packet = Publish(self._topic, message.payload, 1, properties={PropertyId.USER_PROPERTY: told})
        problem = self._publisher.publish(packet, letter.token)
        if problem:
            self._flow.dead_letter_failed(letter.token, f"{self._topic}: {problem}")

    def _answered(self, token: int, reason_code: int) -> None:
        if 0 <= reason_code < FAILURE:
            self._flow.dead_letter_done(token)
        else:
            self._flow.dead_letter_failed(token, f"{self._topic}: the broker answered 0x{reason_code & 0xFF:02x}")


def make_publish(record: Record, now_ms: int, bridge: str = "") -> Publish | None:
    """Return the packet that a record becomes; None for one whose Message Expiry Interval has passed.

    Args:
        record: Of the rules.
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


def _digest(packet: Publish) -> bytes:
    """Return a name of topic and payload, the whole of both."""
    digest = blake2b(packet.payload, digest_size=16)
    digest.update(packet.topic_name.encode())
    digest.update(len(packet.payload).to_bytes(4, "big"))
    return digest.digest()


def _check_properties(properties: Properties) -> None:
    """Refuse text for which a broker may end the connection: it would come again on the next one, for ever.

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
