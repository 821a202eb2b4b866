"""Messages that other nodes forward to this edge."""

from typing import Any

import pytest

from tests.clients.packets import publish
from tests.edge.loop.harness import Broker, Node, forwarded
from wire.messages.batches import (
    OriginKind,
    PublishMessage,
    PublishRun,
    encode_message,
    encode_run,
)
from wire.messages.frames import FrameKind


def test_forwarded_messages_go_to_local_subscribers_only(hot: Any) -> None:
    broker, edge = forwarded(hot)
    four, five = broker.subscriber(b"t", 2), broker.subscriber(b"t", 1, 5, 4)
    run = publish(b"t", b"a", version=5, properties=b"\x01\x01") * 2
    message = PublishMessage(77, b"t", b"m", 2, properties=b"\x03\x00\x01x", version=5, expiry_s=9)
    payload = encode_run(PublishRun(5, b"t", run)) + encode_message(message)
    edge.send(FrameKind.PUBLISH, payload)
    assert broker.take(four) == [publish(b"t", b"a")] * 2 + [publish(b"t", b"m", 2, 1)]
    assert broker.take(five) == [publish(b"t", b"a", version=5, properties=b"\x01\x01\x0b\x04")] * 2 + [
        publish(b"t", b"m", 1, 1, 5, b"\x02\x00\x00\x00\x09\x03\x00\x01x\x0b\x04")
    ]
    assert edge.records() == []
    assert broker.hot.counters()["forwarded_in"] == 3


def test_repeated_wills_are_dropped(hot: Any) -> None:
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    sub = broker.subscriber(b"w")
    will = PublishMessage(0, b"w", b"", 0, origin_kind=OriginKind.WILL, origin_a=1, origin_b=2)
    edge.send(FrameKind.PUBLISH, encode_message(will) * 2)
    assert len(broker.take(sub)) == 1


def test_repeated_will_is_detected_after_thousands_of_other_partitions(hot: Any) -> None:
    """Each partition has its own window, for every epoch and edge of its wills."""
    broker = Broker(hot)
    one, other = Node(broker, 2, "edge"), Node(broker, 3, "edge")
    sub = broker.subscriber(b"w")

    def sent(edge: Node, partition: int, epoch: int, numbers: range) -> int:
        wills = [
            PublishMessage(0, b"w", b"", 0, origin_kind=OriginKind.WILL, origin_a=partition << 32 | epoch, origin_b=n)
            for n in numbers
        ]
        edge.send(FrameKind.PUBLISH, b"".join(encode_message(will) for will in wills))
        return len(broker.take(sub))

    assert sent(one, 1, 1, range(500, 508)) == 8
    assert sent(one, 2, 1, range(1, 5_001)) == 5_000
    assert sent(other, 1, 2, range(500, 510)) == 2
    assert sent(other, 1, 2, range(490, 500)) == 10  # those that another edge published before
    assert sent(other, 1, 2, range(490, 510)) == 0


def test_origins_of_recent_publishers_are_kept(hot: Any) -> None:
    """The longest idle publisher is evicted and counted."""
    broker = Broker(hot, session_origins_max=3)
    edge = Node(broker, 2, "edge")
    sub = broker.subscriber(b"w", 2)

    def sent(session: int, counter: int) -> int:
        message = PublishMessage(7, b"w", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=session, origin_b=counter)
        edge.send(FrameKind.PUBLISH, encode_message(message))
        return len(broker.take(sub))

    assert [sent(1, 1), sent(2, 1), sent(3, 1), sent(1, 2), sent(4, 1)] == [1] * 5
    assert [sent(1, 1), sent(1, 2), sent(3, 1)] == [0] * 3
    assert broker.hot.counters()["origins_forgotten"] == 1


def test_message_repeated_through_another_edge_is_dropped(hot: Any) -> None:
    """A durable publisher repeats QoS 2 through another edge: our subscribers receive only the first one."""
    broker = Broker(hot)
    one, other = Node(broker, 2, "edge"), Node(broker, 3, "edge")
    sub = broker.subscriber(b"w", 2)

    def sent(edge: Node, counter: int, share: bytes = b"") -> int:
        message = PublishMessage(7, b"w", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=9, origin_b=counter)
        message.share = share
        edge.send(FrameKind.PUBLISH, encode_message(message))
        return len(broker.take(sub))

    assert [sent(one, 1), sent(other, 1), sent(other, 2), sent(one, 1), sent(one, 2)] == [1, 0, 1, 0, 0]
    assert [sent(one, 6), sent(other, 5), sent(one, 5), sent(other, 6)] == [1, 1, 0, 0]
    broker.handler.picked = lambda *_: hot.state.Sub(sub, 2)  # type: ignore[method-assign]
    assert [sent(one, 4, b"g/w"), sent(other, 4, b"g/w"), sent(other, 3, b"g/w")] == [1, 0, 1]  # picks in any order


@pytest.mark.parametrize("cut", range(0, 90, 7))
def test_malformed_frames_close_only_the_link(hot: Any, cut: int) -> None:
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    payload = encode_run(PublishRun(4, b"t", publish(b"t", b"a"))) + encode_message(PublishMessage(1, b"t", b"m", 1))
    whole = (0, len(encode_run(PublishRun(4, b"t", publish(b"t", b"a")))), len(payload))
    edge.send(FrameKind.PUBLISH, payload[:cut])
    assert edge.conn.closed == (min(cut, len(payload)) not in whole)


@pytest.mark.parametrize("flag", [0x10, 0x20, 0x40, 0x80])
def test_message_with_owner_ends_the_link_to_an_edge(hot: Any, flag: int) -> None:
    broker, edge = forwarded(hot)
    sub = broker.subscriber(b"t")
    record = bytearray(encode_message(PublishMessage(0, b"t", b"m", 0, owner=b"anna", owner_made=3)))
    record[2] = flag
    edge.send(FrameKind.PUBLISH, bytes(record))
    assert edge.conn.closed
    assert broker.take(sub) == []
