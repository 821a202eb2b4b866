"""Retained messages of one connection are pipelined: docs/protocol.md rule 7.11."""

import pytest

from edge.publishing import pipelines
from edge.publishing.pipelines import Pipeline, Pipelines
from mqtt.packets import Disconnect, Puback
from tests.clients.packets import ack
from tests.edge.edge_harness import Edge, Session, with_clients
from tests.edge.retained_partitions import RetainedPartitions
from tests.edge.session_answers import DURABLE, publishes, said
from wire.messages.sessions import CloseSession, KickSession


def piped(*topics: str) -> tuple[Edge, Session, Session, RetainedPartitions]:
    """Return an edge, a subscriber of all topics, and a publisher that has sent these topics retained."""
    edge, session, publisher = with_clients()
    session.subscribe("#")
    session.read()
    stores = RetainedPartitions(edge)
    for identifier, topic in enumerate(topics, 1):
        publisher.publish(topic, topic.encode(), 1, identifier, retain=True)
    return edge, session, publisher, stores


def payloads(session: Session) -> list[bytes]:
    return [copy.payload for copy in publishes(session)]


def test_retained_messages_are_pipelined() -> None:
    """Each waited for the previous commit: 30 to 300 per second, and PUBLISH without RETAIN reaches 12 000."""
    edge, session, publisher, stores = piped("a", "b", "c")
    assert len(stores.waiting) == 3 and session.read() == publisher.read() == []
    for write in stores.waiting:
        write(0)
    edge.turn()
    assert payloads(session) == [b"a", b"b", b"c"]
    assert [packet.packet_identifier for packet in said(publisher, Puback)] == [1, 2, 3]


def test_retained_messages_are_sent_in_the_order_received() -> None:
    """Their partitions may answer in any order."""
    edge, session, publisher, stores = piped("a", "b", "c")
    stores.waiting[2](0)
    stores.waiting[1](0)
    edge.turn()
    assert session.read() == publisher.read() == []
    stores.waiting[0](0)
    edge.turn()
    assert payloads(session) == [b"a", b"b", b"c"]
    assert [packet.packet_identifier for packet in said(publisher, Puback)] == [1, 2, 3]


def test_refused_retained_message_is_answered_in_order() -> None:
    """It reaches no subscriber; the messages around it do."""
    edge, session, publisher, stores = piped("a", "b", "c")
    for write, code in zip(stores.waiting, (0, 0x97, 0), strict=True):
        write(code)
    edge.turn()
    assert payloads(session) == [b"a", b"c"]
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0, 0x97, 0]


def test_topic_has_one_retained_message_in_flight() -> None:
    """A subscriber could otherwise read the second write before the first one is sent live."""
    edge, session, publisher, stores = piped("a", "b", "a", "c")
    assert len(stores.waiting) == 2  # no message overtakes the waiting one, either
    stores.waiting[0](0)
    edge.turn()
    assert len(stores.waiting) == 2
    stores.waiting[1](0)
    edge.turn()
    assert len(stores.waiting) == 4
    for write in stores.waiting[2:]:
        write(0)
    edge.turn()
    assert payloads(session) == [b"a", b"b", b"a", b"c"]
    assert [packet.packet_identifier for packet in said(publisher, Puback)] == [1, 2, 3, 4]


def test_other_packets_do_not_overtake_retained_messages() -> None:
    """Not PUBLISH without RETAIN or at QoS 0, not SUBSCRIBE, not DISCONNECT; PINGREQ is answered."""
    edge, session, publisher, stores = piped("a")
    publisher.publish("b", b"plain")
    publisher.publish("c", b"qos 0", retain=True)
    publisher.publish("d", b"plain 1", 1, 7)
    publisher.subscribe("e")
    publisher.send(b"\xc0\0")
    assert [type(packet).__name__ for packet in publisher.read()] == ["Pingresp"] and session.read() == []
    assert len(stores.waiting) == 1
    publisher.send(Disconnect(0, {}))
    assert not publisher.closed
    stores.waiting[0](0)
    edge.turn()
    assert payloads(session) == [b"a", b"plain", b"plain 1"] and len(stores.waiting) == 2
    assert [type(packet).__name__ for packet in publisher.read()] == ["Puback", "Puback", "Suback"] and publisher.closed


