"""Scatter-gather: order, cursors, silent and restarted nodes, and results in any order."""

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.cursors import CursorRefused, Position
from admin.scatter_gather import (
    EVERY_ROW,
    NODE_S,
    TOTAL_S,
    LinkFailed,
    MapMoved,
    MissingRows,
    NodeQuery,
    QueryAnswered,
    QueryReady,
    QueryTarget,
    QueryTick,
    ResultPage,
    ScatterGather,
)


class Nodes:
    """Nodes with rows, which answer when a test says so."""

    def __init__(self, **rows: list[Any]) -> None:
        self.rows = rows
        self.lives = dict.fromkeys(rows, 1)
        self.batch = 3  # maximum rows of one result

    def targets(self) -> list[QueryTarget]:
        return [QueryTarget(node, self.lives[node]) for node in self.rows]

    def answer(self, ask: NodeQuery) -> QueryAnswered:
        """Answer like a node that numbers the rows of its incarnation."""
        here = self.rows[ask.node]
        begin = int(ask.after or 0)
        end = min(begin + min(ask.limit, self.batch), len(here))
        return QueryAnswered(
            ask.request, self.lives[ask.node], here[begin:end], str(end) if end < len(here) else "", total=len(here)
        )

    def page(self, limit: int, after: Position | None = None, **options: Any) -> ResultPage:
        """Query until the page is ready; every node answers at once."""
        gather = ScatterGather(self.targets(), limit, after=after, **options)
        ready = gather.handle(0.0, QueryTick())
        asks = list(ready.asks)
        while ready.page is None:
            ready = gather.handle(0.0, self.answer(asks.pop(0)))
            asks += ready.asks
        return ready.page


def shown(page: ResultPage) -> list[Any]:
    return [row for _, row in page.rows]


def test_walk_returns_rows_in_node_order() -> None:
    """Each row has its node."""
    page = Nodes(b=["b1", "b2"], a=["a1"], c=[]).page(10)
    assert page.rows == (("a", "a1"), ("b", "b1"), ("b", "b2"))
    assert page.after is None and page.complete and page.total_about == 3


def test_walk_partial_answers_have_no_total() -> None:
    """The rows of the first node filled the page, and were reported as the total."""
    nodes = Nodes(a=["a1", "a2"], b=["b1", "b2", "b3"])
    first = nodes.page(1)
    assert first.total_about == 0 and first.after is not None
    assert nodes.page(9, after=first.after).total_about == 0


@pytest.mark.parametrize("limit", range(1, 9))
def test_walk_pages_form_the_whole_list(limit: int) -> None:
    """Each page but the last is full, at every boundary."""
    nodes = Nodes(a=["a1", "a2"], b=[], c=["c1", "c2", "c3", "c4"], d=["d1"])
    rows: list[Any] = []
    after: Position | None = None
    while True:
        page = nodes.page(limit, after)
        rows += shown(page)
        after = page.after
        if after is None:
            break
        assert len(page.rows) == limit
    assert rows == ["a1", "a2", "c1", "c2", "c3", "c4", "d1"]


def test_walk_rows_after_page_are_in_next_page() -> None:
    """The second node answered first, with more rows than fit."""
    nodes = Nodes(a=["a1", "a2"], b=["b1", "b2", "b3"])
    gather = ScatterGather(nodes.targets(), 3)
    first, second = gather.handle(0.0, QueryTick()).asks
    assert gather.handle(0.1, nodes.answer(second)).page is None
    ready = gather.handle(0.2, nodes.answer(first))
    (again,) = ready.asks
    assert (again.node, again.after, again.limit) == ("b", "", 1)
    page = gather.handle(0.3, nodes.answer(again)).page
    assert page is not None and shown(page) == ["a1", "a2", "b1"] and page.after == Position("b", 1, "1")
    assert shown(nodes.page(9, page.after)) == ["b2", "b3"]


def test_walk_silent_node_is_named_after_timeout() -> None:
    """At any position."""
    nodes = Nodes(a=["a1"], b=["b1"], c=["c1"])
    gather = ScatterGather(nodes.targets(), 10)
    asks = gather.handle(0.0, QueryTick()).asks
    for ask in asks:
        if ask.node != "a":
            ready = gather.handle(0.1, nodes.answer(ask))
    assert ready.page is None and ready.next_deadline == NODE_S
    page = gather.handle(NODE_S, QueryTick()).page
    assert page is not None and shown(page) == ["b1", "c1"]
    assert page.partial == (MissingRows("a", "no answer in 1 s"),) and page.after is None and not page.overtime


