"""Members of shared subscriptions with partial permission: unauthorized copies go to other members."""

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
    """Return rules that deny secret topics to devices and allow them to a boss."""
    return roles(overlap=True, writer=WRITER, **more)


def group(*names: str, elsewhere: int = 0, qos: int = 1, **options: Any) -> tuple[Edge, Session, list[Session]]:
    """Return a writer and members of a shared subscription, bosses by name; all at one edge except some."""
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


def test_share_filter_is_partly_granted_if_configured() -> None:
    """As for an ordinary filter; refused without on_overlap = "filter"."""
    edge, _, (anna,) = group("anna")
    assert anna.client.partial == {f"$share/{SHARE}"}
    plain = ruled(roles())
    refused = come(plain, principal("anna", "anna"))
    refused.subscribe(f"$share/{SHARE}")
    assert [packet.reason_codes for packet in refused.read() if hasattr(packet, "reason_codes")] == [[0x87]]
    assert not edge.core.counts.get("shares_not_authorized", 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_copies_go_to_authorized_members(qos: int) -> None:
    """None is lost, and the round robin continues."""
    edge, writer, (anna, boss, bert) = group("anna", "boss", "bert", qos=2)
    send(edge, writer, SECRET, 6, qos)
    assert [len(publishes(one)) for one in (anna, boss, bert)] == [0, 6, 0]
    send(edge, writer, OPEN, 6, qos)
    assert [len(publishes(one)) for one in (anna, boss, bert)] == [2, 2, 2]


def test_copy_without_authorized_member_is_dropped_and_counted() -> None:
    edge, writer, (anna, bert) = group("anna", "bert")
    send(edge, writer, SECRET, 3)
    assert publishes(anna) == publishes(bert) == []
    assert edge.core.counts["shares_not_authorized"] == 3 and edge.core.hot.counters()["dropped_no_pick"] == 3


def test_picked_edge_refuses_without_authorized_member() -> None:
    """The sender picks another member."""
    edge, _, (anna,) = group("anna")
    peer: Any = edge.core.peers.get("e1")
    assert edge.core.picked(peer, SHARE.encode(), SECRET.encode(), 1) is None
    assert edge.core.counts["shares_not_authorized"] == 1
    chosen = edge.core.picked(peer, SHARE.encode(), OPEN.encode(), 1)
    assert chosen is not None and chosen.conn is anna.client.conn


def test_copy_goes_to_other_edge_without_authorized_local_member() -> None:
    edge, writer, (anna,) = group("anna", elsewhere=1)
    send(edge, writer, SECRET, 2)
    peer = edge.core.peers.get("e1")
    assert publishes(anna) == [] and peer is not None and peer.link.bytes_unacknowledged > 0
    assert not edge.core.counts.get("shares_not_authorized", 0)


def test_pending_copies_go_to_others_after_permission_removal() -> None:
    """It stays a member and keeps messages already sent."""
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
    """Return a partition's redispatch order for a secret copy."""
    if attempt:
        pick = SharePick(SHARE.encode(), -1, "e9", 1, attempt)
    return RedispatchOrder(0, 1, 1, 5, SHARE.encode(), SessionWill(SECRET, b"left", 1), pick)


def test_redispatched_copy_goes_to_authorized_member_only() -> None:
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


def test_copy_refused_by_all_destinations_is_dropped() -> None:
    """Edges give no reason: the number of attempts is bounded."""
    edge, _, members = group("boss")
    members[0].drop()
    edge.turn()
    edge.storage(order(attempt=ATTEMPTS_MAX))
    edge.turn()
    (last,) = [one for one in edge.seen if isinstance(one, RedispatchReply)]
    assert last.pick is None and edge.core.counts["shares_not_authorized"] == 1


def test_partition_receives_partly_granted_filters() -> None:
    """A stored member of such a filter stays one after a refused copy; one of a whole grant lost its permission."""
    edge = ruled(rules(boss=BOSS))
    for role, partial in ((), [0, 2]), (("boss",), []):
        session = come(edge, principal("anna", "anna", roles=role), properties=STORED)
        session.subscribe(f"$share/{SHARE}", "down/a", "down/#")
        asked = [one for one in edge.seen if isinstance(one, SubscribeSession)]
        assert asked[-1].partial == partial
        session.drop()
        edge.turn()
