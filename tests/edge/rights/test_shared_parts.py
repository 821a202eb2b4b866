"""Members of shared groups that may receive a part of the group's filter: others get what they may not."""

from typing import Any

import pytest

from edge.publishing.redispatch import ATTEMPTS_MAX
from edge.rights.sources import Sources
from mqtt.properties import PropertyId
from tests.clients.packets import ack
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import book, come, principal, roles, ruled
from tests.edge.rights.test_sweep import turns
from tests.edge.session_answers import publishes
from wire.messages.redispatch import RedispatchOrder, RedispatchReply, SharePick
from wire.messages.routes import Destinations, GroupDestinations
from wire.messages.sessions import SubscribeSession
from wire.messages.wills import SessionWill

SHARE = "g/down/#"
STORED: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60}
SECRET, OPEN = "down/secret/a", "down/a"
BOSS: dict[str, object] = {"subscribe": ["down/#"], "priority": 1}
WRITER: dict[str, object] = {"publish": ["down/#"], "priority": 2}


def rules(**more: dict[str, object]) -> Sources:
    """Return rules by which a device may not have what is secret, and a boss may."""
    return roles(overlap=True, writer=WRITER, **more)


def group(*names: str, elsewhere: int = 0, qos: int = 1, **options: Any) -> tuple[Edge, Session, list[Session]]:
    """Return a writer and members of a group, a boss where the name says so; all of one edge but some."""
    edge = ruled(rules(boss=BOSS, other=BOSS))
    members = []
    for name in names:
        held = (name,) if name in ("boss", "other") else ()
        members.append(come(edge, principal(name, name, roles=held), **options))
        members[-1].subscribe(f"$share/{SHARE}", qos=qos)
        codes = [packet.reason_codes for packet in members[-1].read() if hasattr(packet, "reason_codes")]
        assert codes == [[qos]]
    places = [("e0", len(names)), *([("e1", elsewhere)] if elsewhere else [])]
    for topic in (SECRET, OPEN):
        edge.routes[topic] = Destinations(groups=[GroupDestinations(SHARE, places)])
    writer = come(edge, principal("writer", "writer", roles=("writer",)))
    writer.read()
    return edge, writer, members


def send(edge: Edge, writer: Session, topic: str, count: int, qos: int = 1) -> None:
    for number in range(count):
        writer.publish(topic, b"%d" % number, qos, number + 1 + 100 * (topic == OPEN) if qos else 0)
    edge.turn()
    edge.turn()


