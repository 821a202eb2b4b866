"""Trace marks in the loop: events of marked messages and connections, and none of others."""

from typing import Any

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node, forwarded, stored
from wire.messages.batches import PublishMessage, Push, encode_message, encode_publish_ack, encode_push
from wire.messages.frames import FrameKind


class Sink:
    """Receives events like the edge."""

    payload_bytes = 2

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.payloads: list[bytes] = []

    def event(
        self,
        stage: str,
        context: object,
        topic: bytes,
        origin: tuple[int, int, int],
        identifier: int,
        qos: int,
        marked: bool,
        detail: object,
        payload: bytes,
    ) -> None:
        del context
        self.events.append((stage, topic, origin[2], identifier, qos, marked))
        self.payloads.append(payload)
        self.detail = detail

    def acked(
        self,
        context: object,
        topic: bytes,
        origin: tuple[int, int, int],
        identifier: int,
        packet_type: int,
        marked: bool,
        reason_code: int,
        session_seq: int,
    ) -> None:
        del context, reason_code
        self.events.append(("acked", topic, origin[2], identifier, packet_type, session_seq, marked))

    def stages(self) -> list[str]:
        return [event[0] for event in self.events]


def traced(broker: Broker, named: bytes = b"t") -> Sink:
    """Mark one topic; all others are unmarked."""
    sink = Sink()
    broker.hot.trace = sink
    install = broker.hot.install_route

    def miss(conn: Any, topic: bytes) -> None:
        extra = broker.handler.extra_route(topic) if broker.handler.extra_route is not None else {}
        route = broker.modules.state.Route(topic, broker.handler.subscribers(topic), **extra)
        route.traced = topic == named
        install(topic, route)
        broker.hot.resume(conn)

    broker.handler.miss = miss  # type: ignore[method-assign]
    return sink


def test_unmarked_messages_have_no_events(hot: Any) -> None:
    broker, edge = forwarded(hot)
    sub = broker.subscriber(b"#", 1)
    sink = traced(broker)
    pub = broker.client()
    broker.send(pub, publish(b"u", b"x") + publish(b"u", b"y", 1, 5))
    edge.take()
    edge.tell()
    broker.send(sub, ack(0x40, 1))
    assert sink.events == []


def test_local_message_has_events_from_receipt_to_both_acknowledgements(hot: Any) -> None:
    """Its events share an origin, and have the first bytes of its payload."""
    broker = Broker(hot)
    sub = broker.subscriber(b"#", 1)
    sink = traced(broker)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"payload", 1, 5))
    broker.send(sub, ack(0x40, 1))
    broker.send(sub, ack(0x40, 1))  # not reported again
    assert sink.stages() == ["received", "written", "acknowledged", "acked"]
    assert len({event[2] for event in sink.events}) == 1 and sink.events[0][2] > 0
    assert sink.events[0][3:5] == (5, 1)
    assert set(sink.payloads) == {b"pa"}


def test_marked_topic_splits_runs(hot: Any) -> None:
    """QoS 0 of a marked topic is sent message by message, each with an origin; all arrive in order."""
    broker = Broker(hot)
    sub = broker.subscriber(b"#")
    sink = traced(broker)
    pub = broker.client()
    both = publish(b"u", b"1") + publish(b"t", b"2") + publish(b"t", b"3") + publish(b"u", b"4")
    broker.send(pub, both)
    assert broker.raw(sub) == both
    assert sink.stages() == ["received", "written"] * 2
    assert len({event[2] for event in sink.events}) == 2


def test_mark_is_forwarded_to_other_nodes(hot: Any) -> None:
    """The record has a flag and its origin; an edge decodes them."""
    broker, edge = forwarded(hot)
    sink = traced(broker)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 9))
    (record,) = edge.records()
    assert record.traced and record.origin_b == sink.events[0][2] == record.tag
    edge.tell()
    assert sink.stages() == ["received", "forwarded", "acknowledged"]
    broker.send(pub, publish(b"t", b"b"))
    (record,) = edge.records()
    assert record.traced and record.qos == 0 and record.tag == 0 and record.origin_b > 0
    broker.send(pub, publish(b"u", b"b", 1, 10))
    assert not edge.records()[0].traced