def test_walk_late_answer_is_ignored() -> None:
    """The node is named, so its rows are absent; another one is still within its time."""
    nodes = Nodes(a=["a1"], b=["b1", "b2", "b3", "b4"])
    gather = ScatterGather(nodes.targets(), 10)
    late, other = gather.handle(0.0, QueryTick()).asks
    (more,) = gather.handle(0.5, nodes.answer(other)).asks
    gather.handle(1.0, QueryTick())
    assert gather.handle(1.1, nodes.answer(late)).page is None
    page = gather.handle(1.2, nodes.answer(more)).page
    assert page is not None and shown(page) == ["b1", "b2", "b3", "b4"]
    assert page.partial == (MissingRows("a", "no answer in 1 s"),)


def test_walk_busy_node_is_retried_then_named() -> None:
    """Its wait time counts."""
    nodes = Nodes(a=["a1"])
    gather = ScatterGather(nodes.targets(), 10)
    (ask,) = gather.handle(0.0, QueryTick()).asks
    ready = gather.handle(0.1, QueryAnswered(ask.request, 1, busy_ms=200))
    assert not ready.asks and ready.next_deadline == pytest.approx(0.3)
    (again,) = gather.handle(ready.next_deadline, QueryTick()).asks
    gather.handle(0.4, QueryAnswered(again.request, 1, busy_ms=900))
    page = gather.handle(1.0, QueryTick()).page
    assert page is not None and page.partial == (MissingRows("a", "busy for 1 s"),)


def test_walk_unqueried_node_has_no_deadline() -> None:
    """It was busy while rows of earlier nodes filled the page; queried again later, it has a full second."""
    nodes = Nodes(a=["a1"], b=["b1", "b2", "b3"], c=["c1"])
    gather = ScatterGather(nodes.targets(), 2)
    _, second, third = gather.handle(0.0, QueryTick()).asks
    gather.handle(0.1, QueryAnswered(third.request, 1, busy_ms=1))
    gather.handle(0.2, nodes.answer(second))
    assert not gather.handle(0.3, QueryTick()).asks
    nodes.lives["b"], nodes.rows["b"] = 2, []
    new, again = gather.handle(0.9, MapMoved(nodes.targets())).asks
    assert (new.node, again.node) == ("b", "c")
    gather.handle(1.0, nodes.answer(new))
    page = gather.handle(1.1, nodes.answer(again)).page
    assert page is not None and shown(page) == ["c1"] and [one.node for one in page.partial] == ["a"]


def test_walk_page_timeout_can_be_resumed() -> None:
    """A node that always answers after almost a second."""
    nodes = Nodes(a=list(range(100)), b=[])
    nodes.batch = 1
    gather = ScatterGather(nodes.targets(), 50)
    ready = gather.handle(0.0, QueryTick())
    now = 0.0
    asks = list(ready.asks)
    while ready.page is None:
        now += 0.9
        ready = gather.handle(min(now, TOTAL_S), nodes.answer(asks.pop(0)) if now < TOTAL_S else QueryTick())
        asks += ready.asks
    page = ready.page
    assert page.overtime and page.after is not None and page.after.node == "a"
    assert MissingRows("a", "not finished in 5 s") in page.partial
    assert shown(page) == list(range(int(page.after.after)))


def test_walk_restarted_node_is_read_again_and_named() -> None:
    """Between two pages, detected by the map or by the result, and within a page."""
    for by_map in (True, False):
        nodes = Nodes(a=["a1", "a2", "a3"])
        after = nodes.page(2).after
        assert after == Position("a", 1, "2")
        nodes.lives["a"] = 2
        if by_map:
            page = nodes.page(9, after)
        else:
            gather = ScatterGather([QueryTarget("a", 1)], 9, after=after)
            (ask,) = gather.handle(0.0, QueryTick()).asks
            (anew,) = gather.handle(0.1, nodes.answer(ask)).asks
            assert anew.after == ""
            found = gather.handle(0.2, nodes.answer(anew)).page
            assert found is not None
            page = found
        assert shown(page) == ["a1", "a2", "a3"] and page.restarted == ("a",)


def test_walk_rows_of_former_incarnation_are_discarded() -> None:
    """The map has the new incarnation before the node answers."""
    nodes = Nodes(a=["a1", "a2", "a3", "a4"])
    gather = ScatterGather(nodes.targets(), 9)
    (ask,) = gather.handle(0.0, QueryTick()).asks
    gather.handle(0.1, nodes.answer(ask))
    nodes.lives["a"], nodes.rows["a"] = 2, ["new"]
    (anew,) = gather.handle(0.2, MapMoved(nodes.targets())).asks
    page = gather.handle(0.3, nodes.answer(anew)).page
    assert page is not None and shown(page) == ["new"] and page.restarted == ("a",)


