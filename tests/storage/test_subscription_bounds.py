"""Subscription bounds of one stored session, checked by its partition over all its connections."""

import itertools
from typing import Any

import pytest

import mqtt.filter_costs
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import PublishMessage
from wire.messages.sessions import SessionSubscribed, SessionSubscription, SubscribeSession

HOSTILE = ["/".join(mix) + "/a" * 21 for mix in itertools.islice(itertools.product("a+", repeat=10), 300)]
TOPIC = "/".join("a" * 31)


def codes(edge: Edge, connection: Connection, *filters: str) -> list[int]:
    """Subscribe and return the reason codes."""
    request = edge.subscribe(connection, *filters)
    (answer,) = [one for one in edge.answers(SessionSubscribed) if one.request == request]
    return list(answer.reason_codes)


def unsubscribe(edge: Edge, connection: Connection, *filters: str) -> None:
    edge.unsubscribe(connection, *filters)
    edge.cluster.settle()


def test_filters_are_counted_across_connections() -> None:
    """A reconnect or a new primary does not reset the bound; an existing filter may be replaced."""
    cluster, edge = with_edge(settings=with_settings(filters_per_session_max=3))
    assert codes(edge, edge.open("alice"), "a", "b") == [2, 2]
    other = cluster.edges["e2"]
    alice = other.open("alice")
    assert codes(other, alice, "c", "d", "a", "e") == [2, 0x97, 2, 0x97]
    cluster.crash_all()
    alice = edge.open("alice")
    assert codes(edge, alice, "d", "b") == [0x97, 2]
    unsubscribe(edge, alice, "b")
    assert codes(edge, alice, "d", "e") == [2, 0x97]
    assert cluster.nodes["s1"].core.event_counts()["refused_filters_per_session"] == 2


def test_refused_filter_has_no_route_row_or_message() -> None:
    """No route, no row, no message for a filter that got 0x97, and a response although none was granted."""
    cluster, edge = with_edge(settings=with_settings(filters_per_session_max=1), partitions=1)
    alice = edge.open("alice")
    assert codes(edge, alice, "kept/+", "refused/+") == [2, 0x97]
    assert codes(edge, alice, "refused/#") == [0x97]
    assert {route.topic_filter for added in cluster.router.added for route in added.routes} == {"kept/+"}
    for _ in range(2):
        edge.publish(PublishMessage(0, b"refused/x", b"no", 1), 0)
        edge.publish(PublishMessage(0, b"kept/x", b"yes", 1), 0)
        cluster.settle()
        cluster.crash_all()
    assert {push.payload for push in alice.received} == {b"yes"}


def test_hostile_filters_are_refused_and_counted() -> None:
    """A session reaches its bound of visits; the partition serves the granted filters."""
    cluster, edge = with_edge(partitions=1)
    alice, bob = edge.open("alice"), edge.open("bob")
    first, second = codes(edge, alice, *HOSTILE), codes(edge, bob, *reversed(HOSTILE))
    assert set(first) == set(second) == {2, 0x97}
    core = cluster.nodes["s1"].core
    assert core.event_counts()["refused_filter_cost"] == (first + second).count(0x97)
    assert core.partitions[0].partition.trie.visits() <= 2 * mqtt.filter_costs.SESSION_VISITS_MAX
    edge.publish(PublishMessage(0, TOPIC.encode(), b"x", 1), 0)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"x"]


def test_stored_filters_above_the_bounds_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition from before the bound existed: loaded, matched, replaced and removed.

    Only more filters are refused.
    """
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    with monkeypatch.context() as patch:
        patch.setattr(mqtt.filter_costs, "SESSION_VISITS_MAX", 1 << 40)
        patch.setattr(mqtt.filter_costs, "TRIE_VISITS_MAX", 1 << 40)
        assert set(codes(edge, alice, *HOSTILE[:250])) == {2}
    monkeypatch.setattr(mqtt.filter_costs, "TRIE_VISITS_MAX", 1000)
    cluster.crash_all()
    assert cluster.nodes["s1"].core.partitions[0].partition.trie.visits() > 1000
    edge.publish(PublishMessage(0, TOPIC.encode(), b"x", 1), 0)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"x"]
    bob = edge.open("bob")
    assert codes(edge, alice, HOSTILE[0], HOSTILE[299]) == [2, 0x97]
    assert codes(edge, bob, HOSTILE[0], HOSTILE[299], "ordinary/+/x") == [2, 0x97, 2]
    unsubscribe(edge, alice, *HOSTILE[:250])
    assert codes(edge, bob, HOSTILE[299]) == [2]


@pytest.mark.parametrize("name", ["", "a/#/b", "a+/b", "$share//a", "$share/g", "$share/+/a", "a\0b"])
def test_invalid_filter_is_refused(name: str) -> None:
    """Edges are not trusted: 0x8F, and the node continues."""
    edge = Cluster(partitions=1).edges["e1"]
    alice = edge.open("alice")
    assert codes(edge, alice, "a", name) == [2, 0x8F]


def test_repeated_subscribe_gets_the_same_codes() -> None:
    """The same SUBSCRIBE again, as an edge sends it to a new primary, gets the same codes."""
    cluster, edge = with_edge(settings=with_settings(filters_per_session_max=2), partitions=1)
    alice = edge.open("alice")
    wanted = [SessionSubscription(name, 1, retain_handling=2) for name in ("a", "b", "c")]
    found: list[Any] = []
    for _ in range(2):
        request = SubscribeSession(*edge.head(0), alice.session, alice.owner_epoch, wanted)
        edge.ask(request)
        cluster.settle()
        found.append(edge.answers(SessionSubscribed)[-1].reason_codes)
    assert found == [[1, 1, 0x97]] * 2
