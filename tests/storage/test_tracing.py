"""Traces at a storage node: events of marked messages, of traced sessions and of an origin, and no others."""

from typing import Any

import pytest

from storage.state import tracing
from storage.state.settings import PartitionSettings
from storage.state.tracing import Tracing
from tests.storage.compiled_forms import FORMS, load
from tests.storage.test_fast_path import INCARNATION, PARTITION, SESSION, Scene
from wire.messages.batches import PublishMessage, PushAck, encode_message, encode_push_ack
from wire.messages.cluster_map import ClusterMap
from wire.messages.orders import TraceOrder
from wire.queries.source import RowScan


class Traced(Scene):
    """A partition of a node with a trace."""

    def __init__(self, form: str, kind: str, pattern: str, settings: PartitionSettings | None = None) -> None:
        super().__init__(load(form), settings or PartitionSettings())
        self.tracing = Tracing("s1", lambda: ClusterMap(""), self.fast_path.forget_routes)
        self.partition.tracing = self.tracing
        self.tag = 10
        self.begin("t", kind, pattern)

    def begin(self, name: str, kind: str, pattern: str) -> None:
        self.tracing.desk.begin(TraceOrder(name, kind, pattern), self.partition.now)

    def send(self, topic: bytes, qos: int = 1, *, traced: bool = True) -> int:
        self.tag += 1
        message = PublishMessage(
            self.tag if qos else 0,
            topic,
            b"payload",
            qos,
            origin_a=INCARNATION,
            origin_b=self.tag,
            partitions=(PARTITION,),
            epochs=(4,),
            traced=traced,
        )
        self.publish(encode_message(message))
        return self.tag

    def traced(self, name: str = "t") -> list[tuple[Any, ...]]:
        source = self.tracing.desk.sources()["trace"]
        columns = source.columns
        ask = RowScan({"trace": name}, "", frozenset(), "operator", 1_000, 0.0)
        return [
            tuple(columns[column](thing) for column in ("stage", "client_id", "seq", "origin"))
            for _, thing in source.walk(ask)
        ]


@pytest.mark.parametrize("form", FORMS)
def test_marked_message_is_traced_until_acknowledged(form: str) -> None:
    """Queued and pushed with the operation, committed and acknowledged; the same rows and pushes as without a mark."""
    scene, plain = Traced(form, "topic", "a"), Traced(form, "topic", "none")
    tag = scene.send(b"a")
    plain.send(b"a", traced=False)
    here, there = scene.end_turn(), plain.end_turn()
    (push,) = here[1]["e1"]
    assert push.traced and plain.ones == scene.ones == 0
    push.traced = False
    assert here == there
    scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
    origin = f"edge/{INCARNATION}/{tag}"
    assert [(stage, named) for stage, _, _, named in scene.traced()] == [
        (stage, origin) for stage in ("queued", "pushed", "committed", "acked")
    ]
    assert {client for _, client, _, _ in scene.traced()} == {"client 0", None}


@pytest.mark.parametrize("form", FORMS)
def test_unmarked_message_is_not_traced(form: str) -> None:
    """An unmarked message takes the fast path, and a mark has no effect without a trace."""
    scene = Traced(form, "topic", "a")
    scene.send(b"a", traced=False)
    assert scene.ones == 0 and scene.traced() == []
    scene.tracing.desk.stop("t", 0.0)
    scene.send(b"a")
    assert not scene.end_turn()[1]["e1"][-1].traced
    assert scene.traced() == []


@pytest.mark.parametrize("form", FORMS)
def test_traced_session_is_traced_without_marks(form: str) -> None:
    """Earlier entries are traced when they are sent again."""
    scene = Traced(form, "client", "client 0")
    scene.send(b"a", traced=False)
    scene.send(b"b/d", traced=False)
    (push,) = (push for push in scene.end_turn()[1]["e1"] if push.topic == b"a")
    assert push.traced
    scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
    assert [(stage, client) for stage, client, _, _ in scene.traced()] == [
        ("pushed", "client 0"),
        ("acked", "client 0"),
    ]
    scene.tracing.desk.stop("t", 0.0)
    ones = scene.ones
    scene.send(b"a", traced=False)
    assert scene.ones == ones


@pytest.mark.parametrize("kind", ["origin", "topic"])
@pytest.mark.parametrize("form", FORMS)
def test_queued_entry_is_traced_when_sent(form: str, kind: str) -> None:
    """Entries queued before the trace began, or by another primary, are found by their origin or topic."""
    scene = Traced(form, "topic", "none")
    scene.end_turn()
    tags = [scene.send(b"a", traced=False) for _ in range(5)]  # the window is three
    pushes = scene.end_turn()[1]["e1"]
    assert len(pushes) == 3
    scene.begin("o", kind, f"edge/{INCARNATION}/{tags[4]}" if kind == "origin" else "a")
    for push in pushes:
        scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
    scene.end_turn()
    assert [stage for stage, _, _, _ in scene.traced("o")] == ["pushed"] * (1 if kind == "origin" else 2)


@pytest.mark.parametrize("form", FORMS)
def test_drop_is_traced_with_its_message(form: str) -> None:
    scene = Traced(form, "topic", "e", PartitionSettings(queue_messages_max=2))
    tags = [scene.send(b"e") for _ in range(3)]  # no client is connected
    lost = [(stage, named) for stage, _, _, named in scene.traced() if stage == "dropped"]
    assert lost == [("dropped", f"edge/{INCARNATION}/{tags[0]}")]


@pytest.mark.parametrize("form", FORMS)
def test_qos_0_is_traced_as_pushed_or_dropped(form: str) -> None:
    scene = Traced(form, "topic", "#")
    scene.send(b"d", 0)
    scene.send(b"e", 0)
    assert [stage for stage, _, _, _ in scene.traced()] == ["pushed", "dropped"]
    scene.end_turn()
    assert [stage for stage, _, _, _ in scene.traced()] == ["pushed", "dropped"]  # it writes no row


@pytest.mark.parametrize("form", FORMS)
def test_traced_topics_are_bounded_in_bytes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest entries are forgotten; acknowledged ones free their bytes."""
    monkeypatch.setattr(tracing, "TOPIC_BYTES_MAX", 2)
    scene = Traced(form, "topic", "#")
    traced = []
    for count in (3, 2):
        for _ in range(count):
            scene.send(b"a")
        (pushes,) = scene.end_turn()[1].values()
        for push in pushes:
            scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
        traced.append([stage for stage, _, _, _ in scene.traced()].count("acked"))
    assert traced == [2, 4]