def test_walk_removed_node_is_named_and_its_cursor_refused() -> None:
    """The list cannot resume there."""
    nodes = Nodes(a=["a1"], b=["b1"])
    gather = ScatterGather(nodes.targets(), 9)
    first, _ = gather.handle(0.0, QueryTick()).asks
    gather.handle(0.0, nodes.answer(first))
    page = gather.handle(0.1, MapMoved([QueryTarget("a", 1)])).page
    assert page is not None and page.partial == (MissingRows("b", "left the cluster"),)
    with pytest.raises(CursorRefused, match="'gone'"):
        ScatterGather(nodes.targets(), 9, after=Position("gone", 1, "4"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (QueryAnswered(1, 1, error="no kind 'moons'"), "no kind 'moons'"),
        (QueryAnswered(1, 1, rows=[1, 2, 3], after="3"), "answered 3 rows, 2 were requested"),
        (LinkFailed("a", "connection refused"), "connection refused"),
    ],
)
def test_walk_invalid_answer_names_node(answer: Any, why: str) -> None:
    """With the reason; no rows of such a result are listed."""
    gather = ScatterGather([QueryTarget("a", 1)], 2)
    gather.handle(0.0, QueryTick())
    page = gather.handle(0.1, answer).page
    assert page is not None and page.partial == (MissingRows("a", why),) and page.rows == ()


def test_walk_node_without_progress_is_named() -> None:
    """Its position does not advance: it would repeat the answer forever."""
    gather = ScatterGather([QueryTarget("a", 1)], 5)
    (ask,) = gather.handle(0.0, QueryTick()).asks
    (again,) = gather.handle(0.1, QueryAnswered(ask.request, 1, rows=["x"], after="p")).asks
    page = gather.handle(0.2, QueryAnswered(again.request, 1, after="p")).page
    assert page is not None and page.partial[0].why.startswith("makes no progress")
    assert shown(page) == ["x"]


def test_best_merges_rows_of_all_nodes() -> None:
    """Every node is queried at once, to its end."""
    nodes = Nodes(a=[1, 9, 3, 7], b=[8], c=[2, 6, 10, 4, 5])
    page = nodes.page(4, best=lambda row: row)
    assert page.rows == (("c", 10), ("a", 9), ("b", 8), ("a", 7)) and page.after is None


def test_walk_without_targets_is_empty() -> None:
    """A cluster without such nodes."""
    page = ScatterGather([], 5).handle(0.0, QueryTick()).page
    assert page is not None and page.rows == () and page.complete


def test_gather_bounds_concurrent_queries() -> None:
    """A walk queries a few nodes ahead; the best query at most 32 nodes."""
    targets = [QueryTarget(f"node-{number:03}", 1) for number in range(100)]
    assert len(ScatterGather(targets, 5).handle(0.0, QueryTick()).asks) == 4
    assert len(ScatterGather(targets, 5, best=lambda row: row).handle(0.0, QueryTick()).asks) == 32


def test_every_row_queries_all_nodes_once() -> None:
    """In any order of answers, no rows are read twice, and rows are in the order of the nodes."""
    nodes = Nodes(a=[f"a{n}" for n in range(7)], b=[f"b{n}" for n in range(9)], c=["c0"])
    gather = ScatterGather(nodes.targets(), EVERY_ROW)
    asks = list(gather.handle(0.0, QueryTick()).asks)
    assert [ask.node for ask in asks] == ["a", "b", "c"]
    places = []
    page = None
    while page is None:
        ask = asks.pop()  # the last node first
        places.append((ask.node, ask.after))
        ready = gather.handle(0.0, nodes.answer(ask))
        asks += ready.asks
        page = ready.page
    assert len(places) == len(set(places)) == 3 + 3 + 1
    assert shown(page) == [*nodes.rows["a"], *nodes.rows["b"], "c0"] and page.after is None
    many = [QueryTarget(f"node-{number:03}", 1) for number in range(100)]
    assert len(ScatterGather(many, EVERY_ROW).handle(0.0, QueryTick()).asks) == 32


