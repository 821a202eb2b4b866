"""Answers about routes at one edge: misses, invalidations, changes of owners."""

from typing import cast

import pytest

from edge.routes.missed_topics import BATCH_DELAY_S, PREFETCHES_IN_FLIGHT_MAX, STEADY_BATCHES
from mqtt.packets import Puback
from mqtt.reasons import ReasonCode
from tests.clients import packets
from tests.edge.edge_harness import Edge, cluster_map, with_clients
from tests.edge.session_answers import publishes, said
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, ShardEntry
from wire.messages.control import Control
from wire.messages.map_pages import map_pages
from wire.messages.nodes import HeartbeatReply, Moved
from wire.messages.routes import (
    AddRoutes,
    Destinations,
    Invalidate,
    Invalidated,
    ReportRoutes,
    Resolve,
    Resolved,
    RoutesAdded,
)


def test_miss_parks_the_publisher_and_sends_one_request() -> None:
    """All misses of an iteration and shard share one request; later packets keep their order."""
    edge = Edge()
    subscriber, one, two = edge.client("s"), edge.client("1"), edge.client("2")
    subscriber.subscribe("a")
    subscriber.read()
    edge.held = {Resolve}
    for session in (one, two):
        session.publish("a", b"1", 1, 1)
        session.publish("a", b"2", 1, 2)
    (request,) = edge.take(Resolve)
    assert request.topics == ["a"] and publishes(subscriber) == []
    edge.router(Resolved(request.request, request.shard_epoch, [Destinations()], [0]))
    edge.turn()
    assert [packet.payload for packet in publishes(subscriber)] == [b"1", b"2", b"1", b"2"]
    assert [packet.packet_identifier for packet in said(one, Puback)] == [1, 2]


def test_invalidation_voids_pending_request() -> None:
    """An answer overtaken by an invalidation is not used: the request is repeated, and the publisher stays parked."""
    edge = Edge()
    publisher = edge.client()
    edge.held = {Resolve, Invalidated}
    publisher.publish("a/b", b"1", 1, 1)
    (request,) = edge.take(Resolve)
    edge.router(Invalidate(5, request.shard, 1, ["a/+"]))
    assert edge.take(Invalidated) == [Invalidated(5, request.shard, 1)]
    edge.router(Resolved(request.request, request.shard_epoch, [Destinations()], [0]))
    edge.turn()
    (again,) = edge.take(Resolve)
    assert said(publisher, Puback) == []
    edge.router(Resolved(again.request, again.shard_epoch, [Destinations()], [0]))
    edge.turn()
    assert said(publisher, Puback)[0].reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_invalidation_drops_the_cached_answer() -> None:
    edge = Edge()
    publisher = edge.client()
    publisher.publish("a/b", b"1", 1, 1)
    edge.router(Invalidate(5, 0, 1, ["#"]))
    edge.held = {Resolve}
    publisher.publish("a/b", b"2", 1, 2)
    assert len(edge.take(Resolve)) == 1


def test_request_is_repeated_after_moved_and_after_timeout() -> None:
    """No publisher waits permanently for a failed router."""
    edge = Edge()
    publisher = edge.client()
    edge.held = {Resolve}
    publisher.publish("a", b"1", 1, 1)
    (request,) = edge.take(Resolve)
    edge.router(Moved(request.request, "shard", request.shard, 2))
    edge.turn(0.2)
    (again,) = edge.take(Resolve)
    edge.turn(5.0)
    assert len(edge.take(Resolve)) == 1 and again.topics == ["a"]


def test_new_shard_owner_receives_filters_and_empty_registration() -> None:
    """It receives the edge's report, and a registration without topics: answers of the former owner are void."""
    edge = Edge()
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("f/#")
    publisher.publish("a", b"1")
    moved: ClusterMap = cluster_map(2)
    moved.shards = [ShardEntry(2, "r0"), ShardEntry(2, "r0")]
    edge.held = {ReportRoutes, Resolve}
    edge.router(*map_pages(moved))
    edge.router(HeartbeatReply(1, edge.now, 1000.0, 2, "r0"))
    edge.turn()
    reported = {
        entry.topic_filter for report in edge.take(ReportRoutes) for sender in report.reports for entry in sender.routes
    }
    registered = [message for message in edge.take(Resolve) if message.kept]
    assert "f/#" in reported
    assert [message.topics for message in registered] == [[], []]
    assert {message.shard_epoch for message in registered} == {2}
    publisher.publish("a", b"2")
    assert not edge.take(Resolve), "it is batched while a request is in flight"
    edge.turn(BATCH_DELAY_S)
    assert [message.topics for message in edge.take(Resolve)] == [["a"]]


