"""SUBSCRIBE and UNSUBSCRIBE at one edge's core: SUBACK after the route, overlaps, refusals, bounds."""

import pytest

from edge.node.limits import EdgeLimits
from mqtt.packets import Disconnect, Suback, Unsuback
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, with_clients
from tests.edge.retained_partitions import retained
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.retained import (
    DeliverRetained,
)
from wire.messages.routes import (
    AddRoutes,
    RemoveRoutes,
    RoutesAdded,
)
from wire.messages.sessions import SubscribeSession


def test_suback_waits_for_the_route() -> None:
    """SUBACK is sent when the shard's owner confirms the filter at every edge."""
    edge = Edge()
    session = edge.client()
    edge.held = {AddRoutes}
    session.subscribe("a/+")
    assert session.read() == []
    (request,) = edge.take(AddRoutes)
    assert [entry.topic_filter for entry in request.routes] == ["a/+"]
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch - 1))
    assert session.read() == [], "an answer to the edge's former incarnation"
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch))
    assert [packet.reason_codes for packet in session.read()] == [[2]]


def test_second_subscriber_waits_for_the_same_route() -> None:
    """Also for the second subscriber SUBACK waits for the acknowledged filter."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    edge.held = {AddRoutes}
    one.subscribe("a")
    two.subscribe("a")
    (request,) = edge.take(AddRoutes)
    assert one.read() == two.read() == []
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch))
    assert one.read() and two.read()


def test_last_unsubscribe_removes_the_route() -> None:
    """A filter's route is removed with its last subscriber, after UNSUBACK [MQTT-3.10.4-1]."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    one.subscribe("a")
    two.subscribe("a")
    one.read()
    one.unsubscribe("a", "never")
    assert [packet.reason_codes for packet in one.read()] == [[0, 0x11]]
    edge.turn(1.0)
    assert not any(isinstance(message, RemoveRoutes) for message in edge.seen)
    two.drop()
    edge.turn(1.0)
    removed = [message for message in edge.seen if isinstance(message, RemoveRoutes)]
    assert [entry.topic_filter for message in removed for entry in message.routes] == ["a"]


def test_overlapping_subscriptions_give_a_copy_for_each_identifier() -> None:
    """The QoS of each [MQTT-3.3.4-2], its identifier [MQTT-3.3.4-4]; Node-RED does not support two identifiers in a
    copy.
    """
    _, session, publisher = with_clients()
    session.subscribe("a/#", qos=0, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [1]})
    session.subscribe("a/+", qos=1, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [300]})
    session.read()
    publisher.publish("a/b", b"x", 2, 1)
    copies = [(copy.qos, copy.properties[PropertyId.SUBSCRIPTION_IDENTIFIER]) for copy in publishes(session)]
    assert copies == [(0, [1]), (1, [300])]


def test_merged_overlapping_subscriptions_give_one_copy() -> None:
    """Highest QoS [MQTT-3.3.4-2], all identifiers [MQTT-3.3.4-4]."""
    edge = Edge(EdgeLimits(sys_interval_s=0, overlapping="merged"))
    session, publisher = edge.client("s"), edge.client("p")
    session.subscribe("a/#", qos=0, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [1]})
    session.subscribe("a/+", qos=1, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [300]})
    session.read()
    publisher.publish("a/b", b"x", 2, 1)
    (copy,) = publishes(session)
    assert copy.qos == 1
    assert sorted(copy.properties[PropertyId.SUBSCRIPTION_IDENTIFIER]) == [1, 300]


def test_no_local_excludes_only_the_own_copy() -> None:
    """[MQTT-3.8.3-3]."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    one.subscribe("a", no_local=True)
    two.subscribe("a", no_local=True)
    for session in (one, two):
        session.read()
    one.publish("a", b"x")
    edge.turn()
    assert (publishes(one), len(publishes(two))) == ([], 1)


@pytest.mark.parametrize(
    ("topic_filter", "code"),
    [
        ("a/#/b", 0x81),
        ("a+", 0x81),
        ("a/" * 40, 0x8F),
        ("a" * 2000, 0x8F),
        ("$share//a", 0x81),
        ("$share/g", 0x81),
        ("$share/g+/a", 0x81),
    ],
)
def test_invalid_filters_are_refused(topic_filter: str, code: int) -> None:
    """A malformed one closes the connection; one that is too deep has its own code [MQTT-3.9.3-1]."""
    session = Edge().client()
    session.subscribe("good", topic_filter)
    (answer,) = session.read()
    if code == 0x81:
        assert isinstance(answer, Disconnect) and answer.reason_code == code and session.closed
    else:
        assert isinstance(answer, Suback) and answer.reason_codes == [2, code]


def test_filters_of_a_session_are_bounded() -> None:
    """0x97; an existing one may be replaced."""
    session = Edge(EdgeLimits(sys_interval_s=0, filters_per_session_max=2)).client()
    session.subscribe("a", "b", "c")
    session.subscribe("a", qos=0)
    assert [packet.reason_codes for packet in session.read()] == [[2, 2, 0x97], [0]]


def test_durable_subscribe_follows_its_partition() -> None:
    """SUBACK has the partition's codes; retained copies pass through its queue, and the last ends the hold there."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client("d", properties=DURABLE)
    session.subscribe("a", qos=1)
    assert [packet.reason_codes for packet in session.read()] == [[1]]
    request = next(message for message in edge.seen if isinstance(message, SubscribeSession))
    assert (request.session, request.owner_epoch) == (session.client.session, session.client.owner_epoch)
    delivered = [message for message in edge.seen if isinstance(message, DeliverRetained)]
    assert [len(message.messages) for message in delivered] == [1, 0]
    assert [message.done for message in delivered] == [False, True]
    session.unsubscribe("a")
    assert isinstance(session.read()[0], Unsuback)


@pytest.mark.parametrize(("version", "code"), [(5, 0x97), (4, 0x80)])
def test_filters_of_one_packet_are_bounded(version: int, code: int) -> None:
    """Excess filters are refused one by one; the next packet has its own bound."""
    edge = Edge(EdgeLimits(sys_interval_s=0, filters_per_packet_max=3))
    session = edge.client(version=version)
    for start in (0, 10):
        session.subscribe(*(f"t/{number}" for number in range(start, start + 5)))
        assert [packet.reason_codes for packet in session.read()] == [[2, 2, 2, code, code]]
    assert edge.core.counts["refused_filters_packet"] == 4
