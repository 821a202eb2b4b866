"""MQTT 5.0 sections 4.3 and 4.4 for a client session, and its timers: bytes and times in, events and bytes out."""

import math

import pytest

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
)
from mqtt.codec import StreamDecoder, encode_packet
from mqtt.errors import LocalProtocolError
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
)
from mqtt.properties import PropertyId

BOUNDS = ClientBounds(connect_timeout_s=3.0, goodbye_timeout_s=1.0, silence_s=6.0, window=16)


class Wire:
    """A session with the test as its broker, and a manual clock."""

    def __init__(self, session: ClientSession | None = None, bounds: ClientBounds = BOUNDS) -> None:
        self.session = session or ClientSession()
        self.bounds = bounds
        self.now = 100.0

    def connect(self, connack: Connack | None = None) -> list[Event]:
        self.session.begin(self.now, self.bounds)
        self.session.opened(self.now, Connect("c", protocol_version=5))
        assert [type(packet) for packet in self.sent()] == [Connect]
        return self.receive(connack or Connack(session_present=True))

    def receive(self, *packets: Packet) -> list[Event]:
        return self.receive_bytes(b"".join(encode_packet(packet, 5) for packet in packets))

    def receive_bytes(self, data: bytes) -> list[Event]:
        self.session.handle(self.now, data)
        return list(iter(self.session.next_event, None))

    def sent(self) -> list[Packet]:
        return StreamDecoder(5).feed(b"".join(self.session.take_output()))

    def publish(self, token: int, qos: int) -> int:
        identifier = self.session.next_identifier()
        self.session.publish(Publish("a", b"", qos, packet_identifier=identifier), token)
        assert [type(packet) for packet in self.sent()] == [Publish]
        return identifier

    def wait(self, until: float) -> list[Event]:
        """Advance the time from deadline to deadline, like a caller."""
        events: list[Event] = []
        while self.session.next_deadline() <= until:
            self.now = self.session.next_deadline()
            events += self.receive_bytes(b"")
        self.now = until
        return events


def test_client_session_resends_open_publishes_in_order_and_released_ones_as_pubrel() -> None:
    wire = Wire()
    wire.connect()
    first, second, third = (wire.publish(number, 2) for number in (1, 2, 3))
    assert wire.receive(Pubrec(second)) == [PublishAnswered(2, 0)]
    assert wire.receive(Pubrec(second)) == []  # reported once, released again
    assert wire.sent() == [Pubrel(second), Pubrel(second)]
    assert wire.session.closed() == ()
    (accepted,) = wire.connect()
    assert isinstance(accepted, Accepted) and accepted.resent == (1, 3) and accepted.forgotten == ()
    again = wire.sent()
    assert [type(packet) for packet in again] == [Publish, Pubrel, Publish]
    assert all(packet.dup for packet in again if isinstance(packet, Publish))
    assert wire.receive(Pubcomp(second)) == []
    assert list(wire.session.outbound) == [first, third]


def test_client_session_refused_pubrec_frees_the_identifier() -> None:
    wire = Wire()
    wire.connect()
    identifier = wire.publish(1, 2)
    assert wire.receive(Pubrec(identifier, 0x97)) == [PublishAnswered(1, 0x97)]
    assert not wire.sent() and not wire.session.outbound


def test_client_session_forgotten_reports_only_unanswered_publishes() -> None:
    wire = Wire()
    wire.connect()
    released, _ = wire.publish(1, 2), wire.publish(2, 1)
    wire.receive(Pubrec(released))
    wire.session.closed()
    (accepted,) = wire.connect(Connack(session_present=False))
    assert isinstance(accepted, Accepted) and accepted.forgotten == (2,) and accepted.resent == ()
    assert wire.receive(Puback(2)) == [] and not wire.sent()


def test_client_session_delivers_qos_2_once_until_released() -> None:
    wire = Wire()
    wire.connect()
    packet = Publish("a", b"", 2, packet_identifier=5)
    for first in (True, False):
        (received,) = wire.receive(packet)
        assert isinstance(received, PublishReceived) and received == PublishReceived(packet)
        assert not wire.sent(), "the caller acknowledges"
        assert wire.session.is_repeat(received.packet) is not first
        assert wire.session.acknowledge(received.packet) is first
        assert wire.sent() == [Pubrec(5)]
    for code in (0, 0x92):
        assert wire.receive(Pubrel(5)) == []
        assert wire.sent() == [Pubcomp(5, code)]
    (received,) = wire.receive(packet)
    assert isinstance(received, PublishReceived) and wire.session.acknowledge(received.packet)


def test_client_session_identifiers_stay_in_range_and_skip_used_ones() -> None:
    wire = Wire(ClientSession(first_identifier=10, last_identifier=12))
    wire.connect()
    assert [wire.publish(1, 1), wire.publish(2, 1)] == [10, 11]
    wire.session.request(Subscribe(wire.session.next_identifier(), [SubscriptionRequest("a", 1)]), 3)
    assert wire.receive(Puback(10)) == [PublishAnswered(1, 0)]
    assert wire.session.next_identifier() == 10
    assert wire.receive(Suback(12, [1])) == [RequestAnswered(3, Suback(12, [1]))]


