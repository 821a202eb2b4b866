"""Other nodes: batches, acknowledgements that wait for them, outboxes, the core's own messages."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import FOREVER, Broker, Node, forwarded, stored
from wire.messages.batches import (
    OriginKind,
    PublishMessage,
    PublishRun,
    decode_publish,
    encode_publish_ack,
    encode_run,
)
from wire.messages.frames import FrameKind


def stored_twice(hot: Any) -> tuple[Broker, Node, Node]:
    """Return a loop, and the storage nodes with partitions 5 and 6, which receive every topic."""
    broker, one = stored(hot)
    other = Node(broker, 4, "storage")
    broker.hot.set_primary(6, other.peer)
    broker.route_to(partitions=(5, 6))
    return broker, one, other


def test_run_is_forwarded_in_one_frame_per_iteration(hot: Any) -> None:
    broker, edge = forwarded(hot)
    pub = broker.client()
    data = publish(b"t", b"a") + publish(b"t", b"b")
    broker.send(pub, data + publish(b"u", b"c"))
    frames = edge.take()
    assert [kind for kind, _ in frames] == [FrameKind.PUBLISH]
    assert list(decode_publish(frames[0][1])) == [PublishRun(4, b"t", data), PublishRun(4, b"u", publish(b"u", b"c"))]
    assert frames[0][1] == encode_run(PublishRun(4, b"t", data)) + encode_run(PublishRun(4, b"u", publish(b"u", b"c")))


@pytest.mark.parametrize("qos", [1, 2])
def test_edge_acknowledges_by_taken(hot: Any, qos: int) -> None:
    broker = Broker(hot)
    edges = Node(broker, 2, "edge"), Node(broker, 3, "edge")
    broker.route_to(edges=tuple(e.peer for e in edges))
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", qos, 9, 5, b"\x02\x00\x00\x00\x07\x01\x01"))
    assert broker.take(pub) == []
    records = [e.records() for e in edges]
    tag = records[0][0].tag
    expected = PublishMessage(
        tag, b"t", b"a", qos, properties=b"\x01\x01", version=5, expiry_s=7, origin_a=7, origin_b=tag
    )
    assert records == [[expected], [expected]]
    edges[0].tell()
    assert broker.take(pub) == []
    edges[1].tell()
    assert broker.take(pub) == [ack(0x40 if qos == 1 else 0x50, 9)]


def test_retired_edge_finishes_its_messages(hot: Any) -> None:
    broker, edge = forwarded(hot)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 9))
    broker.hot.retire_peer(edge.peer)
    assert broker.take(pub) == [ack(0x40, 9)]
    broker.send(pub, publish(b"t", b"a", 1, 10))
    assert broker.take(pub) == [ack(0x40, 10)]
    assert edge.conn.closed


def test_acknowledgements_keep_the_order_of_publishing(hot: Any) -> None:
    """[MQTT-4.6.0-2]: a later finished message waits for an earlier unfinished one."""
    broker = Broker(hot)
    edge, store = Node(broker, 2, "edge"), Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    routes: dict[bytes, dict[str, Any]] = {b"e": {"edges": (edge.peer,)}, b"p": {"partitions": (5,)}, b"l": {}}
    broker.handler.extra_route = routes.__getitem__
    pub = broker.client(5)
    data = [publish(topic, b"", 1, i, 5) for i, topic in enumerate((b"p", b"e", b"l", b"p"), 1)]
    broker.send(pub, b"".join(data))
    edge.take()
    edge.tell()
    assert broker.take(pub) == []
    tags = [r.tag for r in store.records()]
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tags[0], 5, 0))
    assert broker.take(pub) == [ack(0x40, 1), ack(0x40, 2), ack(0x40, 3, 0x10)]
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tags[1], 5, 0x97))
    assert broker.take(pub) == [ack(0x40, 4, 0x97)]
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tags[1], 5, 0))
    assert broker.hot.counters()["acks_unknown"] == 1


def test_late_acknowledgement_of_former_incarnation_is_ignored(hot: Any) -> None:
    """It was committed late: the acknowledgement arrives on the next incarnation's link, before its own message."""
    tags = []
    for incarnation in (7, 8):
        broker = Broker(hot, incarnation)
        store = Node(broker, 3, "storage")
        broker.hot.set_primary(5, store.peer)
        broker.route_to(partitions=(5,))
        pub = broker.client(5)
        broker.send(pub, publish(b"t", b"", 1, 1, 5))
        tags += [record.tag for record in store.records()]
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tags[0], 5, 0))
    assert broker.take(pub) == []
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tags[1], 5, 0))
    assert broker.take(pub) == [ack(0x40, 1)]


