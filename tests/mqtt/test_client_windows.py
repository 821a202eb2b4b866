"""Windows of a client session: bounds of both sides, order of answers, and durable changes."""

from collections.abc import Sequence

import pytest

from mqtt.client_session import (
    Accepted,
    ClientBounds,
    ClientSession,
    Event,
    MustClose,
    OpenPublish,
    PublishAnswered,
    PublishReceived,
    StateChange,
)
from mqtt.codec import StreamDecoder, encode_packet
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
)
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import ReasonCode

TAKES: Properties = {
    PropertyId.RECEIVE_MAXIMUM: 3,
    PropertyId.MAXIMUM_PACKET_SIZE: 100,
    PropertyId.TOPIC_ALIAS_MAXIMUM: 2,
}


class Peer:
    """The broker of one session, simulated by the test."""

    def __init__(self, version: int = 5, session: ClientSession | None = None) -> None:
        self.version = version
        self.session = session or ClientSession()
        self.now = 0.0

    def connect(self, present: bool = True, **properties: int) -> list[Event]:
        self.session.begin(self.now, ClientBounds(window=4, silence_s=60.0))
        self.session.opened(self.now, Connect("c", protocol_version=self.version, properties=dict(TAKES)))
        self.session.take_output()
        found: Properties = {PropertyId[name.upper()]: value for name, value in properties.items()}
        return self.send_packets(Connack(present, 0, found))

    def send_packets(self, *packets: Packet) -> list[Event]:
        return self.send_bytes(b"".join(encode_packet(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> list[Event]:
        self.session.handle(self.now, data)
        return list(iter(self.session.next_event, None))

    def deliver(self, *packets: Publish) -> list[Publish]:
        """Send messages; return the delivered ones."""
        events = self.send_packets(*packets)
        return [event.packet for event in events if isinstance(event, PublishReceived)]

    def received(self) -> list[Packet]:
        return StreamDecoder(self.version).feed(b"".join(self.session.take_output()))

    def publish(self, token: int, qos: int = 1, payload: bytes = b"") -> int:
        identifier = self.session.next_identifier()
        assert self.session.publish(Publish("a", payload, qos, packet_identifier=identifier), token)
        self.received()
        return identifier


def message(identifier: int, qos: int = 1, text: bytes = b"", *, dup: bool = False) -> Publish:
    return Publish("t", text, qos, dup=dup, packet_identifier=identifier)


def peer(version: int = 5) -> Peer:
    made = Peer(version)
    made.connect()
    return made


def test_client_session_acknowledges_in_order_of_arrival() -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3]: per QoS, for any order of processing."""
    broker = peer()
    one, two, three = broker.deliver(message(1), message(2, 2), message(3))
    assert broker.session.acknowledge(three) and not broker.received()
    assert broker.session.acknowledge(two)
    assert broker.received() == [Pubrec(2)]
    assert broker.session.acknowledge(one)
    assert broker.received() == [Puback(1), Puback(3)]


def test_client_session_in_flight_counts_unanswered_messages_of_both_directions() -> None:
    """Received messages of a closed connection do not count; open publishes do, because they are resent."""
    broker = peer()
    (given,) = broker.deliver(message(1))
    own = broker.publish(token=7)
    assert broker.session.in_flight == 2
    broker.session.acknowledge(given)
    assert broker.session.in_flight == 1
    broker.deliver(message(2, 2))
    broker.session.closed()
    assert broker.session.in_flight == 1
    broker.connect()
    broker.send_packets(Puback(own))
    assert broker.session.in_flight == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_client_session_held_message_is_not_delivered_again(qos: int) -> None:
    """The broker repeats it on the next connection; one answer is sent."""
    broker = peer()
    (held,) = broker.deliver(message(1, qos, b"x"))
    broker.session.closed()
    broker.connect()
    assert broker.deliver(message(1, qos, b"x", dup=True)) == [] and not broker.received()
    broker.session.acknowledge(held)
    assert broker.received() == [Puback(1) if qos == 1 else Pubrec(1)]


@pytest.mark.parametrize("qos", [1, 2])
def test_client_session_message_acknowledged_while_disconnected_is_answered_later(qos: int) -> None:
    broker = peer()
    (held,) = broker.deliver(message(1, qos, b"x"))
    broker.session.closed()
    assert broker.session.acknowledge(held) and not broker.received()
    broker.connect()
    assert broker.deliver(message(1, qos, b"x", dup=True)) == []
    assert broker.received() == [Puback(1) if qos == 1 else Pubrec(1)]


@pytest.mark.parametrize(("text", "dup"), [(b"y", True), (b"x", False)], ids=["other content", "not sent again"])
def test_client_session_reused_identifier_replaces_the_held_message(text: bytes, dup: bool) -> None:
    """The held message gets no answer, because its PUBACK would be that of the new message."""
    broker = peer()
    (held,) = broker.deliver(message(1, 1, b"x"))
    broker.session.closed()
    broker.connect()
    (other,) = broker.deliver(message(1, 1, text, dup=dup))
    broker.session.acknowledge(held)
    assert not broker.received()
    broker.session.acknowledge(other)
    assert broker.received() == [Puback(1)]


def test_client_session_receive_maximum_restarts_with_each_connection() -> None:
    """Section 4.9. A broker that lost PUBACKs in a crash repeats their messages before it releases later ones."""
    broker = peer()
    first, *later = broker.deliver(message(1), message(2, 2), message(3, 2))
    for each in (first, *later):
        broker.session.acknowledge(each)
    broker.session.closed()
    broker.connect()
    again = broker.deliver(message(1, dup=True), message(4), message(5))
    assert [each.packet_identifier for each in again] == [1, 4, 5]
    assert isinstance(broker.send_packets(message(6))[-1], MustClose)


def test_client_session_forgotten_has_no_open_answers() -> None:
    broker = peer()
    (held,) = broker.deliver(message(1, 2, b"x"))
    broker.session.closed()
    broker.connect(present=False)
    broker.session.acknowledge(held)
    assert not broker.received() and not broker.session.inbound


BROKEN: dict[str, tuple[Sequence[Packet], int]] = {
    "above Receive Maximum": ([message(number) for number in (1, 2, 3, 4)], ReasonCode.RECEIVE_MAXIMUM_EXCEEDED),
    "QoS 2 not finished": ([message(number, 2) for number in (1, 2, 3, 4)], ReasonCode.RECEIVE_MAXIMUM_EXCEEDED),
    "identifier in use": ([message(1), message(1, 1, b"y")], ReasonCode.PROTOCOL_ERROR),
    "above Maximum Packet Size": ([message(1, 1, bytes(100))], ReasonCode.PACKET_TOO_LARGE),
    "unknown alias": ([Publish("", properties={PropertyId.TOPIC_ALIAS: 2})], ReasonCode.TOPIC_ALIAS_INVALID),
    "alias above the maximum": ([Publish("a", properties={PropertyId.TOPIC_ALIAS: 3})], ReasonCode.TOPIC_ALIAS_INVALID),
    "PUBACK for QoS 2": ([Puback(1)], ReasonCode.PROTOCOL_ERROR),
    "CONNECT": ([Pingreq()], ReasonCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", BROKEN)
def test_client_session_protocol_violation_is_answered_with_its_reason(name: str) -> None:
    packets, code = BROKEN[name]
    broker = peer()
    broker.publish(1, 2)
    last = broker.send_packets(*packets)[-1]
    assert isinstance(last, MustClose) and last.reason == "protocol" and last.detail
    assert broker.received()[-1] == Disconnect(code)


def test_client_session_ignores_answers_without_a_publish() -> None:
    broker = peer()
    assert broker.send_packets(Puback(7), Pubcomp(8), Pubrec(9)) == []
    assert broker.received() == [Pubrel(9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


def test_client_session_resolves_topic_aliases() -> None:
    broker = peer()
    first, second = broker.deliver(
        Publish("long/topic", properties={PropertyId.TOPIC_ALIAS: 2}),
        Publish("", properties={PropertyId.TOPIC_ALIAS: 2}),
    )
    assert first.topic_name == second.topic_name == "long/topic" and not second.properties
    broker.session.closed()
    broker.connect()
    assert isinstance(broker.send_packets(Publish("", properties={PropertyId.TOPIC_ALIAS: 2}))[0], MustClose)


def test_client_session_does_not_send_above_the_brokers_packet_size() -> None:
    """[MQTT-3.2.2-15]; an open publish above a lowered bound ends with an answer."""
    broker = Peer()
    broker.connect()
    large, small = broker.publish(1, payload=bytes(60)), broker.publish(2)
    broker.session.closed()
    events = broker.connect(maximum_packet_size=50)
    assert isinstance(events[0], Accepted) and events[1] == PublishAnswered(1, ReasonCode.PACKET_TOO_LARGE)
    assert [packet.packet_identifier for packet in broker.received() if isinstance(packet, Publish)] == [small]
    assert large not in broker.session.outbound
    assert not broker.session.publish(Publish("a", bytes(60)), 3) and not broker.received()


def test_client_session_lower_receive_maximum_bounds_resends() -> None:
    """Section 4.9: the rest follows with the answers, in order, and before new messages."""
    broker = Peer()
    broker.connect()
    identifiers = [broker.publish(token) for token in range(3)]
    broker.session.closed()
    broker.connect(receive_maximum=2)
    assert [packet.packet_identifier for packet in broker.received() if isinstance(packet, Publish)] == identifiers[:2]
    assert not broker.session.has_room
    assert broker.send_packets(Puback(identifiers[0])) == [PublishAnswered(0, 0)]
    (last,) = broker.received()
    assert isinstance(last, Publish) and last.packet_identifier == identifiers[2] and last.dup


def test_client_session_server_keep_alive_raises_the_ping_rate() -> None:
    """Section 3.2.2.3.14."""
    broker = Peer()
    broker.connect(server_keep_alive=6)
    assert broker.session.next_deadline() == broker.now + 3.0


def test_client_session_records_changes_only_if_kept() -> None:
    """Otherwise a session would accumulate three changes per message."""
    broker = peer()
    broker.send_packets(Puback(broker.publish(11)))
    assert broker.session.take_changes() == []


def test_client_session_records_each_durable_change() -> None:
    broker = Peer(session=ClientSession(is_kept=True))
    broker.connect(present=False)
    first, second = broker.publish(11, 1), broker.publish(12, 2)
    broker.send_packets(Puback(first), Pubrec(second), Pubrec(second), Pubcomp(second))
    (held,) = broker.deliver(message(5, 2))
    broker.session.acknowledge(held)
    broker.send_packets(Pubrel(5), Pubrel(5))
    assert broker.session.take_changes() == [
        StateChange("forgotten"),
        StateChange("sent", first, 11),
        StateChange("sent", second, 12),
        StateChange("ended", first, 11),
        StateChange("released", second, 12),
        StateChange("ended", second, 12),
        StateChange("taken", 5),
        StateChange("finished", 5),
    ]


def test_client_session_resumes_in_another_process() -> None:
    """Identifiers stay in use, PUBREL is resent, and a QoS 2 message is not delivered a second time."""
    open_publishes = {
        3: OpenPublish(31, Publish("a", b"", 2, packet_identifier=3), released=True),
        4: OpenPublish(41, Publish("a", b"", 1, packet_identifier=4)),
    }
    session = ClientSession()
    session.restore(open_publishes, [9])
    broker = Peer(session=session)
    broker.connect()
    released, again = broker.received()
    assert released == Pubrel(3) and isinstance(again, Publish) and again.dup
    assert session.next_identifier() == 5
    (repeat,) = broker.deliver(message(9, 2, dup=True))
    assert session.is_repeat(repeat) and not session.acknowledge(repeat)
    assert broker.received() == [Pubrec(9)]


@pytest.mark.parametrize("version", [4, 5])
def test_client_session_any_split_of_the_stream_gives_the_same_events(version: int) -> None:
    packets: list[Packet] = [message(1), message(2, 2), Puback(1), Pubrec(2), Pubrel(2), Pubcomp(2), Publish("t")]
    data = b"".join(encode_packet(packet, version) for packet in packets)

    def run(pieces: list[bytes]) -> tuple[list[Event], list[Packet]]:
        broker = peer(version)
        for token, qos in ((1, 1), (2, 2)):
            broker.publish(token, qos)
        events: list[Event] = []
        for piece in pieces:
            broker.session.handle(broker.now, piece)
            while (event := broker.session.next_event()) is not None:
                events.append(event)
                if isinstance(event, PublishReceived):
                    broker.session.acknowledge(event.packet)
        return events, sorted(broker.received(), key=repr)

    whole = run([data])
    assert len(whole[0]) == 5
    for cut in range(len(data)):
        assert run([data[:cut], data[cut:]]) == whole
    assert run([data[at : at + 1] for at in range(len(data))]) == whole
