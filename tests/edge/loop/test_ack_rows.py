"""The loop's rows for the acknowledgement ledger: one per PUBACK or PUBREC, stored before these are sent."""

import json
from typing import Any

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import OriginKind, encode_publish_ack
from wire.messages.frames import FrameKind

OFFSET_NS = 500_000_000


class _Sink:
    """Records rows, and the publisher's output at that time."""

    def __init__(self, broker: Broker) -> None:
        self.requested: list[bytes] = []
        self.turns: list[list[list[int]]] = []
        broker.hot.ledger = self
        broker.hot.ledger_offset_ns = OFFSET_NS

    def route_text(self, route: Any) -> bytes:
        self.requested.append(route.topic)
        return b"".join(b",%d" % number for number in (99, *route.partitions))

    def take_rows(self, rows: bytes, count: int) -> None:
        assert rows.endswith(b",")
        self.turns.append(json.loads(b"[" + rows[:-1] + b"]"))
        assert len(self.turns[-1]) == count


def _with_storage(hot: Any, *partitions: int) -> tuple[Broker, Node, _Sink]:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    for partition in (*partitions, 6):
        broker.hot.set_primary(partition, store.peer)
    broker.route_to(partitions=partitions)
    return broker, store, _Sink(broker)


def test_ack_rows_are_flushed_per_iteration_and_route_text_is_requested_once(hot: Any) -> None:
    """A row has kind, incarnation, tag, QoS, UTC ms of arrival, and the route's text."""
    broker, store, sink = _with_storage(hot, 4, 5)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 1) + publish(b"t", b"b", 2, 2) + publish(b"u", b"c", 1, 3))
    arrival_ms = (broker.now_ns + OFFSET_NS) // 1_000_000
    tags = [record.tag for record in store.records()]
    broker.now_ns += 9_000_000
    store.send(FrameKind.PUBLISH_ACK, b"".join(encode_publish_ack(tag, 4, 0) for tag in tags))
    assert sink.turns == []
    store.send(FrameKind.PUBLISH_ACK, b"".join(encode_publish_ack(tag, 5, 0) for tag in tags))
    rows = [[0, 7, tag, qos, arrival_ms, 99, 4, 5] for tag, qos in zip(tags, (1, 2, 1), strict=True)]
    assert sink.turns == [rows]
    assert sink.requested == [b"t", b"u"]
    assert broker.take(pub) == [ack(0x40, 1), ack(0x50, 2), ack(0x40, 3)]


def test_ack_row_of_core_message_has_session_origin(hot: Any) -> None:
    """A message that the core publishes for a client has its session's origin, up to 64 bits."""
    broker, store, sink = _with_storage(hot, 4)
    pub = broker.client()
    broker.handler.inbound = lambda _, inbound, _route: broker.handler.inbounds.append(inbound)  # type: ignore[method-assign, assignment]
    huge = (1 << 64) - 1
    broker.send(pub, publish(b"t", b"a", 1, 1, retain=True))
    route = hot.state.Route(b"t", partitions=(4,))
    broker.hot.publish(
        route, broker.handler.inbounds.pop(), 6, origin_kind=OriginKind.SESSION, origin_a=huge, origin_b=10
    )
    broker.turn()
    (tag,) = {record.tag for record in store.records()}
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, 4, 0) + encode_publish_ack(tag, 6, 0))
    assert sink.turns == [[[1, huge, 10, 1, (broker.now_ns + OFFSET_NS) // 1_000_000, 99, 4, 6]]]


def test_ack_rows_exclude_refused_messages(hot: Any) -> None:
    """A refusal and an acknowledgement without destinations promise no delivery."""
    broker, store, sink = _with_storage(hot, 4)
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 1, 5))
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(store.records()[0].tag, 4, 0x97))
    broker.handler.inbound = lambda _, inbound, _route: broker.hot.acknowledge(inbound, 0)  # type: ignore[method-assign, assignment]
    broker.send(pub, publish(b"t", b"a", 1, 2, 5, retain=True))
    assert broker.take(pub) == [ack(0x40, 1, 0x97), ack(0x40, 2)]
    assert sink.turns == []


def test_ack_row_of_live_copy_has_origin_of_retained_copy(hot: Any) -> None:
    """The message was retained before: one origin, and the row includes the retained partition."""
    broker, store, sink = _with_storage(hot, 4)
    pub = broker.client()
    broker.handler.inbound = lambda _, inbound, _route: broker.handler.inbounds.append(inbound)  # type: ignore[method-assign, assignment]
    broker.send(pub, publish(b"t", b"a", 1, 1, retain=True))
    tag = broker.hot.publish(hot.state.Route(b"t"), hot.state.InboundPublish(b"t", b"a", 1, retain=True), 6)
    live = hot.state.Route(b"t", partitions=(4,))
    broker.hot.publish(live, broker.handler.inbounds.pop(), written=(tag, 6))
    broker.turn()
    tags = [record.tag for record in store.records()]
    acks = [encode_publish_ack(number, partition, 0) for number, partition in zip(tags, (6, 4), strict=True)]
    store.send(FrameKind.PUBLISH_ACK, b"".join(acks))
    assert sink.turns == [[[0, 7, tag, 1, (broker.now_ns + OFFSET_NS) // 1_000_000, 99, 4, 6]]]
    assert broker.take(pub) == [ack(0x40, 1)]
