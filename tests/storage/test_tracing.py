"""Traces at a storage node: what is told of marked messages, of traced sessions and of an origin, and what is not."""

from typing import Any

import pytest

from storage.state import tracing
from storage.state.settings import PartitionSettings
from storage.state.tracing import Tracing
from tests.storage.plain_forms import FORMS, load
from tests.storage.test_plain_messages import INCARNATION, PARTITION, SESSION, Scene
from wire.messages.batches import PublishMessage, PushAck, encode_message, encode_push_ack
from wire.messages.cluster_map import ClusterMap
from wire.messages.orders import TraceOrder
from wire.queries.source import RowScan


class Traced(Scene):
    """A partition of a node with a trace."""

    def __init__(self, form: str, kind: str, pattern: str, settings: PartitionSettings | None = None) -> None:
        super().__init__(load(form), settings or PartitionSettings())
        self.tracing = Tracing("s1", lambda: ClusterMap(""), self.lane.forget_routes)
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

    def told(self, name: str = "t") -> list[tuple[Any, ...]]:
        source = self.tracing.desk.sources()["trace"]
        columns = source.columns
        ask = RowScan({"trace": name}, "", frozenset(), "operator", 1_000, 0.0)
        return [
            tuple(columns[column](thing) for column in ("stage", "client_id", "seq", "origin"))
            for _, thing in source.walk(ask)
        ]


@pytest.mark.parametrize("form", FORMS)
def test_a_marked_message_is_told_until_its_client_has_it(form: str) -> None:
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
    assert [(stage, named) for stage, _, _, named in scene.told()] == [
        (stage, origin) for stage in ("queued", "pushed", "committed", "acked")
    ]
    assert {client for _, client, _, _ in scene.told()} == {"client 0", None}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_told_of_others(form: str) -> None:
    """A message without a mark goes the fast way, and a mark is nothing while no trace runs."""
    scene = Traced(form, "topic", "a")
    scene.send(b"a", traced=False)
    assert scene.ones == 0 and scene.told() == []
    scene.tracing.desk.stop("t", 0.0)
    scene.send(b"a")
    assert not scene.end_turn()[1]["e1"][-1].traced
    assert scene.told() == []


@pytest.mark.parametrize("form", FORMS)
def test_a_traced_session_is_told_of_without_marks(form: str) -> None:
    """Entries that it has had before are told of when they are sent again."""
    scene = Traced(form, "client", "client 0")
    scene.send(b"a", traced=False)
    scene.send(b"b/d", traced=False)
    (push,) = (push for push in scene.end_turn()[1]["e1"] if push.topic == b"a")
    assert push.traced
    scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
    assert [(stage, client) for stage, client, _, _ in scene.told()] == [("pushed", "client 0"), ("acked", "client 0")]
    scene.tracing.desk.stop("t", 0.0)
    ones = scene.ones
    scene.send(b"a", traced=False)
    assert scene.ones == ones


@pytest.mark.parametrize("kind", ["origin", "topic"])
@pytest.mark.parametrize("form", FORMS)
def test_what_waits_is_told_of_when_it_goes_on(form: str, kind: str) -> None:
    """Entries that were queued before the trace began, or by another primary, are found by their origin or topic."""
    scene = Traced(form, "topic", "none")
    scene.end_turn()
    tags = [scene.send(b"a", traced=False) for _ in range(5)]  # the window has room for three
    pushes = scene.end_turn()[1]["e1"]
    assert len(pushes) == 3
    scene.begin("o", kind, f"edge/{INCARNATION}/{tags[4]}" if kind == "origin" else "a")
    for push in pushes:
        scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
    scene.end_turn()
    assert [stage for stage, _, _, _ in scene.told("o")] == ["pushed"] * (1 if kind == "origin" else 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_drop_is_told_with_the_message_that_is_lost(form: str) -> None:
    scene = Traced(form, "topic", "e", PartitionSettings(queue_messages_max=2))
    tags = [scene.send(b"e") for _ in range(3)]  # nobody is connected
    lost = [(stage, named) for stage, _, _, named in scene.told() if stage == "dropped"]
    assert lost == [("dropped", f"edge/{INCARNATION}/{tags[0]}")]


@pytest.mark.parametrize("form", FORMS)
def test_qos_0_is_told_as_pushed_or_dropped(form: str) -> None:
    scene = Traced(form, "topic", "#")
    scene.send(b"d", 0)
    scene.send(b"e", 0)
    assert [stage for stage, _, _, _ in scene.told()] == ["pushed", "dropped"]
    scene.end_turn()
    assert [stage for stage, _, _, _ in scene.told()] == ["pushed", "dropped"]  # nothing of it is written


@pytest.mark.parametrize("form", FORMS)
def test_long_topics_are_remembered_within_a_bound(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest entries are forgotten; what is acknowledged gives its bytes back."""
    monkeypatch.setattr(tracing, "TOPIC_BYTES_MAX", 2)
    scene = Traced(form, "topic", "#")
    told = []
    for count in (3, 2):
        for _ in range(count):
            scene.send(b"a")
        (pushes,) = scene.end_turn()[1].values()
        for push in pushes:
            scene.acknowledge(encode_push_ack(PushAck(SESSION, 9, 4, push.session_seq, 4, 0)))
        told.append([stage for stage, _, _, _ in scene.told()].count("acked"))
    assert told == [2, 4]