def test_acknowledgements_are_processed_during_retained_writes() -> None:
    """A client that publishes and subscribes frees the windows of others."""
    _, session, publisher, stores = piped()
    publisher.subscribe("x", qos=1)
    publisher.read()
    session.publish("x", b"to acknowledge", 1, 1)
    (copy,) = publishes(publisher)
    publisher.publish("a", b"a", 1, 1, retain=True)
    outbound = publisher.client.conn.outbound
    assert outbound is not None and outbound.inflight == 1
    publisher.send(ack(0x40, copy.packet_identifier))
    assert outbound.inflight == 0 and stores.waiting


@pytest.mark.parametrize("properties", [{}, DURABLE])
def test_close_waits_for_retained_messages(properties: dict[int, object]) -> None:
    """Messages received before the client closed are sent live, and its will behind them."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", properties=properties)
    session.subscribe("#")
    session.read()
    stores = RetainedPartitions(edge)
    for topic in ("a", "b", "a"):
        publisher.publish(topic, topic.encode(), 1, 1, retain=True)
    publisher.drop()
    assert not any(isinstance(message, CloseSession) for message in edge.seen)
    for count in (2, 1):
        assert len(stores.waiting) == count and not publisher.closed
        writes, stores.waiting = stores.waiting, []
        for write in writes:
            write(0)
        edge.turn()
    edge.turn()
    assert publisher.closed and payloads(session) == [b"a", b"b", b"a"]
    assert any(isinstance(message, CloseSession) for message in edge.seen)


def test_takeover_discards_retained_messages() -> None:
    """The client of a durable session resends them elsewhere; unwritten ones are not written after it left."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", properties=DURABLE)
    session.subscribe("#")
    session.read()
    stores = RetainedPartitions(edge)
    for topic in ("a", "b", "a"):
        publisher.publish(topic, topic.encode(), 1, 1, retain=True)
    edge.storage(KickSession(7, "p", publisher.client.number, publisher.client.owner_epoch))
    assert publisher.closed
    for write in stores.waiting:
        write(0)
    edge.turn()
    assert session.read() == [] and len(stores.waiting) == 2


def test_pipelines_are_bounded_by_messages_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By messages per connection, and by bytes of all; above those each connection has one in flight."""
    monkeypatch.setattr(pipelines, "MESSAGES_MAX", 2)
    edge, _, publisher, stores = piped("a", "b", "c")
    assert len(stores.waiting) == 2
    for write in list(stores.waiting):
        write(0)
    edge.turn()
    assert len(stores.waiting) == 3
    monkeypatch.setattr(pipelines, "BYTES_MAX", 1)
    publisher.publish("d", b"d", 1, 4, retain=True)
    other = edge.client("q")
    other.publish("e", b"e", 1, 1, retain=True)
    assert len(stores.waiting) == 4  # the other connection's first one
    for write in stores.waiting[2:]:
        write(0)
    edge.turn()
    assert len(stores.waiting) == 5


class _Message:
    def __init__(self, name: str, size: int, copies: int = 1) -> None:
        self.name, self.size, self.copies, self.outcome = name, size, copies, -1


def test_pipeline_is_removed_with_its_last_message() -> None:
    """No state of a connection remains after its last message."""
    kept: Pipelines[_Message] = Pipelines()
    first, second = _Message("a", 3), _Message("b", 4)
    kept.join(1, first)
    pipeline = kept.of(1)
    assert isinstance(pipeline, Pipeline) and not kept.may_join(pipeline, _Message("a", 1))
    kept.join(1, second)
    assert kept.bytes == 7 and pipeline.take_outcome() is None
    second.outcome = 0
    assert pipeline.take_outcome() is None
    first.outcome = 0x10
    assert pipeline.take_outcome() == (first, 0x10) and pipeline.take_outcome() is None
    kept.leave(1, first)
    assert pipeline.take_outcome() == (second, 0)
    kept.leave(1, second)
    assert kept.bytes == 0 and kept.of(1) is None


def test_pipeline_is_bounded_by_bytes_and_copies() -> None:
    """An empty pipeline accepts a message of any size."""
    kept: Pipelines[_Message] = Pipelines()
    kept.join(1, _Message("a", 65_000, 1_990))
    pipeline = kept.of(1)
    assert pipeline is not None
    assert kept.may_join(pipeline, _Message("b", 536, 10))
    assert not kept.may_join(pipeline, _Message("b", 537, 10))
    assert not kept.may_join(pipeline, _Message("b", 536, 11))
    kept.join(2, _Message("a", 10_000_000, 1_000_000))
    assert kept.bytes == 10_065_000