def test_v3_gets_no_acknowledgement_for_a_refused_message(hot: Any) -> None:
    broker, store = stored(hot)
    pub = broker.client(4)
    broker.send(pub, publish(b"p", b"", 2, 1) + publish(b"p", b"", 1, 2))
    tags = [r.tag for r in store.records()]
    acks = b"".join(encode_publish_ack(tag, 5, code) for tag, code in zip(tags, (0x97, 0), strict=True))
    store.send(FrameKind.PUBLISH_ACK, acks)
    assert broker.take(pub) == [ack(0x40, 2)]
    broker.send(pub, publish(b"p", b"", 2, 1, dup=True))
    assert len(store.records()) == 1  # a retry


def test_v3_client_is_closed_when_a_disk_is_full(hot: Any) -> None:
    """Later messages must not overtake the refused one, which the client repeats on its next connection."""
    broker, store = stored(hot)
    pub = broker.client(4)
    broker.send(pub, publish(b"p", b"", 2, 1))
    (record,) = store.records()
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, 0x89))
    assert broker.handler.errors == [(pub, 0x97)]


def test_full_disk_at_one_of_two_partitions_closes_at_once(hot: Any) -> None:
    """The other partition may answer late: a later message would be newer than the repeated one."""
    broker, one, _ = stored_twice(hot)
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 2, 3, 5))
    (record,) = one.records()
    one.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, 0x89))
    assert broker.handler.errors == [(pub, 0x97)]


def test_one_record_per_primary_names_its_partitions(hot: Any) -> None:
    broker = Broker(hot)
    stores = Node(broker, 3, "storage"), Node(broker, 4, "storage")
    for partition, store in ((1, 0), (2, 1), (3, 0)):
        broker.hot.set_primary(partition, stores[store].peer)
    broker.route_to(partitions=(1, 2, 3))
    pub = broker.client()
    broker.send(pub, publish(b"p", b"x", 1, 1) + publish(b"p", b"y"))
    first, second = (store.records() for store in stores)
    assert [r.partitions for r in first] == [(1, 3), (1, 3)]
    assert [r.partitions for r in second] == [(2,), (2,)]
    tag = first[0].tag
    assert [(r.tag, r.qos) for r in first] == [(tag, 1), (0, 0)]
    for store, partition in ((0, 1), (1, 2)):
        stores[store].send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, partition, 0))
    assert broker.take(pub) == []
    assert broker.hot.lowest_tag(3) == tag
    assert broker.hot.lowest_tag(2) == tag + 1
    stores[0].send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, 3, 0))
    assert broker.take(pub) == [ack(0x40, 1)]
    assert broker.hot.counters()["outbox_bytes"] == 0


def test_outbox_is_replayed_in_order_to_the_new_primary(hot: Any) -> None:
    broker, old = stored(hot)
    new = Node(broker, 4, "storage")
    pub = broker.client(5)
    broker.send(pub, publish(b"p", b"1", 1, 1, 5, b"\x02\x00\x00\x00\x0a") + publish(b"p", b"2", 1, 2, 5))
    assert [r.payload for r in old.records()] == [b"1", b"2"]
    broker.hot.retire_peer(old.peer)
    broker.send(pub, publish(b"p", b"3", 1, 3, 5))
    broker.now_ns += 4_000_000_000
    broker.hot.begin_turn(broker.now_ns)
    assert broker.hot.replay_partition(5, new.peer) == 3
    broker.hot.feed(pub, publish(b"p", b"4", 1, 4, 5))
    broker.hot.end_turn(broker.now_ns)
    broker.turn()
    records = new.records()
    assert [r.payload for r in records] == [b"1", b"2", b"3", b"4"]
    assert records[0].expiry_s == 6
    for record in records:
        new.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, 0))
    assert [p[3] for p in broker.take(pub)] == [1, 2, 3, 4]
    broker.send(pub, publish(b"p", b"5", 1, 5, 5))
    assert [r.payload for r in new.records()] == [b"5"]