def test_every_row_restarts_timeout_with_rows() -> None:
    """A long list ends at a node without further rows, and can be resumed."""
    nodes = Nodes(a=["a1"], b=[f"b{number}" for number in range(30)])
    gather = ScatterGather(nodes.targets(), EVERY_ROW)
    first, ask = gather.handle(0.0, QueryTick()).asks
    gather.handle(0.0, nodes.answer(first))
    now = 0.0
    for _ in range(8):  # 7.2 s in total
        now += 0.9
        ready = gather.handle(now, nodes.answer(ask))
        assert ready.page is None
        (ask,) = ready.asks
    while ready.page is None:  # from here on it finds no rows
        now += 0.5
        ready = gather.handle(now, QueryAnswered(ask.request, 1, (), f"{100 + now}"))
        ask = ready.asks[0] if ready.asks else ask
    assert now == pytest.approx(7.2 + TOTAL_S) and ready.page.overtime and len(ready.page.rows) == 1 + 24
    assert ready.page.after == Position("b", 1, f"{100 + now}")
    assert ready.page.partial == (MissingRows("b", "not finished in 5 s"),)


# -- any order

NAMES = ("a", "b", "c", "d", "e")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_order_of_answers_failures_and_restarts(data: st.DataObject) -> None:
    """No row of one incarnation twice, no incomplete node unnamed, and rows in order."""
    sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    lives = dict.fromkeys(NAMES[: len(sizes)], 1)
    count = dict(zip(NAMES, sizes, strict=False))
    failed: set[str] = set()
    named: dict[str, str] = {}
    anew: set[str] = set()
    rows_seen: list[tuple[str, int, int]] = []

    def answer(ask: NodeQuery) -> QueryAnswered:
        begin = int(ask.after or 0)
        end = min(begin + data.draw(st.integers(0, min(ask.limit, 3))), count[ask.node])
        end = max(end, begin + 1) if begin == end < count[ask.node] and ask.limit else end
        incarnation = lives[ask.node]
        rows = [(ask.node, incarnation, number) for number in range(begin, end)]
        return QueryAnswered(ask.request, incarnation, rows, str(end) if end < count[ask.node] else "")

    after: Position | None = None
    for _ in range(60):
        targets = [QueryTarget(node, incarnation) for node, incarnation in lives.items()]
        gather = ScatterGather(targets, data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, EVERY_ROW])), after=after)
        now = 0.0
        ready = gather.handle(now, QueryTick())
        asks = list(ready.asks)
        while ready.page is None:
            ready = _happens(data, gather, asks, answer, lives, failed, now)
            asks += ready.asks
            now += 0.001
            if ready.page is None and not asks:
                now = ready.next_deadline
                assert now < math.inf
                ready = gather.handle(now, QueryTick())
                asks += ready.asks
        page = ready.page
        rows_seen += shown(page)
        named.update({missing.node: missing.why for missing in page.partial})
        anew.update(page.restarted)
        after = page.after
        if after is None:
            break
    else:
        raise AssertionError("the walk has no end")

    assert len(rows_seen) == len(set(rows_seen)), "a row twice"
    by_life: dict[tuple[str, int], list[int]] = defaultdict(list)
    for node, incarnation, number in rows_seen:
        by_life[node, incarnation].append(number)
    for node, size in count.items():
        whole = by_life[node, lives[node]] == list(range(size))
        assert whole or node in named or lives[node] > 1, f"{node} is not whole and not named"
        assert (
            node in anew
            or len({incarnation for name, incarnation in by_life if name == node and by_life[name, incarnation]}) <= 1
        )
    assert set(named) <= failed
    assert [node for node, _, _ in rows_seen] == sorted(node for node, _, _ in rows_seen)


def _happens(
    data: st.DataObject,
    gather: ScatterGather,
    asks: list[NodeQuery],
    answer: Any,
    lives: dict[str, int],
    failed: set[str],
    now: float,
) -> QueryReady:
    """Apply one event that Hypothesis chooses."""
    what = data.draw(st.sampled_from(["answer"] * 6 + ["busy", "fail", "silent", "restart"]))
    node = data.draw(st.sampled_from(sorted(lives)))
    if what == "restart":
        lives[node] += 1
        if data.draw(st.booleans()):
            return gather.handle(now, MapMoved([QueryTarget(name, incarnation) for name, incarnation in lives.items()]))
        return gather.handle(now, QueryTick())
    if what == "fail":
        failed.add(node)
        return gather.handle(now, LinkFailed(node, "gone"))
    if not asks:
        return gather.handle(now, QueryTick())
    ask = asks.pop(data.draw(st.integers(0, len(asks) - 1)))
    if what == "silent":
        failed.add(ask.node)
        return gather.handle(now, QueryTick())
    if what == "busy":
        return gather.handle(now, QueryAnswered(ask.request, lives[ask.node], busy_ms=1))
    return gather.handle(now, answer(ask))
