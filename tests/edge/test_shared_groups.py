"""Shared groups at one edge's core: rotation, refusals, and messages of disconnected members."""

from typing import Any

from msgspec.structs import replace

from edge.node.limits import EdgeLimits
from mqtt.packets import Suback
from mqtt.properties import PropertyId
from tests.clients.packets import ack
from tests.edge.edge_harness import Edge, Session, cluster_map
from tests.edge.session_answers import publishes
from wire.messages.map_pages import map_pages
from wire.messages.redispatch import RedispatchOrder, RedispatchReply, SharePick
from wire.messages.routes import (
    Destinations,
    GroupDestinations,
    Invalidate,
)
from wire.messages.wills import SessionWill


def test_shared_group_rotates_members() -> None:
    """One member per message, round robin [MQTT-4.8.2-4]; a member that left receives none."""
    edge = Edge()
    members = [edge.client(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/a", qos=0)
        member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 3)])])
    publisher = edge.client("p")
    for number in range(6):
        publisher.publish("a", b"%d" % number)
    edge.turn()
    assert [len(publishes(member)) for member in members] == [2, 2, 2]
    members[0].drop()
    for number in range(4):
        publisher.publish("a", b"%d" % number)
    assert [len(publishes(member)) for member in members[1:]] == [2, 2]


def group_of_two(qos: int, **limits: Any) -> tuple[Edge, Session, Session, Session]:
    """Return an edge, a publisher, and two members of a group; the first message goes to the first one."""
    edge = Edge()
    first, second = edge.client("m0", **limits), edge.client("m1")
    for member in (first, second):
        member.subscribe("$share/g/a", qos=qos)
        member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 2)])])
    return edge, edge.client("p"), first, second


def test_unacknowledged_qos1_copies_go_to_another_member() -> None:
    """QoS 1, section 4.8.2: in order, with DUP 0, without acknowledged ones; never back to the former member."""
    edge, publisher, first, second = group_of_two(1)
    for number in range(6):
        publisher.publish("a", b"%d" % number, 1, number + 1)
    sent, others = publishes(first), publishes(second)
    assert [copy.payload for copy in sent + others] == [b"0", b"2", b"4", b"1", b"3", b"5"]
    first.send(ack(0x40, sent[1].packet_identifier or 0))
    first.drop()
    edge.turn()
    again = publishes(second)
    assert [(copy.payload, copy.qos, copy.dup) for copy in again] == [(b"0", 1, False), (b"4", 1, False)]
    assert edge.core.counts["shares_redispatched"] == 2
    second.drop()  # no member left: ephemeral members keep no messages
    edge.turn()
    assert edge.core.hot.counters()["dropped_no_pick"] == 5


def test_sent_qos2_copies_stay_with_their_member() -> None:
    """[MQTT-4.8.2-5]; unsent messages that waited for the window go to another member."""
    edge, publisher, first, second = group_of_two(2, properties={PropertyId.RECEIVE_MAXIMUM: 2})
    for number in range(8):
        publisher.publish("a", b"%d" % number, 2, number + 1)
    assert [copy.payload for copy in publishes(first)] == [b"0", b"2"]
    assert [copy.payload for copy in publishes(second)] == [b"1", b"3", b"5", b"7"]
    first.drop()
    edge.turn()
    assert [(copy.payload, copy.qos) for copy in publishes(second)] == [(b"4", 2), (b"6", 2)]


def test_refused_copy_is_not_redispatched() -> None:
    """[MQTT-4.8.2-6]; nor does a message that expired meanwhile [MQTT-3.3.2-5]."""
    edge, publisher, first, second = group_of_two(1)
    publisher.publish("a", b"refused", 1, 1)
    publisher.publish("a", b"other", 1, 2)
    publisher.publish("a", b"short", 1, 3, properties={PropertyId.MESSAGE_EXPIRY_INTERVAL: 5})
    (refused, _) = publishes(first)
    publishes(second)
    first.send(ack(0x40, refused.packet_identifier or 0, 0x97))
    edge.turn(6.0)
    first.drop()
    edge.turn()
    assert publishes(second) == []


def test_unacknowledged_copies_go_to_another_edge() -> None:
    """Without a local member the copy is sent to an edge with a member, and after its refusal to storage."""
    edge, publisher, first, second = group_of_two(1)
    publisher.publish("a", b"1", 1, 1)
    publishes(first)
    second.drop()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 1), ("e1", 1)])])
    edge.router(Invalidate(1, 0, 1, ["a"]))
    first.drop()
    edge.turn()
    edge.turn()
    peer = edge.core.peers.get("e1")
    assert peer is not None and peer.link.bytes_unacknowledged > 0
    assert edge.core.counts["shares_redispatched"] == 1
    assert edge.core.hot.counters()["dropped_no_pick"] == 0