def test_full_link_parks_publishers_without_loss(hot: Any) -> None:
    broker, edge = forwarded(hot)
    pub = broker.client()
    packet = publish(b"t", bytes(1000))
    sent = 0
    while not pub.parked:
        broker.send(pub, packet * 60)
        sent += 60
        assert sent < 100_000
    got = 0
    for _ in range(200):
        got += sum(len(r.packets) // len(packet) for r in edge.records())
        edge.tell()
        broker.turn()
    assert not pub.parked
    assert got == sent
    assert 25_000_000 < sent * len(packet) < 35_000_000


@pytest.mark.parametrize("qos", [0, 1])
def test_unacknowledged_frames_to_storage_park_publishers_early(hot: Any, qos: int) -> None:
    """For every QoS; no message is dropped, and its other clients wait behind at most 256 KiB."""
    broker, store = stored(hot)
    packet = publish(b"t", bytes(1000), qos, 1)
    sent = 0
    pub = broker.client()
    while not pub.parked:
        pub = broker.client()
        broker.send(pub, packet * 10)
        sent += 10
        assert sent < 100_000
    assert 240_000 < sent * len(packet) < 330_000
    assert take_all(broker, store, sent) == sent and not pub.parked
    broker.send(pub, packet)
    assert len(store.records()) == 1


def take_all(broker: Broker, store: Node, sent: int) -> int:
    got = 0
    while got < sent:
        records = store.records()
        assert records
        got += len(records)
        store.tell()
        broker.turn()
    return got


def test_retained_qos0_messages_park_their_publisher(hot: Any) -> None:
    """No Route names their partition: 200 000 messages of one client delayed all CONNECTs by 20 s."""
    broker, store = stored(hot)
    broker.route_to()

    def inbound(conn: Any, publish: Any, route: Any) -> None:
        broker.hot.publish(route, publish, 5)
        broker.hot.resume(conn)

    broker.handler.inbound = inbound  # type: ignore[method-assign]
    packet = publish(b"t", bytes(1000), retain=True)
    pub, sent = broker.client(), 0
    while not pub.parked:
        broker.send(pub, packet)
        sent += 1
        assert sent < 5_000
    assert 240_000 < sent * len(packet) < 330_000
    broker.send(pub, packet * 3)
    assert take_all(broker, store, sent + 3) == sent + 3 and not pub.parked


def test_reconnected_link_resends_unacknowledged_frames(hot: Any) -> None:
    broker, edge = forwarded(hot)
    pub = broker.client()
    broker.send(pub, publish(b"t", b"1", 1, 1))
    broker.hot.end_of_file(edge.conn)
    edge.link.disconnected()
    broker.turn()
    broker.send(pub, publish(b"t", b"2", 1, 2))
    edge.link.connected(0)
    edge.connect()
    assert [r.payload for r in edge.records()] == [b"1", b"2"]
    edge.tell()
    assert broker.take(pub) == [ack(0x40, 1), ack(0x40, 2)]


@pytest.mark.parametrize("tier", ["edge", "storage", "router"])
def test_taken_is_sent_at_once_only_to_edges(hot: Any, tier: str) -> None:
    """Other nodes receive it with the next frame, unless they buffer much until then."""
    node = Node(Broker(hot), 2, tier)
    node.broker.handler.frame = lambda *_: None  # type: ignore[method-assign]
    node.broker.hot.dirty_conns()
    node.send(FrameKind.CONTROL, b"answer")
    assert node.broker.hot.dirty_conns() == ([node.conn] if tier == "edge" else [])
    node.send(FrameKind.CONTROL, bytes(64 * 1024))
    assert node.broker.hot.dirty_conns() == [node.conn]
    node.take()
    assert node.link.peer_taken == 2


def test_refusal_after_a_delivery_closes_instead_of_failing(hot: Any) -> None:
    """A failing PUBACK would deny the delivery; if a destination has the message, the connection ends instead."""
    broker, one, other = stored_twice(hot)
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 3, 5))
    (first,), (second,) = one.records(), other.records()
    one.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0))
    other.send(FrameKind.PUBLISH_ACK, encode_publish_ack(second.tag, 6, 0x89))
    assert broker.take(pub) == [b"\xe0\x01\x97"]
    assert broker.handler.errors == [(pub, 0x97)]


def test_refusal_of_former_primary_is_left_to_its_successor(hot: Any) -> None:
    """Its publisher received a failure, while the next primary, with free space, accepted the message."""
    broker, former = stored(hot)
    successor = Node(broker, 4, "storage")
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 3, 5))
    (first,) = former.records()
    broker.hot.set_primary(5, None)
    former.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0x89))
    assert broker.take(pub) == []
    assert broker.hot.replay_partition(5, successor.peer) == 1
    broker.turn()
    (again,) = successor.records()
    assert again.tag == first.tag
    former.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0x89))
    assert broker.take(pub) == []
    successor.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0))
    assert broker.take(pub) == [ack(0x40, 3)]


def test_new_epoch_replays_unacknowledged_messages_to_the_same_primary(hot: Any) -> None:
    """It drops, without an answer, messages for its earlier epoch."""
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_epoch(5, 8)
    broker.hot.set_primary(5, store.peer)
    broker.route_to(partitions=(5,))
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 1) + publish(b"t", b"b", 1, 2))
    first, second = store.records()
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0))
    broker.hot.set_epoch(5, 10)
    broker.hot.set_primary(5, store.peer)
    assert broker.hot.replay_partition(5, store.peer) == 1
    broker.turn()
    (again,) = store.records()
    assert (again.tag, again.epochs) == (second.tag, (10,))


