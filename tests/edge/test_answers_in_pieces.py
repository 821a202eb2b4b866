"""A router answers the topics that fit into a frame; the edge requests the others again."""

from functools import partial

import pytest

from mqtt.packets import Puback
from tests.edge.edge_harness import Edge
from wire.decoding import Unreadable
from wire.messages.routes import Destinations, Resolve, Resolved


def test_topics_missing_in_a_response_are_requested_again() -> None:
    """A response without any requested topic is invalid: otherwise the edge would request forever."""
    edge = Edge()
    edge.held = {Resolve}
    publisher = edge.client()
    found: list[str] = []

    def note(topic: str, _: object) -> None:
        found.append(topic)

    for topic in ("a/1", "a/2", "a/3"):
        edge.core.cache.need(topic, partial(note, topic))
    publisher.publish("a/4", b"", 1, 1)
    (question,) = edge.take(Resolve)
    assert sorted(question.topics) == ["a/1", "a/2", "a/3", "a/4"]
    edge.router(Resolved(question.request, question.shard_epoch, [Destinations()], [0, 0]))
    edge.turn()
    assert found == question.topics[:2]
    (again,) = edge.take(Resolve)
    assert again.topics == question.topics[2:] and again.request != question.request
    with pytest.raises(Unreadable):
        edge.core.cache.resolved("r0", Resolved(again.request, again.shard_epoch, [], []))
    edge.router(Resolved(again.request, again.shard_epoch, [Destinations()], [0, 0]))
    edge.turn()
    assert found == ["a/1", "a/2", "a/3"]
    assert [type(packet) for packet in publisher.read()] == [Puback]
