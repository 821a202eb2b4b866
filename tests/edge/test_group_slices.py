"""Thousands of shared subscriptions of a topic, or members of one, keep each iteration of an edge short."""

from collections.abc import Iterator

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Publish
from tests.edge.session_answers import publishes
from tests.edge.turns import TimedEdge, subscribe
from tests.memory import without_collector
from tests.turn_time import assert_within, timed
from wire.messages.routes import Destinations, GroupDestinations

TURN_MS = 10.0  # processor time, for a slow machine


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    with without_collector():
        yield


@timed
def test_response_with_thousands_of_shares_is_applied_in_slices() -> None:
    """26 ms in one step."""
    edge = TimedEdge()
    groups = [GroupDestinations(f"g{number}/t", [("e1", 1)]) for number in range(5_000)]
    edge.worst_ms()
    edge.cache(["t"], Destinations(groups=groups))
    assert len(edge.turns_s) > 10
    assert_within("5 000 groups", edge.worst_ms(), TURN_MS)
    route = edge.core.hot.route(b"t")
    assert route is not None and [group.share for group in route.groups] == [group.share.encode() for group in groups]


@timed
def test_closed_members_are_visited_once() -> None:
    """Before the removal of closed members, each message scanned all of them: 300 messages took 69 ms."""
    edge = TimedEdge()
    members = [edge.client(f"m{number}") for number in range(1_500)]
    for member in members:
        edge.step(edge.feed(member, subscribe(["$share/g/t"])))
    edge.settle()
    for member in members[-2:]:
        member.read()
    edge.cache(["t"], Destinations(groups=[GroupDestinations("g/t", [("e0", len(members))])]))
    publisher = edge.client("p")
    data = b"".join(encode_packet(Publish("t", b"x", properties={}), 5) for _ in range(300))
    hot = edge.core.hot

    def leave() -> None:
        for member in members[:-2]:
            hot.end_of_file(member.client.conn)

    edge.step(leave)
    edge.worst_ms()
    edge.step(lambda: hot.feed(publisher.client.conn, data))
    assert_within("300 messages", edge.worst_ms(), TURN_MS)
    edge.settle()
    assert [len(publishes(member)) for member in members[-2:]] == [150, 150]