def test_forwarded_marked_message_has_events(hot: Any) -> None:
    broker = Broker(hot)
    other = Node(broker, 2, "edge")
    sub = broker.subscriber(b"#", 1)
    sink = traced(broker)
    marked = PublishMessage(5, b"t", b"a", 1, origin_a=3, origin_b=5, traced=True)
    other.send(FrameKind.PUBLISH, encode_message(marked))
    other.send(FrameKind.PUBLISH, encode_message(PublishMessage(6, b"t", b"b", 1, origin_a=3, origin_b=6)))
    broker.send(sub, ack(0x40, 1) + ack(0x40, 2))
    assert [(event[0], event[2]) for event in sink.events] == [("accepted", 5), ("written", 5), ("acked", 5)]


def test_refusal_and_drop_have_events(hot: Any) -> None:
    """Without a subscriber; without a lease, which QoS 0 does not wait for."""
    broker = Broker(hot)
    sink = traced(broker)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 9))
    assert sink.stages() == ["received", "refused"]
    broker, _ = stored(hot)
    sink = traced(broker)
    pub = broker.client()
    broker.hot.set_lease(0)
    broker.send(pub, publish(b"t", b"a"))
    assert sink.stages() == ["received", "forwarded", "dropped"]


def test_pending_copy_has_queued_and_written_events(hot: Any) -> None:
    broker = Broker(hot)
    sub = broker.subscriber(b"#", 1)
    sink = traced(broker)
    pub = broker.client()
    window = sub.window
    for number in range(window):
        broker.send(pub, publish(b"u", b"x", 1, 1 + number))
    broker.send(pub, publish(b"t", b"x", 1, 1 + window))
    assert sink.stages() == ["received", "queued", "acknowledged"]
    broker.send(sub, ack(0x40, 1))
    broker.send(sub, b"".join(ack(0x40, 2 + number) for number in range(window)))
    assert sink.stages() == ["received", "queued", "acknowledged", "written", "acked"]
    assert len({event[2] for event in sink.events}) == 1


def test_marked_connection_has_events_of_both_directions(hot: Any) -> None:
    """A run to it is sent packet by packet, in the same bytes; others receive it unchanged."""
    broker = Broker(hot)
    sub, other = broker.subscriber(b"#"), broker.subscriber(b"#")
    sink = traced(broker, b"none")
    sub.traced = True
    pub = broker.client()
    both = publish(b"u", b"1") + publish(b"u", b"2")
    broker.send(pub, both)
    assert broker.raw(sub) == broker.raw(other) == both
    assert sink.stages() == ["written", "written"] and not sink.events[0][5]
    sub.traced = False
    pub.traced = True
    broker.send(pub, publish(b"u", b"3", 1, 4))
    assert sink.stages()[2:] == ["received", "written", "written", "acknowledged"]


def test_marked_push_event_has_its_entry(hot: Any) -> None:
    broker, store = stored(hot)
    sink = traced(broker)
    conn = broker.attach()
    session = 5 << 48 | 3
    options = broker.modules.options.SessionOptions(4, session=session, owner_epoch=9)
    broker.hot.open_session(conn, options)
    broker.hot.set_primary_of(conn, store.peer)
    for seq, marked in ((1, True), (2, False)):
        push = Push(session, 9, 1, seq, seq, 1, b"t", b"a", traced=marked)
        store.send(FrameKind.PUSH, encode_push(push))
    broker.send(conn, ack(0x40, 1) + ack(0x40, 2))
    assert sink.events == [("written", b"t", 0, 1, 1, True), ("acked", b"t", 0, 1, 4, 1, True)]


def test_refused_destination_has_event_at_its_publisher(hot: Any) -> None:
    broker, store = stored(hot)
    sink = traced(broker)
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 9, 5))
    (record,) = store.records()
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, 0x97))
    assert sink.stages() == ["received", "forwarded", "refused"]
