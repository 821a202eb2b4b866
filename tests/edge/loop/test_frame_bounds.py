"""Pending messages for another node become frames within its link's limit, whatever their number."""

from typing import Any

import pytest

from tests.edge.loop.harness import FOREVER, Broker, Node
from wire.messages.batches import PublishMessage, decode_publish, encode_message
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind

KIB, MIB = 1024, 1024 * 1024


def publish_from_core(broker: Broker, peer: Any, payload: bytes, done: list[int]) -> None:
    route = broker.hot.route(b"t") or broker.modules.state.Route(b"t", edges=(peer,))
    broker.hot.publish(route, broker.modules.state.InboundPublish(b"t", payload, 1), on_done=done.append)


def frames_of(edge: Node) -> list[list[bytes]]:
    """Return the payloads of each frame."""
    found: list[list[bytes]] = []
    while frames := edge.take():
        for kind, payload in frames:
            assert kind == FrameKind.PUBLISH
            assert len(payload) <= FRAME_BYTES_MAX
            found.append([record.payload for record in decode_publish(payload) if isinstance(record, PublishMessage)])
    return found


def test_long_message_behind_full_batch_starts_next_frame(hot: Any) -> None:
    """Both were one frame of more than 8 MiB, which the link refuses: the edge ended."""
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    done: list[int] = []
    payloads = [b"a" * (MIB - 4 * KIB), b"b" * (8 * MIB - 512 * KIB), b"c"]
    broker.hot.begin_turn(broker.now_ns)
    for payload in payloads:
        publish_from_core(broker, edge.peer, payload, done)
    broker.hot.end_turn(broker.now_ns)
    assert frames_of(edge) == [payloads[:1], payloads[1:2], payloads[2:]]
    assert done == []
    edge.tell()
    assert done == [0, 0, 0]


def test_messages_held_without_lease_are_sent_in_frames_after_renewal(hot: Any) -> None:
    """It was one frame of all messages that the core published meanwhile; the edge sends none before the lease."""
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    broker.handler.frame = lambda *_: None  # type: ignore[method-assign]
    broker.hot.set_lease(broker.now_ns - 1)
    done: list[int] = []
    payloads = [bytes([number]) * (MIB - KIB) for number in range(20)]
    for payload in payloads:
        publish_from_core(broker, edge.peer, payload, done)
        broker.turn()
    edge.send(FrameKind.CONTROL, b"")  # the link's free capacity is checked
    assert frames_of(edge) == []
    broker.hot.set_lease(FOREVER)
    broker.turn()
    frames = frames_of(edge)
    assert [payload for frame in frames for payload in frame] == payloads
    assert done == []
    edge.tell()
    assert done == [0] * 20


def test_acknowledgements_held_without_lease_are_sent_in_frames(hot: Any) -> None:
    """A fenced edge sends nothing and continues reading: its acknowledgements for shared picks accumulate."""
    if not hot.compiled:
        pytest.skip("100 000 messages: compiled only")
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    broker.handler.picked = lambda *_: None  # type: ignore[method-assign]
    broker.hot.set_lease(broker.now_ns - 1)
    for first in range(0, 100_000, 25_000):
        picks = [encode_message(PublishMessage(first + tag, b"t", b"", 1, share=b"g/t")) for tag in range(1, 25_001)]
        edge.send(FrameKind.PUBLISH, b"".join(picks))
    assert edge.take() == []
    broker.hot.set_lease(FOREVER)
    broker.turn()
    frames = []
    while more := edge.take():
        frames += more
    assert {kind for kind, _ in frames} == {FrameKind.PUBLISH_ACK}
    acks = b"".join(payload for _, payload in frames)
    assert [int.from_bytes(acks[at : at + 8], "big") for at in range(0, len(acks), 11)] == list(range(1, 100_001))
    assert all(len(payload) <= MIB and len(payload) % 11 == 0 for _, payload in frames)