def test_a_part_of_a_groups_filter_is_granted_where_parts_are() -> None:
    """NIST: protect. As of a plain filter; without on_overlap = "filter" it is refused as before."""
    edge, _, (anna,) = group("anna")
    assert anna.client.partial == {f"$share/{SHARE}"}
    plain = ruled(roles())
    refused = come(plain, principal("anna", "anna"))
    refused.subscribe(f"$share/{SHARE}")
    assert [packet.reason_codes for packet in refused.read() if hasattr(packet, "reason_codes")] == [[0x87]]
    assert not edge.core.counts.get("shares_not_authorized", 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_member_gets_what_it_may_have_and_others_get_the_rest(qos: int) -> None:
    """NIST: protect. None is lost, and turns go on."""
    edge, writer, (anna, boss, bert) = group("anna", "boss", "bert", qos=2)
    send(edge, writer, SECRET, 6, qos)
    assert [len(publishes(one)) for one in (anna, boss, bert)] == [0, 6, 0]
    send(edge, writer, OPEN, 6, qos)
    assert [len(publishes(one)) for one in (anna, boss, bert)] == [2, 2, 2]


def test_what_nobody_may_have_is_dropped_and_counted() -> None:
    """NIST: protect."""
    edge, writer, (anna, bert) = group("anna", "bert")
    send(edge, writer, SECRET, 3)
    assert publishes(anna) == publishes(bert) == []
    assert edge.core.counts["shares_not_authorized"] == 3 and edge.core.hot.counters()["dropped_no_pick"] == 3


def test_an_edge_that_was_picked_refuses_what_no_member_there_may_have() -> None:
    """Whoever picked it picks another one."""
    edge, _, (anna,) = group("anna")
    peer: Any = edge.core.peers.get("e1")
    assert edge.core.picked(peer, SHARE.encode(), SECRET.encode(), 1) is None
    assert edge.core.counts["shares_not_authorized"] == 1
    chosen = edge.core.picked(peer, SHARE.encode(), OPEN.encode(), 1)
    assert chosen is not None and chosen.conn is anna.client.conn


def test_a_copy_goes_to_another_edge_where_no_member_here_may_have_it() -> None:
    edge, writer, (anna,) = group("anna", elsewhere=1)
    send(edge, writer, SECRET, 2)
    peer = edge.core.peers.get("e1")
    assert publishes(anna) == [] and peer is not None and peer.link.bytes_unacknowledged > 0
    assert not edge.core.counts.get("shares_not_authorized", 0)


def test_what_waits_for_a_member_that_loses_a_part_goes_to_others() -> None:
    """NIST: respond. It stays a member; what was sent stays with it."""
    edge, writer, (boss, other) = group("boss", "other", properties={PropertyId.RECEIVE_MAXIMUM: 2})
    send(edge, writer, SECRET, 8)
    sent, others = publishes(boss), publishes(other)
    assert [copy.payload for copy in sent + others] == [b"0", b"2", b"1", b"3"]
    edge.core.replace_rules(book(rules(boss={"subscribe": []}, other=BOSS)))
    turns(edge)
    assert boss.client.partial == {f"$share/{SHARE}"} and not boss.closed
    for copy in sent:
        boss.send(ack(0x40, copy.packet_identifier or 0))
    edge.turn()
    edge.turn()
    assert publishes(boss) == [] and edge.core.counts["shares_redispatched"] == 2
    found = [copy.payload for copy in others]
    while others:
        for copy in others:
            other.send(ack(0x40, copy.packet_identifier or 0))
        edge.turn()
        others = publishes(other)
        found += [copy.payload for copy in others]
    assert sorted(found) == [b"1", b"3", b"4", b"5", b"6", b"7"]
    assert edge.core.hot.counters()["dropped_not_authorized"] == 0
    send(edge, writer, OPEN, 2)
    assert [len(publishes(one)) for one in (boss, other)] == [1, 1]


def order(pick: SharePick | None = None, attempt: int = 0) -> RedispatchOrder:
    """Return a partition's order to hand a secret copy on."""
    if attempt:
        pick = SharePick(SHARE.encode(), -1, "e9", 1, attempt)
    return RedispatchOrder(0, 1, 1, 5, SHARE.encode(), SessionWill(SECRET, b"left", 1), pick)


def test_a_partitions_copy_goes_to_a_member_that_may_have_it_or_to_nobody() -> None:
    edge, _, (anna, boss) = group("anna", "boss")
    edge.storage(order())
    edge.turn()
    (answer,) = edge.take(RedispatchReply) or [one for one in edge.seen if isinstance(one, RedispatchReply)]
    assert answer.pick is not None and answer.pick.edge == "e0"
    edge.storage(order(answer.pick))
    edge.turn()
    assert [copy.payload for copy in publishes(boss)] == [b"left"] and publishes(anna) == []
    nobody, _, _ = group("anna", "bert")
    nobody.storage(order())
    nobody.turn()
    (last,) = [one for one in nobody.seen if isinstance(one, RedispatchReply)]
    assert last.pick is None and nobody.core.counts["shares_not_authorized"] == 1


def test_a_copy_that_each_destination_refuses_is_dropped_in_the_end() -> None:
    """Edges do not say why: after many attempts nobody is asked any more."""
    edge, _, members = group("boss")
    members[0].drop()
    edge.turn()
    edge.storage(order(attempt=ATTEMPTS_MAX))
    edge.turn()
    (last,) = [one for one in edge.seen if isinstance(one, RedispatchReply)]
    assert last.pick is None and edge.core.counts["shares_not_authorized"] == 1


def test_a_partition_is_told_of_which_filters_a_part_is_granted() -> None:
    """A stored member of a part stays one when its edge refuses a copy; one of all has lost its right."""
    edge = ruled(rules(boss=BOSS))
    for role, partial in ((), [0, 2]), (("boss",), []):
        session = come(edge, principal("anna", "anna", roles=role), properties=STORED)
        session.subscribe(f"$share/{SHARE}", "down/a", "down/#")
        asked = [one for one in edge.seen if isinstance(one, SubscribeSession)]
        assert asked[-1].partial == partial
        session.drop()
        edge.turn()
