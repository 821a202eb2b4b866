"""Retained messages of wildcards at an edge: bounded per iteration, round robin by client, none for closed clients."""

import pytest

from edge.rights.absent import AbsentUserChecks
from edge.subscriptions import retained_pages
from edge.subscriptions.retained_pages import MESSAGES_PER_ITERATION
from tests.edge.edge_harness import PARTITIONS, Edge, Session
from tests.edge.retained_partitions import retained
from tests.edge.session_answers import publishes
from wire.messages.retained import ReadRetainedAll, RetainedPage

PAGE = 60  # messages: more than one iteration delivers
PAGES = PARTITIONS


def reading(edge: Edge, name: str) -> tuple[Session, ReadRetainedAll]:
    """Return a client with a pending wildcard read, and its request."""
    session = edge.client(name)
    edge.held = {ReadRetainedAll}
    session.subscribe(f"{name}/#", qos=0)
    assert len(session.read()) == 1
    (read,) = edge.take(ReadRetainedAll)
    return session, read


def answer(edge: Edge, read: ReadRetainedAll, pages: int, payload: bytes = b"old") -> None:
    """Deliver the responses of several partitions in one read of the link."""
    filter_start = read.topic_filter.rstrip("#")
    for partition in range(pages):
        messages = [retained(f"{filter_start}{partition}/{number}", payload) for number in range(PAGE)]
        edge.storage(RetainedPage(read.request, messages, partition=partition))


def one_turn(edge: Edge) -> None:
    """Run one iteration only."""
    edge.core.hot.begin_turn(edge.ns)
    edge.core.hot.end_turn(edge.ns)


def test_iteration_delivers_bounded_messages_round_robin() -> None:
    """Repeated reads delay no other client; at the end each has all of its messages."""
    edge = Edge()
    greedy, everything = reading(edge, "greedy")
    modest, little = reading(edge, "modest")
    one_turn(edge)
    answer(edge, everything, PAGES)
    answer(edge, little, 1)
    one_turn(edge)
    first = len(publishes(greedy))
    assert 0 < first <= MESSAGES_PER_ITERATION + PAGE and edge.core.busy
    one_turn(edge)
    one_turn(edge)
    assert len(publishes(modest)) == PAGE
    second = len(publishes(greedy))
    assert first + second < PAGES * PAGE
    edge.turn()
    assert first + second + len(publishes(greedy)) == PAGES * PAGE
    assert not edge.core.busy


@pytest.mark.parametrize("gone", [True, False])
def test_pages_of_closed_or_unsubscribed_clients_cost_nothing(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is authorized, and no further one requested."""
    edge = Edge()
    session, read = reading(edge, "c")
    judged: list[int] = []
    original = AbsentUserChecks.check_retained

    def judge(self: AbsentUserChecks, left, then) -> None:  # type: ignore[no-untyped-def]
        judged.append(len(left))
        original(self, left, then)

    monkeypatch.setattr(AbsentUserChecks, "check_retained", judge)
    answer(edge, read, PAGES)
    before = len(judged)
    assert before < PAGES and edge.core.busy
    if gone:
        session.drop()
    else:
        session.unsubscribe("c/#")
    edge.turn()
    assert len(judged) <= before + 1 and not edge.core.busy


def test_queued_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a page is delivered at once, so that the link pauses without loss."""
    monkeypatch.setattr(retained_pages, "BYTES_MAX", 100_000)
    edge = Edge()
    session, read = reading(edge, "c")
    one_turn(edge)
    answer(edge, read, PAGES, bytes(1_000))
    taken = len(publishes(session))
    assert taken > MESSAGES_PER_ITERATION + PAGE
    edge.turn()
    assert taken + len(publishes(session)) == PAGES * PAGE
