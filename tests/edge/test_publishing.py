"""PUBLISH at one edge's core: topics, aliases, retained messages, QoS 2 records, a fenced edge."""

from collections.abc import Callable

import pytest

from edge.loop.state import Route
from mqtt.packets import Puback, Pubrec
from mqtt.properties import PropertyId
from tests.clients.packets import ack
from tests.edge.edge_harness import Edge, with_clients
from tests.edge.retained_partitions import RetainedPartitions
from tests.edge.session_answers import DURABLE, publishes, said
from wire.messages.redispatch import SharePick
from wire.messages.routes import (
    Destinations,
    GroupDestinations,
    Resolve,
)
from wire.messages.sessions import InboundRecorded, InboundReleased, KickSession, RecordInbound, ReleaseInbound


@pytest.mark.parametrize(
    ("topic", "code"),
    [("$SYS/broker/uptime", 0x87), ("$share/g/a", 0x87), ("$SYS/broker/connection/x/state", 0x10), ("$other", 0x10)],
)
def test_reserved_topics_are_refused(topic: str, code: int) -> None:
    """$SYS is closed to clients, except for the status topics of bridges."""
    session = Edge().client()
    session.publish(topic, b"x", 1, 1)
    session.publish(topic, b"x", 2, 2)
    (puback, pubrec) = session.read()
    assert (puback.reason_code, pubrec.reason_code) == (code, 0 if code == 0x10 else code)
    assert isinstance(pubrec, Pubrec)
    session.publish(topic, b"x", 1, 3, retain=True)
    refused = [packet.reason_code for packet in said(session, Puback)]
    assert refused == ([code] if code == 0x87 else [])  # or it waits for its partition


@pytest.mark.parametrize("topic", ["a/" * 40, "a" * 2000, "/" * 65535])
def test_topic_above_limits_closes_the_connection(topic: str) -> None:
    """0x90, before the topic is requested."""
    edge = Edge()
    session = edge.client()
    session.publish(topic)
    assert [packet.reason_code for packet in session.read()] == [0x90] and session.closed
    assert not any(isinstance(message, Resolve) and message.topics for message in edge.seen)


def test_topic_aliases_to_the_client() -> None:
    """[MQTT-3.1.2-26]: at most its maximum, the first topics have one; later the alias replaces the name."""
    edge = Edge()
    session = edge.client("s", properties={PropertyId.TOPIC_ALIAS_MAXIMUM: 1})
    plain, publisher = edge.client("t"), edge.client("p")
    session.subscribe("topic/#")
    plain.subscribe("topic/#")
    for subscriber in (session, plain):
        subscriber.read()
    for qos in range(3):
        publisher.publish("topic/1", b"x", qos, qos)
    publisher.publish("topic/2", b"y")
    copies = publishes(session)
    assert [copy.topic_name for copy in copies] == ["topic/1", "", "", "topic/2"]
    assert [copy.properties.get(PropertyId.TOPIC_ALIAS) for copy in copies] == [1, 1, 1, None]
    assert [copy.topic_name for copy in publishes(plain)] == ["topic/1"] * 3 + ["topic/2"]


def test_retained_message_is_sent_live_after_its_partition_stored_it() -> None:
    """Before that, a SUBSCRIBE of a client that has it could still read the previous one."""
    edge, session, publisher = with_clients()
    session.subscribe("a")
    session.read()
    stores = RetainedPartitions(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    publisher.publish("a", b"next", 1, 2)
    assert session.read() == publisher.read() == []
    stores.waiting.pop()(0)
    edge.turn()
    assert [copy.payload for copy in publishes(session)] == [b"new", b"next"]
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0, 0]


@pytest.mark.parametrize(("properties", "qos", "looks"), [({}, 0, 0), (DURABLE, 2, 1)])
def test_route_of_the_loop_is_not_requested_again(
    monkeypatch: pytest.MonkeyPatch, properties: dict[int, object], qos: int, looks: int
) -> None:
    """The core receives it with the message; after a partition's reply the current Route is used."""
    edge = Edge()
    subscriber, publisher = edge.client("s"), edge.client("p", properties=properties)
    subscriber.subscribe("a")
    publisher.publish("a", b"known")
    subscriber.read()
    requested: list[bytes] = []
    look_up = edge.core.routes.with_route

    def with_route(topic: bytes, then: Callable[[Route], None]) -> None:
        requested.append(topic)
        look_up(topic, then)

    monkeypatch.setattr(edge.core.routes, "with_route", with_route)
    publisher.publish("a", b"x", qos, qos, retain=not qos)
    assert [copy.payload for copy in publishes(subscriber)] == [b"x"]
    assert requested == [b"a"] * looks


def test_message_refused_by_retained_partition_is_not_delivered() -> None:
    """Simulation --hardware, seed 105: it was delivered live, and answered with a failure."""
    edge, session, publisher = with_clients()
    session.subscribe("a")
    session.read()
    stores = RetainedPartitions(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    stores.waiting.pop()(0x89)
    edge.turn()
    assert publishes(session) == []
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0x97]


