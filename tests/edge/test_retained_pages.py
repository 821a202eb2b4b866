"""Retained messages of wildcards at an edge: some in a turn, one page of each client in turn, none for who is gone."""

import pytest

from edge.rights.absent import AbsentUserChecks
from edge.subscriptions import retained_pages
from edge.subscriptions.retained_pages import MESSAGES_PER_TURN
from tests.edge.edge_harness import PARTITIONS, Edge, Session
from tests.edge.retained_partitions import retained
from tests.edge.session_answers import publishes
from wire.messages.retained import ReadRetainedAll, RetainedPage

PAGE = 60  # messages: more than a turn takes
PAGES = PARTITIONS


def reading(edge: Edge, name: str) -> tuple[Session, ReadRetainedAll]:
    """Return a client that waits for what all partitions have, and what was asked for it."""
    session = edge.client(name)
    edge.held = {ReadRetainedAll}
    session.subscribe(f"{name}/#", qos=0)
    assert len(session.read()) == 1
    (read,) = edge.take(ReadRetainedAll)
    return session, read


def answer(edge: Edge, read: ReadRetainedAll, pages: int, payload: bytes = b"old") -> None:
    """Have as many partitions answer in one read of the link."""
    filter_start = read.topic_filter.rstrip("#")
    for partition in range(pages):
        messages = [retained(f"{filter_start}{partition}/{number}", payload) for number in range(PAGE)]
        edge.storage(RetainedPage(read.request, messages, partition=partition))


def one_turn(edge: Edge) -> None:
    """The loop's turn, without those that follow as long as something is to do."""
    edge.core.hot.begin_turn(edge.ns)
    edge.core.hot.end_turn(edge.ns)


def test_a_turn_takes_some_messages_and_each_client_has_its_turn() -> None:
    """Whoever reads everything stands in nobody's way; at the end each has all of its messages."""
    edge = Edge()
    greedy, everything = reading(edge, "greedy")
    modest, little = reading(edge, "modest")
    one_turn(edge)
    answer(edge, everything, PAGES)
    answer(edge, little, 1)
    one_turn(edge)
    first = len(publishes(greedy))
    assert 0 < first <= MESSAGES_PER_TURN + PAGE and edge.core.busy
    one_turn(edge)
    one_turn(edge)
    assert len(publishes(modest)) == PAGE
    second = len(publishes(greedy))
    assert first + second < PAGES * PAGE
    edge.turn()
    assert first + second + len(publishes(greedy)) == PAGES * PAGE
    assert not edge.core.busy


@pytest.mark.parametrize("gone", [True, False])
def test_pages_of_who_does_not_want_them_cost_nothing(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that closed, or let the filter go: no page is judged, and no further one asked for."""
    edge = Edge()
    session, read = reading(edge, "c")
    judged: list[int] = []
    original = AbsentUserChecks.judge_retained

    def judge(self: AbsentUserChecks, left, then) -> None:  # type: ignore[no-untyped-def]
        judged.append(len(left))
        original(self, left, then)

    monkeypatch.setattr(AbsentUserChecks, "judge_retained", judge)
    answer(edge, read, PAGES)
    before = len(judged)
    assert before < PAGES and edge.core.busy
    if gone:
        session.drop()
    else:
        session.unsubscribe("c/#")
    edge.turn()
    assert len(judged) <= before + 1 and not edge.core.busy


def test_pages_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many bytes waiting a page is taken as it comes, so that the link waits and nothing is lost."""
    monkeypatch.setattr(retained_pages, "BYTES_MAX", 100_000)
    edge = Edge()
    session, read = reading(edge, "c")
    one_turn(edge)
    answer(edge, read, PAGES, bytes(1_000))
    taken = len(publishes(session))
    assert taken > MESSAGES_PER_TURN + PAGE
    edge.turn()
    assert taken + len(publishes(session)) == PAGES * PAGE
