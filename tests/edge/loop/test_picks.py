"""Shared picks between nodes: acknowledged, refused, numbered when they are sent."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import (
    PublishMessage,
    encode_message,
    encode_publish_ack,
)
from wire.messages.frames import FrameKind


def test_shared_pick_is_acknowledged_by_its_edge_and_refusable(hot: Any) -> None:
    broker = Broker(hot)
    edges = Node(broker, 2, "edge"), Node(broker, 3, "edge")
    group = hot.state.ShareGroup()
    broker.route_to(groups=(group,))
    picks = [hot.state.Remote(edges[0].peer, -1, b"g/t"), hot.state.Remote(edges[1].peer, -1, b"g/t")]
    broker.handler.pick = lambda *_: picks[0]  # type: ignore[method-assign]
    broker.handler.refused = lambda *_: picks[1]  # type: ignore[method-assign]
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 3, 5))
    (record,) = edges[0].records()
    assert record.share == b"g/t"
    edges[0].tell()
    assert broker.take(pub) == []
    edges[0].send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 0xFFFF, 0x97))
    (again,) = edges[1].records()
    assert (again.payload, again.share) == (b"a", b"g/t")
    edges[1].send(FrameKind.PUBLISH_ACK, encode_publish_ack(again.tag, 0xFFFF, 0))
    assert broker.take(pub) == [ack(0x40, 3)]


@pytest.mark.parametrize("dies", [False, True])
def test_redirected_shared_pick_is_renumbered(hot: Any, dies: bool) -> None:
    """The next partition has higher numbers from this edge: the old one counted as a repeat, acknowledged and lost."""
    broker = Broker(hot)
    edge, store = Node(broker, 2, "edge"), Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    group = hot.state.ShareGroup()
    broker.route_to(groups=(group,))
    first, second = hot.state.Remote(edge.peer, -1, b"g/t"), hot.state.Remote(None, 5, b"g/t")
    picks = iter([first, second])
    broker.handler.pick = lambda *_: next(picks)  # type: ignore[method-assign]
    broker.handler.refused = lambda *_: second  # type: ignore[method-assign]
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"goes on", 1, 3, 5) + publish(b"t", b"passes", 1, 4, 5))
    (record,) = edge.records()
    if dies:
        broker.hot.retire_peer(edge.peer)
    else:
        edge.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 0xFFFF, 0x8F))
    broker.turn()
    records = store.records()
    assert [again.payload for again in records] == [b"passes", b"goes on"]
    assert records[0].tag < records[1].tag == records[1].origin_b
    for again in records:
        store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(again.tag, 5, 0))
    assert broker.take(pub) == [ack(0x40, 3), ack(0x40, 4)]


@pytest.mark.parametrize(("code", "answered"), [(0x89, 0x97), (0x97, 0x97), (0x8F, 0)])
def test_shared_pick_without_free_member_is_refused(hot: Any, code: int, answered: int) -> None:
    """A full member refuses the message; without a member it is dropped."""
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    broker.route_to(groups=(hot.state.ShareGroup(),))
    broker.handler.pick = lambda *_: hot.state.Remote(None, 5, b"g/t")  # type: ignore[method-assign]
    broker.handler.refused = lambda *_: None  # type: ignore[method-assign]
    pub = broker.client(5)
    broker.send(pub, publish(b"t", b"a", 1, 3, 5))
    (record,) = store.records()
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, code))
    assert broker.take(pub) == [ack(0x40, 3, answered) if answered else ack(0x40, 3)]


def test_shared_pick_that_a_partition_may_have_gets_no_failure(hot: Any) -> None:
    """The partition was too busy to check: another member receives the message, or no failure is sent."""
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    broker.route_to(groups=(hot.state.ShareGroup(),))
    broker.handler.pick = lambda *_: hot.state.Remote(None, 5, b"g/t")  # type: ignore[method-assign]
    choices = [hot.state.Remote(None, 5, b"g/t"), None, None]
    broker.handler.refused = lambda *_: choices.pop(0)  # type: ignore[method-assign]
    pub = broker.client(5)
    for identifier, code in ((3, 0), (4, 0x88)):
        broker.send(pub, publish(b"t", b"a", 1, identifier, 5))
        for answer in (0x88, code):
            for record in store.records():
                store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 5, answer))
    assert broker.take(pub) == [ack(0x40, 3), b"\xe0\x01\x97"]


def test_shared_pick_from_another_edge_is_delivered_or_refused(hot: Any) -> None:
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    member = broker.client()
    answers = iter([hot.state.Sub(member, 1), None])
    broker.handler.picked = lambda *_: next(answers)  # type: ignore[method-assign]
    for tag in (5, 6):
        edge.send(FrameKind.PUBLISH, encode_message(PublishMessage(tag, b"t", b"m", 1, share=b"g/t")))
    assert broker.take(member) == [publish(b"t", b"m", 1, 1)]
    assert edge.take() == [
        (FrameKind.PUBLISH_ACK, encode_publish_ack(5, 0xFFFF, 0)),
        (FrameKind.PUBLISH_ACK, encode_publish_ack(6, 0xFFFF, 0x8F)),
    ]


def test_shared_pick_and_ordinary_copy_at_one_partition(hot: Any) -> None:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    broker.route_to(partitions=(5,), groups=(hot.state.ShareGroup(),))
    broker.handler.pick = lambda *_: hot.state.Remote(None, 5, b"g/t")  # type: ignore[method-assign]
    pub = broker.client()
    broker.send(pub, publish(b"t", b"a", 1, 3))
    plain, shared = store.records()
    assert (plain.share, shared.share) == (b"", b"g/t")
    assert plain.tag != shared.tag
    for tag in (shared.tag, plain.tag):
        assert broker.take(pub) == []
        store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, 5, 0))
    assert broker.take(pub) == [ack(0x40, 3)]