def test_topics_missed_during_a_request_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For at most BATCH_DELAY_S after the miss, or after the previous request."""
    edge = Edge()
    publishers = [edge.client(f"p{number}") for number in range(9)]
    edge.held.add(Resolve)
    publishers[0].publish("t/0")
    (first,) = edge.take(Resolve)
    assert first.topics == ["t/0"], "one that comes alone does not wait"
    for number in (1, 2, 3, 4):
        publishers[number].publish(f"t/{number}")
        if number == 1:
            monkeypatch.setattr(edge.core, "turn_end", lambda _: pytest.fail("a turn for a topic that only waits"))
    monkeypatch.undo()
    assert not edge.take(Resolve)
    edge.turn(BATCH_DELAY_S)
    taken = edge.take(Resolve)
    assert sorted(topic for resolve in taken for topic in resolve.topics) == ["t/1", "t/2", "t/3", "t/4"]
    for number in (5, 6, 7):
        publishers[number].publish(f"t/{number}")
    assert not edge.take(Resolve)
    for resolve in (first, *taken):
        reply = edge.reply(resolve)
        assert reply is not None
        edge.router(reply)
    edge.turn()
    assert not edge.take(Resolve), "four came together: more may come"
    edge.turn(BATCH_DELAY_S)
    assert sorted(topic for resolve in edge.take(Resolve) for topic in resolve.topics) == ["t/5", "t/6", "t/7"]


def test_sequential_publisher_is_not_batched() -> None:
    """Topic after topic, each is requested in the iteration of its miss."""
    edge = Edge()
    publisher = edge.client("p")
    edge.held.add(Resolve)
    for number in range(40):
        publisher.publish(f"t/{number}")
        (request,) = edge.take(Resolve)
        reply = edge.reply(request)
        assert reply is not None
        edge.router(reply)
        edge.turn()


def test_batch_size_equals_number_of_sequential_publishers() -> None:
    """Four publishers that miss again after each answer are requested together, except for one request in 17."""
    edge = Edge()
    publishers = [edge.client(f"p{number}") for number in range(4)]
    edge.held.add(Resolve)
    vain = 0
    for number in range(100):
        for publisher in publishers:
            publisher.publish(f"{publisher.client.client_id}/{number}")
        requests = edge.take(Resolve)
        if not requests:
            vain += 1
            edge.turn(BATCH_DELAY_S)
            requests = edge.take(Resolve)
        while sum(len(request.topics) for request in requests) < len(publishers):
            edge.turn(BATCH_DELAY_S)
            requests += edge.take(Resolve)
        for request in requests:
            reply = edge.reply(request)
            assert reply is not None
            edge.router(reply)
        edge.turn()
    assert vain <= 100 // STEADY_BATCHES


def test_continuous_topics_share_requests() -> None:
    """Ten per millisecond, answered at once: batches of three grow to about ten."""
    edge = Edge()
    publishers = [edge.client(f"p{number}") for number in range(500)]
    edge.held.add(Resolve)
    requests, answers = [], []
    for number, publisher in enumerate(publishers):
        publisher.publish(f"t/{number}")
        taken = edge.take(Resolve)
        requests += taken
        answers += [(number + 3, request) for request in taken]
        while answers and answers[0][0] <= number:
            reply = edge.reply(answers.pop(0)[1])
            assert reply is not None
            edge.router(reply)
        edge.turn(BATCH_DELAY_S / 10)
    topics = sum(len(request.topics) for request in requests)
    assert topics > 480 and topics / len(requests) > 6


def burst(*topics: str, qos: int = 0) -> bytes:
    """Return a PUBLISH of each topic, as one write."""
    return b"".join(packets.publish(topic.encode(), b"x", qos, 7 + at, 5) for at, topic in enumerate(topics))


def test_topics_of_one_write_are_resolved_in_one_request() -> None:
    """Each topic once; the messages of the client are delivered in order after the answers."""
    edge, subscriber, publisher = with_clients()
    subscriber.subscribe("t/#")
    edge.held = {Resolve}
    publisher.send(burst("t/1", "t/2", "t/3", "t/1", "t/2"))
    taken = edge.take(Resolve)
    assert sorted(topic for request in taken for topic in request.topics) == ["t/1", "t/2", "t/3"]
    for request in taken:
        edge.router(cast(Control, edge.reply(request)))
    edge.turn()
    assert [copy.topic_name for copy in publishes(subscriber)] == ["t/1", "t/2", "t/3", "t/1", "t/2"]
    assert not edge.take(Resolve) and not edge.core.cache.waits


def test_a_filter_invalidates_a_topic_whose_prefetch_is_in_flight() -> None:
    """R4: a filter was added between Resolve and Resolved; the topic is requested again when it is missed."""
    edge, _, publisher = with_clients()
    edge.held = {Resolve, Invalidated}
    publisher.send(burst("t/1", "t/2"))
    (request,) = edge.take(Resolve)
    edge.router(Invalidate(9, request.shard, request.shard_epoch, ["t/2"]))
    assert [answer.number for answer in edge.take(Invalidated)] == [9]
    edge.router(cast(Control, edge.reply(request)))
    edge.turn()
    (again,) = edge.take(Resolve)
    assert again.topics == ["t/2"] and edge.core.cache.waiters() == 1


def test_a_filter_invalidates_a_prefetched_topic_before_its_first_use() -> None:
    """R4: Resolved comes first, and the packet is parsed after the invalidation was acknowledged."""
    edge, _, publisher = with_clients()
    edge.held = {Resolve, Invalidated}
    publisher.send(burst("t/1", "t/2"))
    (request,) = edge.take(Resolve)
    edge.router(Resolved(request.request, request.shard_epoch, [Destinations()], [0, 0]))
    edge.router(Invalidate(9, request.shard, request.shard_epoch, ["t/2"]))
    edge.turn()
    assert [answer.number for answer in edge.take(Invalidated)] == [9]
    (again,) = edge.take(Resolve)
    assert again.topics == ["t/2"]


def test_missed_topics_are_requested_before_prefetched_ones() -> None:
    """Prefetched topics in flight are bounded, so another client's first message is next."""
    edge, one, other = with_clients()
    edge.held = {Resolve}
    for prefix, publisher in (("t", one), ("u", edge.client("2"))):
        publisher.send(burst(*[f"{prefix}/{number}" for number in range(3_000)]))
    edge.turn()
    first = edge.take(Resolve)
    assert sum(len(request.topics) for request in first) == PREFETCHES_IN_FLIGHT_MAX
    other.publish("mine", b"1", 1, 1)
    edge.turn(BATCH_DELAY_S)
    (request,) = edge.take(Resolve)
    assert request.topics == ["mine"]