def order(pick: SharePick | None = None, qos: int = 2) -> RedispatchOrder:
    return RedispatchOrder(0, 1, 1, 5, b"g/a", SessionWill("a", b"left", qos), pick)


def test_redispatched_copy_goes_to_the_recorded_pick() -> None:
    """The edge sends it only after the pick is recorded; a repeat is answered without a second delivery."""
    edge, _, first, second = group_of_two(2)
    here = SharePick(b"g/a", -1, "e0", 1)
    edge.held = {RedispatchReply}
    edge.storage(order())
    edge.turn()
    assert [answer.pick for answer in edge.take(RedispatchReply)] == [here]
    assert publishes(first) + publishes(second) == []
    edge.storage(order(here))
    edge.turn()
    assert [(copy.payload, copy.qos) for copy in publishes(first) + publishes(second)] == [(b"left", 2)]
    assert [(answer.number, answer.pick) for answer in edge.take(RedispatchReply)] == [(5, None)]
    edge.storage(order(here))  # its partition did not receive the answer
    edge.turn()
    assert publishes(first) + publishes(second) == []
    assert [(answer.number, answer.pick) for answer in edge.take(RedispatchReply)] == [(5, None)]


def test_ended_pick_is_replaced_on_record_and_ended_group_gets_no_copy() -> None:
    """An edge that died is replaced by a higher attempt, which waits for its record too."""
    edge, _, first, second = group_of_two(1)
    edge.held = {RedispatchReply}
    edge.storage(order(SharePick(b"g/a", -1, "e9", 4, 2)))
    edge.turn()
    again = SharePick(b"g/a", -1, "e0", 1, 3)
    assert [answer.pick for answer in edge.take(RedispatchReply)] == [again]
    assert publishes(first) + publishes(second) == []
    edge.routes["a"] = Destinations()
    edge.router(Invalidate(1, 0, 1, ["a"]))
    edge.storage(order(again))
    edge.turn()
    assert [(answer.number, answer.pick) for answer in edge.take(RedispatchReply)] == [(5, None)]
    assert edge.core.counts["shares_ended"] == 1


def test_edge_that_dies_with_redispatched_copy_is_replaced_on_record() -> None:
    """It was sent there without an acknowledgement: the next destination is recorded before the copy is sent."""
    edge, _, first, second = group_of_two(1)
    edge.held = {RedispatchReply}
    edge.storage(order(SharePick(b"g/a", -1, "e1", 1)))
    edge.turn()
    assert edge.take(RedispatchReply) == []
    moved = cluster_map(epoch=2)
    moved.nodes["e1"] = replace(moved.nodes["e1"], incarnation=2)
    edge.router(*map_pages(moved))
    edge.turn()
    assert [answer.pick for answer in edge.take(RedispatchReply)] == [SharePick(b"g/a", -1, "e0", 1, 1)]
    assert publishes(first) + publishes(second) == []


def test_sticky_group_keeps_topic_with_its_member() -> None:
    """With ``shared_subscriptions = "sticky"`` a topic's messages stay in order at one member, until it leaves."""
    edge = Edge(EdgeLimits(sys_interval_s=0, sticky_shares=True))
    members = [edge.client(f"m{number}") for number in range(3)]
    topics = [f"t{number}" for number in range(12)]
    for member in members:
        member.subscribe("$share/g/+", qos=0)
        member.read()
    for topic in topics:
        edge.routes[topic] = Destinations(groups=[GroupDestinations("g/+", [("e0", 3)])])
    publisher = edge.client("p")
    for _ in range(5):
        for topic in topics:
            publisher.publish(topic, b"m")
    got = [[copy.topic_name for copy in publishes(member)] for member in members]
    assert sum(map(len, got)) == 60 and all(got)
    assert all(count in (0, 5) for topic in topics for count in (names.count(topic) for names in got))
    members[0].drop()
    for topic in topics:
        publisher.publish(topic, b"m")
    assert sorted(copy.topic_name for member in members[1:] for copy in publishes(member)) == sorted(topics)


def test_group_joins_are_rate_limited() -> None:
    """Faster joins wait unread and are not refused; other filters have no such rate."""
    edge = Edge(EdgeLimits(sys_interval_s=0, share_join_rate_max=10.0))
    churning = [edge.client(f"c{number}") for number in range(3)]
    joined = 0

    def answers() -> int:
        return sum(isinstance(packet, Suback) for session in churning for packet in session.read())

    for _ in range(40):
        for session in churning:
            session.subscribe("$share/g/a", qos=0)
            session.unsubscribe("$share/g/a")
    for second in range(1, 6):
        joined += answers()
        assert 10 <= joined <= 10 * (second + 2) + len(churning)
        edge.turn(1.0)
    assert joined >= 40
    free = edge.client("free")
    free.subscribe(*(f"t/{number}" for number in range(50)), qos=0)
    assert free.read()
    while joined < 120:
        edge.turn(1.0)
        joined += answers()