def test_fenced_node_parks_acknowledged_publishing_and_keeps_qos0_local(hot: Any) -> None:
    broker, edge = forwarded(hot)
    sub = broker.subscriber(b"t", 1)
    pub, held = broker.client(), broker.client()
    broker.send(held, publish(b"t", b"h", 1, 1))
    broker.take(sub)
    edge.take()
    broker.hot.set_lease(broker.now_ns - 1)
    edge.tell()
    assert broker.take(held) == []
    broker.send(pub, publish(b"t", b"0") + publish(b"t", b"1", 1, 1))
    assert broker.take(sub) == [publish(b"t", b"0")]
    assert edge.records() == []
    assert pub.parked
    broker.hot.set_lease(FOREVER)
    broker.hot.resume(pub)
    broker.turn()
    assert broker.take(held) == [ack(0x40, 1)]
    assert broker.take(sub) == [publish(b"t", b"1", 1, 2)]
    assert [r.payload for r in edge.records()] == [b"1"]


def test_deferred_acknowledgement_keeps_its_order(hot: Any) -> None:
    """The core decides when a failure is sent; later messages are answered behind it."""
    broker, store = stored(hot)
    pub = broker.client(5)
    broker.handler.inbound = lambda _, inbound, _route: broker.handler.inbounds.append(inbound)  # type: ignore[method-assign, assignment]
    broker.send(pub, publish(b"t", b"a", 2, 1, 5, retain=True))
    (inbound,) = broker.handler.inbounds
    codes: list[int] = []

    def keep_back(code: int) -> bool:
        codes.append(code)
        return True

    broker.hot.publish(broker.hot.route(b"t"), inbound, on_done=keep_back)
    broker.hot.resume(pub)
    broker.send(pub, publish(b"t", b"b", 1, 2, 5))
    first, second = store.records()
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(first.tag, 5, 0x97) + encode_publish_ack(second.tag, 5, 0))
    assert codes == [0x97]
    assert broker.take(pub) == []
    broker.hot.acknowledge(inbound, 0x97)
    broker.turn()
    assert codes == [0x97]
    assert broker.take(pub) == [ack(0x50, 1, 0x97), ack(0x40, 2)]


def test_publish_of_the_core_reports_when_done(hot: Any) -> None:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_epoch(5, 8)
    broker.hot.set_primary(5, store.peer)
    sub = broker.subscriber(b"w")
    done: list[int] = []
    route = hot.state.Route(b"w", broker.handler.subscribers(b"w"))
    will = hot.state.InboundPublish(b"w", b"gone", 1, retain=True, properties=b"\x01\x01")
    broker.hot.publish(
        route, will, retained_partition=5, origin_kind=OriginKind.WILL, origin_a=3, origin_b=4, on_done=done.append
    )
    broker.turn()
    assert broker.take(sub) == [publish(b"w", b"gone")]
    (record,) = store.records()
    tag = record.tag
    assert record == PublishMessage(
        tag,
        b"w",
        b"gone",
        1,
        True,
        properties=b"\x01\x01",
        origin_kind=2,
        origin_a=3,
        origin_b=4,
        partitions=(5,),
        epochs=(8,),
    )
    assert done == []
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, 5, 0))
    assert done == [0]


def test_message_published_late_is_numbered_at_publishing(hot: Any) -> None:
    """A partition treats a number below an accepted one as a repeat: the message was acknowledged and lost."""
    broker, store = stored(hot)
    slow, quick = broker.client(), broker.client()

    def wait(conn: Any, publish: Any, route: Any) -> None:  # noqa: ARG001
        broker.handler.inbounds.append(publish)

    broker.handler.inbound = wait  # type: ignore[method-assign]
    broker.send(slow, publish(b"t", b"retained", 1, 1, retain=True))
    (inbound,) = broker.handler.inbounds
    broker.send(quick, publish(b"t", b"passes", 1, 1))
    broker.hot.publish(hot.state.Route(b"t", partitions=(5,)), inbound)
    broker.turn()
    records = store.records()
    assert [record.payload for record in records] == [b"passes", b"retained"]
    assert records[0].tag < records[1].tag
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(records[1].tag, 5, 0))
    assert broker.take(slow) == [ack(0x40, 1)]


@pytest.mark.parametrize("partition", [-1, 256, 1 << 20])
def test_partition_outside_the_cluster_is_an_error_not_a_wild_pointer(hot: Any, partition: int) -> None:
    broker = Broker(hot)
    pub = broker.client()
    broker.route_to(partitions=(partition,))
    with pytest.raises(ValueError, match="partition"):
        broker.send(pub, publish(b"t", b"", 1, 1))