def test_topics_in_use_stay_cached_during_a_flood_of_new_ones() -> None:
    """A client that publishes to new topics does not evict topics of other clients."""
    edge = Edge(routes_max=64)
    publisher, flood = edge.client("p"), edge.client("f")
    for turn in range(20):
        for number in range(8):
            publisher.publish(f"used/{number}", b"1")
        edge.take(Resolve)
        flood.send(burst(*[f"new/{turn}/{number}" for number in range(40)]))
        edge.turn()
        edge.take(Resolve)
    edge.held = {Resolve}
    for number in range(8):
        publisher.publish(f"used/{number}", b"1", 1, number + 1)
    assert len(said(publisher, Puback)) == 8 and not edge.take(Resolve)
    assert len(edge.core.cache) == 64


def test_answers_from_other_routers_are_refused() -> None:
    """Another router of the same group sends the correct request and epoch: refused without effect."""
    edge = Edge()
    edge.register(NodeEntry("r1", "router", 1, "r1:1", state=NodeState.ACTIVE))
    publisher, subscriber = edge.client("p"), edge.client("s")
    edge.held = {Resolve, AddRoutes}
    publisher.publish("a/b", b"1", 1, 1)
    subscriber.subscribe("c")
    (request,), (taken,) = edge.take(Resolve), edge.take(AddRoutes)
    resolved = Resolved(request.request, request.shard_epoch, [Destinations()], [0])
    added = RoutesAdded(taken.request, taken.shard, taken.shard_epoch, taken.sender_epoch)
    for forged in (resolved, added, Moved(request.request, "shard", request.shard, 1)):
        edge.router(forged, node="r1")
        edge.turn()
    assert edge.core.counts["refused_placement"] == 3
    assert said(publisher, Puback) == [] and subscriber.read() == []
    edge.router(Moved(0, "shard", 0, 2), node="r1")
    edge.turn(1.0)
    assert edge.take(ReportRoutes) == [] and edge.core.counts["answers_unknown"] == 1
    edge.router(resolved)
    edge.router(added)
    edge.turn()
    assert said(publisher, Puback) and subscriber.read()
