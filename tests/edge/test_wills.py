"""Wills that a partition orders at its edge."""

import pytest

from edge.publishing import publishing
from tests.edge.edge_harness import Edge, cluster_map
from tests.edge.session_answers import publishes
from wire.messages.map_pages import map_pages
from wire.messages.redispatch import RedispatchOrder, RedispatchReply
from wire.messages.routes import Destinations, GroupDestinations, Resolve, Resolved
from wire.messages.wills import FireWill, SessionWill, WillFired


def answers(edge: Edge) -> list[tuple[int, bool]]:
    return [(answer.number, answer.again) for answer in edge.take(WillFired)]


def test_will_is_fanned_out_and_reported() -> None:
    """The partition receives WillFired after all destinations have the will."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("w")
    session.read()
    edge.held = {WillFired}
    edge.storage(FireWill(3, 1, 1, 17, SessionWill("w", b"bye", 1)))
    edge.turn()
    (copy,) = publishes(session)
    assert (copy.payload, copy.qos) == (b"bye", 1)
    assert [(m.request, m.partition, m.number) for m in edge.take(WillFired)] == [(3, 1, 17)]


def test_repeated_will_order_is_answered_once_to_the_new_primary() -> None:
    """The topic is not resolved yet when the partition moves to another node."""
    edge = Edge()
    edge.held = {WillFired, Resolve}
    edge.storage(FireWill(0, 1, 1, 17, SessionWill("w", b"bye", 1)))
    edge.turn()
    edge.router(map_pages(cluster_map(2, "s1", 2))[0])
    edge.turn()
    edge.storage(FireWill(0, 1, 1, 17, SessionWill("w", b"bye", 1)), "s1")
    edge.turn()
    (resolve,) = edge.take(Resolve)
    edge.router(Resolved(resolve.request, resolve.shard_epoch, [Destinations()], [0]))
    edge.turn()
    assert [(node, type(message)) for node, message in edge.core.told if isinstance(message, WillFired)] == [
        ("s1", WillFired)
    ]


def test_will_order_of_a_later_map_is_answered_for_repetition() -> None:
    edge = Edge()
    edge.held = {WillFired, RedispatchReply}
    edge.storage(FireWill(0, 1, 9, 17, SessionWill("w", b"bye", 1)))
    edge.storage(RedispatchOrder(0, 1, 9, 4, b"g/w", SessionWill("w", b"bye", 1)))
    edge.turn()
    assert answers(edge) == [(17, True)]
    assert [(answer.number, answer.again) for answer in edge.take(RedispatchReply)] == [(4, True)]


def test_wills_above_the_limit_are_refused_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts wills without an acknowledgement of their destinations."""
    monkeypatch.setattr(publishing, "WILLS_MAX", 2)
    edge = Edge()
    edge.held = {WillFired, Resolve}
    for number in (1, 2, 3):
        edge.storage(FireWill(0, 1, 1, number, SessionWill("w", b"bye", 1)))
    edge.turn()
    assert answers(edge) == [(3, True)] and edge.core.counts["wills_refused"] == 1


def test_will_answer_is_retried_after_a_full_link(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge()
    edge.held = {WillFired}
    full = [True]
    tell = edge.core.node.tell

    def no_room(node: str, message: object) -> bool:
        return False if full[0] and isinstance(message, WillFired) else tell(node, message)  # type: ignore[arg-type]

    monkeypatch.setattr(edge.core.node, "tell", no_room)
    edge.storage(FireWill(0, 1, 1, 17, SessionWill("w", b"bye", 1)))
    edge.turn(1.0)
    assert answers(edge) == []
    full[0] = False
    edge.turn(0.2)
    assert answers(edge) == [(17, False)]
    edge.turn(1.0)
    assert answers(edge) == []


def test_will_copies_of_shared_groups_are_left_to_the_partition() -> None:
    """Other subscribers receive the will now; an edge that repeats it would select other members."""
    edge = Edge()
    edge.held = {WillFired}
    edge.routes["w"] = Destinations(groups=[GroupDestinations("g/w", [("e0", 1)])])
    member, plain = edge.client("m"), edge.client("p")
    member.subscribe("$share/g/w")
    plain.subscribe("w")
    member.read(), plain.read()
    edge.storage(FireWill(0, 1, 1, 17, SessionWill("w", b"bye", 1)))
    edge.turn()
    assert len(publishes(plain)) == 1 and publishes(member) == []
    (answer,) = edge.take(WillFired)
    assert (answer.number, answer.again, answer.shares) == (17, False, [b"g/w"])