@pytest.mark.parametrize(("heedless", "room"), [(False, 2), (True, 4)])
def test_client_session_window_is_the_lower_of_both_sides(heedless: bool, room: int) -> None:
    """[MQTT-3.3.4-9]; a heedless client fills its own window."""
    wire = Wire(bounds=ClientBounds(window=4, heedless=heedless))
    wire.connect(Connack(properties={PropertyId.RECEIVE_MAXIMUM: 2}))
    for number in range(room):
        assert wire.session.has_room
        wire.publish(number, 1)
    assert not wire.session.has_room
    with pytest.raises(LocalProtocolError):
        wire.session.publish(Publish("a", b"", 1, packet_identifier=9), 9)
    assert wire.receive(Puback(1)) and wire.session.has_room


def test_client_session_requests_end_with_their_connection() -> None:
    wire = Wire()
    wire.connect()
    wire.session.request(Subscribe(wire.session.next_identifier(), [SubscriptionRequest("a", 1)]), 7)
    assert wire.session.closed() == (7,)
    assert wire.session.closed() == () and wire.session.next_deadline() == math.inf
    with pytest.raises(LocalProtocolError):
        wire.session.request(Subscribe(1, [SubscriptionRequest("a", 1)]), 8)


def test_client_session_without_free_identifiers_refuses_requests() -> None:
    """A refused request leaves no state behind."""
    session = ClientSession(1, 3)
    wire = Wire(session)
    wire.connect()
    for token in range(3):
        session.request(Subscribe(session.next_identifier(), [SubscriptionRequest("a", 0)]), token)
    with pytest.raises(LocalProtocolError, match="in use"):
        session.next_identifier()
    assert session.closed() == (0, 1, 2)
    with pytest.raises(LocalProtocolError, match="without a connection"):
        session.request(Subscribe(session.next_identifier(), [SubscriptionRequest("a", 0)]), 3)
    assert session.closed() == ()


def test_client_session_pings_three_times_per_silence_time() -> None:
    """An answering broker is kept; a silent one is detected at the first ping more than 6 s after its last byte."""
    wire = Wire()
    wire.connect()
    for _ in range(5):
        assert wire.wait(wire.now + 2.0) == []
        assert wire.sent() == [Pingreq()]
        wire.receive(Pingresp())
    assert wire.wait(wire.now + 7.9) == [] and len(wire.sent()) == 3
    assert wire.wait(wire.now + 0.1) == [MustClose("silent")]
    assert wire.session.next_deadline() == math.inf


@pytest.mark.parametrize("is_open", [False, True])
def test_client_session_without_connack_times_out(is_open: bool) -> None:
    wire = Wire()
    wire.session.begin(wire.now, BOUNDS)
    if is_open:
        wire.session.opened(wire.now, Connect("c"))
    assert wire.wait(wire.now + 2.9) == []
    assert wire.wait(wire.now + 0.1) == [MustClose("silent")]


def test_client_session_refused_connection_is_closed() -> None:
    wire = Wire()
    assert wire.connect(Connack(reason_code=0x87)) == [ConnectRefused(Connack(reason_code=0x87)), MustClose("refused")]
    assert wire.session.state is ClientState.REFUSED and wire.wait(wire.now + 60) == []


def test_client_session_sends_no_packet_after_disconnect() -> None:
    """[MQTT-3.14.4-2]; the wait for the broker's close is bounded."""
    wire = Wire()
    wire.connect()
    wire.session.disconnect(wire.now, 4)
    assert wire.sent() == [Disconnect(4)]
    packet = Publish("a", b"", 1, packet_identifier=1)
    (received,) = wire.receive(packet)
    assert isinstance(received, PublishReceived) and wire.session.acknowledge(received.packet) and not wire.sent()
    assert not wire.session.has_room and wire.wait(wire.now + 1.0) == [MustClose("local")]


OUT_OF_PLACE: list[tuple[bytes, list[Event]]] = [
    (b"\x00\x00", [MustClose("protocol")]),
    (encode_packet(Connack(), 5), [MustClose("protocol")]),
    (encode_packet(Disconnect(0x8B), 5) + b"\x00\x00", [ServerDisconnect(Disconnect(0x8B)), MustClose("protocol")]),
]


@pytest.mark.parametrize(("data", "events"), OUT_OF_PLACE)
def test_client_session_malformed_bytes_end_the_connection(data: bytes, events: list[Event]) -> None:
    """Packets before them are processed."""
    wire = Wire()
    wire.connect()
    assert wire.receive_bytes(data) == events


def test_client_session_first_packet_must_be_connack() -> None:
    """Section 3.2."""
    wire = Wire()
    assert wire.connect(Connack()) != [MustClose("protocol")]
    wire.session.closed()
    wire.session.begin(wire.now, BOUNDS)
    wire.session.opened(wire.now, Connect("c", protocol_version=5))
    assert wire.receive(Pingresp()) == [MustClose("protocol")]


def test_client_session_closed_has_no_further_events() -> None:
    """Packets of the last read are not processed after ``closed``."""
    wire = Wire()
    wire.connect()
    packet = Publish("a", b"", 2, packet_identifier=5)
    wire.session.handle(wire.now, encode_packet(packet, 5) * 2)
    assert wire.session.next_event() == PublishReceived(packet)
    wire.session.closed()
    assert wire.session.next_event() is None and not wire.session.inbound and not wire.sent()
