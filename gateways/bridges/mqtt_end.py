"""One broker as an end of bridges: a source of the messages of its filters, and a sink that publishes.

Both by one connection, so that No Local keeps away what the bridge itself has published. Decides what a packet becomes
on its way, what a broker's answer means, and which message is an echo at a broker without No Local. No I/O: packets go
to and come from a client (``gateways/client.py``, or one of the simulation).
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
FETCH_S = 10.0  # from a message that was left to the next connection, at least, while others are still open
PUBLISHERS_MAX = 8  # that share one connection
REASON = "rejected-reason"
TOLD_CHARACTERS_MAX = 16_000  # of a rejected topic: at most 64 000 bytes, which a user property has room for

Answer = Callable[[int, int], None]


class EndClient(Protocol):
    """The client of an end, as far as the end needs it."""

    @property
    def is_connected(self) -> bool:
        """Whether messages may be published."""

    @property
    def is_granted(self) -> bool:
        """Whether every filter is granted on the present connection."""

    @property
    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message may be sent now."""

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait for the kernel."""

    def publish(self, packet: Publish, token: int) -> bool:
        """Send; False: too large for this broker."""

    def acknowledge(self, packet: Publish) -> bool:
        """A message is done; return whether it is handed over now."""

    def pass_over(self, packet: Publish) -> None:
        """Keep nothing of a message: the broker sends it again on the next connection."""

    def break_off(self, reason: str) -> None:
        """End the present connection; the next one follows."""

    def refuse(self, text: str) -> None:
        """End the client: the broker does not do what is needed."""


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
        named_filters: Those whose messages have to name their publisher; None: nobody asks where the edge does.
        when_done: Told the identifier of a QoS 2 message that was handed over, where exchanges outlive the process
            (exactly once). Without it nothing is published at QoS 2: a broker that waits for a PUBREL of a former
            process drops the next message with that identifier as a repeat.
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
        self.reference_as = ""  # client ID in references of messages; "" for none
        self._now, self._wall_ms = now, wall_ms
        self._publishers: list[EndPublisher] = []
        self._next_reference = 0
        self._taken: dict[int, Publish] = {}  # given to the flow and not finished
        self._maximum_qos, self._retain_available = 2, True
        self._echoes = BridgeEchoes(filters)
        self._left_at = -1.0  # when the first message of this connection was left to the broker; -1: none was

    @property
    def is_up(self) -> bool:
        """Whether a connection stands, and its broker has granted every filter: what is published now is not missed."""
        return self._is_connected and self.client is not None and self.client.is_granted

    @property
    def reason(self) -> str:
        """Return why this side is away; "" while it is up."""
        if self._is_connected:
            return "" if self.is_up else "the broker has not answered SUBSCRIBE yet"
        return self._reason

    def publisher(
        self, answer: Answer, flow: BridgeFlow | None = None, *, is_dead_letter: bool = False
    ) -> EndPublisher:
        """Return one more sender on this connection; ``flow`` is told when there is room."""
        assert len(self._publishers) < PUBLISHERS_MAX
        made = EndPublisher(self, len(self._publishers), answer, flow, is_dead_letter)
        self._publishers.append(made)
        return made

    def publisher_of(self, token: int) -> tuple[EndPublisher, int]:
        """Return who sent a message of the session, and its own token."""
        return self._publishers[token % PUBLISHERS_MAX], token // PUBLISHERS_MAX

    def token_of(self, flow: BridgeFlow, token: int, is_dead_letter: bool) -> int:
        """Return the session's token of a message of a flow's sink or dead letter; -1 where it has none here."""
        for index, each in enumerate(self._publishers):
            if each.flow is flow and each.is_dead_letter == is_dead_letter:
                return token * PUBLISHERS_MAX + index
        return -1

    # As the user of a client

    def connected(self, accepted: Accepted) -> None:
        """Take up work: what the broker forgot is sent anew, in order, before what waits."""
        maximum = accepted.connack.properties.get(PropertyId.MAXIMUM_QOS, 2)
        assert isinstance(maximum, int)
        self._maximum_qos = maximum
        if maximum < 2 and self.when_done is not None and self.client is not None:
            self.client.refuse(f"the {self.name} broker takes QoS {maximum} at most: exactly_once needs 2")
            return
        self._named = NamedPublishers(accepted.connack.properties)
        problem = self._named.problem(self.named_filters or ())
        if problem and self.client is not None:
            self.client.refuse(problem)
            return
        self._retain_available = accepted.connack.properties.get(PropertyId.RETAIN_AVAILABLE, 1) == 1
        if not accepted.connack.session_present:
            self._taken.clear()  # nobody waits for their acknowledgement
        if accepted.forgotten:
            self.counts["sessions_lost"] += 1
        for token in accepted.forgotten:
            self.answered(token, -1)  # while there is no room: all are back in their lanes before the first is sent
        self._is_connected, self._left_at = True, -1.0
        for call in self.when_up:
            call()
        self.room()

    def parted(self, reason: str) -> None:
        """Note that there is no connection."""
        self._is_connected, self._reason = False, reason
        for call in self.when_down:
            call()

    def received(self, packet: Publish) -> None:
        """Take a message of the broker."""
        flow = self.flow
        if flow is None:
            self._acknowledge(packet)
            return
        if not self.has_no_local and self._echoes.take(packet, self._now()):
            flow.drop("echo")
            self._acknowledge(packet)
            return
        if packet.qos == 0 and not flow.has_room:
            flow.drop("window_full")
            return
        if packet.qos and self.client is not None and (flow.pump.is_overfull or self._left_at >= 0):
            self._leave(flow, self.client, packet)
            return
        if self.named_filters is not None:
            self._named.check(packet)
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

    def _leave(self, flow: BridgeFlow, client: EndClient, packet: Publish) -> None:
        """Leave a message to the broker, which keeps it, for there is no room; so all behind it, or order would break.

        The connection stays: a new one would bring the same while the sink stands still. ``_fetch`` gets them.
        """
        client.pass_over(packet)
        flow.pump.counts["left_to_broker"] += 1
        if self._left_at < 0:
            self._left_at = self._now()

    def _fetch(self) -> None:
        """End a connection of which messages were left, when there is room: the broker sends them on the next one.

        As soon as nothing is open, for then nothing comes twice; or when half of the window is free, after a while.
        """
        flow = self.flow
        if self._left_at < 0 or flow is None or self.client is None or not self._is_connected:
            return
        is_late = self._now() - self._left_at >= FETCH_S and flow.pump.is_half_free
        if not flow.pump.open_messages or is_late:
            self.client.break_off("the broker sent more than the window had room for: it sends the rest again")

    def _reference(self, packet: Publish) -> str:
        """Name a message: the same when it comes again in its session, which keeps its packet identifier."""
        return f"{self.reference_as}:{packet.packet_identifier or 0}:{digest(packet).hex()}" if packet.qos else ""

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
        self._fetch()

    # As a source

    def hold(self, packet: Publish | None) -> int:
        """Return the reference of a message that a former process had; ``finish`` acknowledges it, if there is one."""
        self._next_reference += 1
        if packet is not None:
            self._taken[self._next_reference] = packet
        return self._next_reference

    def taken(self, reference: int) -> Publish | None:
        """Return a message that waits for ``finish``, None where nobody waits for its acknowledgement."""
        return self._taken.get(reference)

    def finish(self, reference: int) -> None:
        """Acknowledge a message; of a session that was forgotten there is nothing to acknowledge."""
        packet = self._taken.pop(reference, None)
        if packet is not None:
            self._acknowledge(packet)
        self._fetch()

    def _acknowledge(self, packet: Publish) -> None:
        if self.client is not None and packet.qos:
            first = self.client.acknowledge(packet)
            if first and packet.qos == 2 and self.when_done is not None:
                assert packet.packet_identifier is not None
                self.when_done(packet.packet_identifier)

    # As a sink

    @property
    def has_room(self) -> bool:
        """Whether a message may be sent now."""
        client = self.client
        return (
            self._is_connected and client is not None and client.has_room and client.outgoing_bytes < OUTGOING_BYTES_MAX
        )

    def send(self, packet: Publish, index: int, token: int) -> str:
        """Send a packet; return "" or why it cannot be sent, as a label of a counter."""
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
            return "packet_invalid"  # a field that no packet has room for
        if not self.has_no_local:
            self._echoes.expect(packet, self._now())
        return ""


class EndPublisher:
    """One of those that publish on an end's connection; a ``Sink`` and ``DeadLetters``.

    Attributes:
        answer: Called with the caller's token and the reason code.
        flow: Told when there is room.
        is_dead_letter: It publishes what the flow's sink rejects.
    """

    def __init__(self, end: MqttEnd, index: int, answer: Answer, flow: BridgeFlow | None, is_dead_letter: bool) -> None:
        self.answer, self.flow, self.is_dead_letter = answer, flow, is_dead_letter
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

    def __init__(self, end: MqttEnd, flow: BridgeFlow, wall_ms: Callable[[], int], bridge: str = "") -> None:
        self._flow, self._wall_ms, self._bridge = flow, wall_ms, bridge
        self._publisher = end.publisher(self._answered, flow)

    @property
    def has_room(self) -> bool:
        """Whether one more record may be sent."""
        return self._publisher.has_room

    def send(self, sending: SinkDelivery) -> None:
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

    def __init__(self, end: MqttEnd, flow: BridgeFlow, topic: str) -> None:
        self._flow, self._topic = flow, topic
        self._publisher = end.publisher(self._answered, flow, is_dead_letter=True)

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
        packet = Publish(self._topic, message.payload, max(1, message.qos), properties={PropertyId.USER_PROPERTY: told})
        problem = self._publisher.publish(packet, letter.token)
        if problem == "too_large":
            self._drop(letter.token)
        elif problem:
            self._flow.dead_letter_failed(letter.token, f"{self._topic}: {problem}")

    def _drop(self, token: int) -> None:
        """Give up a message that the broker of the dead letters has no room for: it would hold the window for ever."""
        message = self._flow.pump.origin_of(token)[1]
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