def test_message_resent_through_another_edge_is_not_delivered_here() -> None:
    """Simulation seed 76039: resent through another edge, it reached later subscribers behind newer messages."""
    edge = Edge()
    subscriber = edge.client("s")
    publisher = edge.client("p", properties=DURABLE)
    subscriber.subscribe("a")
    subscriber.read()
    stores = RetainedPartitions(edge)
    publisher.publish("a", b"resent elsewhere", 1, 1, retain=True)
    edge.storage(KickSession(7, "p", publisher.client.number, publisher.client.owner_epoch))
    stores.waiting.pop()(0)
    edge.turn()
    assert publishes(subscriber) == []


def test_qos2_of_a_durable_publisher_is_recorded_first() -> None:
    """PUBREC after the record, PUBCOMP after its release [MQTT-4.3.3-8]; an unknown PUBREL is answered too.

    No subscriber receives it before its record is on disk, nor a repeat after PUBREC.
    """
    edge = Edge()
    reader, session = edge.client("r"), edge.client("d", properties=DURABLE)
    reader.subscribe("a")
    reader.read()
    edge.held = {RecordInbound, ReleaseInbound}
    session.publish("a", b"x", 2, 5)
    assert session.read() == [] and publishes(reader) == []
    edge.held = {ReleaseInbound}
    edge.turn()
    assert [packet.packet_identifier for packet in said(session, Pubrec)] == [5]
    assert [packet.payload for packet in publishes(reader)] == [b"x"]
    session.publish("a", b"x", 2, 5, dup=True)
    assert [packet.packet_identifier for packet in said(session, Pubrec)] == [5] and publishes(reader) == []
    session.send(ack(0x62, 5))
    assert session.read() == []
    edge.held = set()
    edge.turn()
    (pubcomp,) = session.read()
    assert (pubcomp.packet_identifier, pubcomp.reason_code) == (5, 0)


def test_refused_qos2_message_is_answered_after_its_record_is_deleted() -> None:
    """Simulation seed 66065: the edge died in between, the client never repeated it, the record stayed."""
    edge = Edge()
    subscriber, session = edge.client("s"), edge.client("d", properties=DURABLE)
    subscriber.subscribe("a")
    subscriber.read()
    stores = RetainedPartitions(edge)
    edge.held = {ReleaseInbound}
    session.publish("a", b"x", 2, 5, retain=True)
    edge.turn()
    stores.waiting.pop()(0x97)
    session.publish("b", b"y", 1, 6)
    edge.turn()
    assert session.read() == []
    (release,) = edge.take(ReleaseInbound)
    assert release.packet_identifier == 5
    edge.storage(InboundReleased(release.request))
    edge.turn()
    assert [(type(packet), packet.reason_code) for packet in session.read()] == [(Pubrec, 0x97), (Puback, 0x10)]


def test_qos2_pick_is_recorded_before_the_copy_is_sent() -> None:
    """A repeat goes to the recorded destination and reaches the member once; a dead edge is replaced, by attempt."""
    edge = Edge()
    member = edge.client("m")
    member.subscribe("$share/g/a")
    member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 1)])])
    publisher = edge.client("d", properties=DURABLE)
    edge.held = {RecordInbound}

    def recorded(counter: int, pick: SharePick) -> list[SharePick]:
        edge.turn()
        (requested,) = edge.take(RecordInbound)
        edge.storage(InboundRecorded(requested.request, counter, picks=[pick]))
        return list(requested.picks)

    here, gone = SharePick(b"g/a", -1, "e0", 1), SharePick(b"g/a", -1, "e9", 4)
    publisher.publish("a", b"1", 2, 1)
    assert publishes(member) == []
    assert recorded(1, here) == [here]
    assert [copy.payload for copy in publishes(member)] == [b"1"]
    assert len(said(publisher, Pubrec)) == 1
    publisher = edge.client("d", clean_start=False, properties=DURABLE)
    publisher.publish("a", b"1", 2, 1, dup=True)  # it did not receive PUBREC
    recorded(1, here)
    assert publishes(member) == []
    assert len(said(publisher, Pubrec)) == 1
    publisher.publish("a", b"2", 2, 2)
    recorded(2, gone)  # another edge picked one that has died since
    again = SharePick(b"g/a", -1, "e0", 1, 1)
    assert publishes(member) == []
    assert recorded(2, again) == [again]
    assert [copy.payload for copy in publishes(member)] == [b"2"]


def test_fenced_edge_delivers_qos0_without_acknowledging() -> None:
    """Without a lease QoS 1 waits unread; QoS 0 between clients of this edge is delivered."""
    edge = Edge()
    session, publisher, other = edge.client("s"), edge.client("p"), edge.client("q")
    session.subscribe("a", qos=0)
    publisher.publish("a", b"0")
    assert len(publishes(session)) == 1
    edge.core.lease.lease_until = edge.now
    edge.core.hot.turn_end_ns = 0  # the core has no deadline for a lease set by the test
    edge.turn()
    publisher.publish("a", b"1")
    other.publish("a", b"2", 1, 1)
    edge.turn()
    assert [copy.payload for copy in publishes(session)] == [b"1"] and other.read() == []
    edge.renew()
    edge.turn()
    assert [copy.payload for copy in publishes(session)] == [b"2"]
    assert len(said(other, Puback)) == 1
