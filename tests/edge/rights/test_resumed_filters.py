"""Filters of resumed durable sessions: received at the resume, authorized, and removed if refused."""

import itertools

import pytest

from edge.clients.client import Client
from edge.rights.sweep import FILTERS_PER_ITERATION
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import acl, book, come, principal, roles, ruled
from tests.edge.rights.test_sweep import ALL, LESS, turns
from wire.messages.sessions import OpenSession, SessionOpened, SessionSubscription, UnsubscribeSession

HELD = ("down/a", "more/a", "$share/g/more/b")
TAKEN = ["$share/g/more/b", "more/a"]
DURABLE: dict[int, object] = {17: 100}


def resumed(edge: Edge, *filters: str) -> Session:
    """Return a connection of anna with these filters in the CONNECT response."""
    edge.held = {OpenSession}
    session = come(edge, principal("anna", "anna"), properties=DURABLE, clean_start=False)
    (asked,) = edge.take(OpenSession)
    edge.held = set()
    assert asked.judged
    told = [SessionSubscription(name, 1) for name in filters]
    edge.storage(SessionOpened(asked.request, asked.partition, 1, 0, 9, 5, True, told))
    turns(edge)
    session.read()
    return session


def taken(edge: Edge) -> list[str]:
    messages = [message for message in edge.seen if isinstance(message, UnsubscribeSession)]
    assert all(message.revoked for message in messages)
    return sorted(name for message in messages for name in message.topic_filters)


def test_resume_removes_filters_without_permission() -> None:
    """Its role was removed while the client was disconnected."""
    edge = ruled(roles(device=LESS))
    anna = resumed(edge, *HELD)
    assert taken(edge) == TAKEN
    assert set(anna.client.subscriptions) == {"down/a"}
    assert edge.core.counts["revoked_filters"] == 2


def test_role_removal_revokes_filters_of_earlier_connections() -> None:
    edge = ruled(roles(device=ALL))
    anna = resumed(edge, *HELD)
    assert not taken(edge) and set(anna.client.subscriptions) == set(HELD)
    edge.core.replace_rules(book(roles(device=LESS)))
    turns(edge)
    assert taken(edge) == TAKEN and set(anna.client.subscriptions) == {"down/a"}


def test_partly_granted_filter_authorizes_deliveries() -> None:
    edge = ruled(acl("user anna\ntopic read down/#\ntopic deny down/secret"))
    anna = resumed(edge, "down/#")
    assert not taken(edge) and anna.client.partial == {"down/#"} and anna.client.conn.judge_pushes


def test_unsubscribe_keeps_pending_share_copies() -> None:
    """Its pending copies stay its own [MQTT-3.10.4-3]."""
    edge = ruled(roles(device=ALL))
    anna = resumed(edge, *HELD)
    anna.unsubscribe("more/a")
    turns(edge)
    (message,) = [message for message in edge.seen if isinstance(message, UnsubscribeSession)]
    assert message.topic_filters == ["more/a"] and not message.revoked


@pytest.mark.parametrize("count", [1, 300])
def test_many_resumed_sessions_are_checked_in_slices(count: int) -> None:
    """No iteration exceeds its bound, and closed clients are skipped."""
    edge = ruled(roles(device=LESS))
    for number in range(count):
        edge.core.rights.resumed.append((_with_filters(edge, f"c{number}"), []))
    edge.core.node.wake()
    rounds = 0
    while edge.core.rights.resumed:
        before = len(edge.core.rights.resumed)
        edge.turn()
        rounds += 1
        assert before - len(edge.core.rights.resumed) <= 200
    assert rounds >= count // 200


def test_many_resumed_filters_are_checked_over_several_iterations() -> None:
    edge = ruled(roles(device=LESS))
    client = resumed(edge, "down/a", *(f"more/{number}" for number in range(900))).client
    taken = []
    for _ in range(20):
        taken.append(len(client.subscriptions))
        edge.turn()
    assert set(client.subscriptions) == {"down/a"}
    assert max(before - after for before, after in itertools.pairwise(taken)) <= FILTERS_PER_ITERATION


def _with_filters(edge: Edge, name: str) -> Client:
    client = come(edge, principal("anna", name)).client
    client.subscriptions.update({text: SessionSubscription(text, 1) for text in ("down/a", "down/b", "down/c")})
    return client


def test_edge_without_rules_requests_no_filters() -> None:
    edge = Edge()
    edge.client("anna", properties=DURABLE)
    (asked,) = [message for message in edge.seen if isinstance(message, OpenSession)]
    assert not asked.judged
