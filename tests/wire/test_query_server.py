"""The query server: work bounds, cursors, filters, roles, pace, and queries that wait for new rows."""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import rows_of
from wire.queries.ordered_keys import OrderedKeys
from wire.queries.pace import Clocks, QueryBounds
from wire.queries.query_server import PENDING_MAX, QueryServer
from wire.queries.source import Place, QueryRefused, RowScan, RowSource
from wire.queries.wildcards import is_literal, matcher


class Clock:
    """A clock that advances by a fixed step per reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Shown:
    """A query server of an edge with some clients."""

    def __init__(self, clients: int = 30, bounds: QueryBounds | None = None, clocks: Clocks | None = None) -> None:
        self.table = {number: f"client-{number}" for number in range(1, clients + 1)}
        self.keys: OrderedKeys[int] = OrderedKeys(lambda: self.table)
        self.answers: list[tuple[str, QueryResult]] = []
        self.log: list[str] = []
        self.built: list[str] = []
        sources = {
            "clients": RowSource(
                self._walk, {"client_id": self._client_id, "number": lambda one: one, "user": lambda _: None}
            ),
            "journal": RowSource(self._journal, {"number": lambda one: one}, newest=lambda _: len(self.log)),
            "log": RowSource(self._journal, {"number": lambda one: one}),
        }
        bounds = bounds or QueryBounds(500, 1.0, 32 * 1024)
        self.desk = QueryServer(
            "e1",
            "edge",
            bounds,
            sources,
            lambda node, seen: self.answers.append((node, seen)),
            lambda: 7,
            lambda: 99,
            clocks,
        )
        self.now = 100.0

    def _client_id(self, number: int) -> str:
        self.built.append("client_id")
        return self.table[number]

    def _walk(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        (after,) = ask.numbers(1)
        for number in self.keys.behind(after if after >= 0 else None, ask.now):
            if number in self.table:
                yield number, number

    def _journal(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        for number in range(max(0, ask.numbers(1)[0]) + 1, len(self.log) + 1):
            yield number, number

    def ask(self, look: Query, role: str = "admin", node: str = "admin:a/1") -> QueryResult:
        count = len(self.answers)
        self.desk.ask(self.now, node, role, look)
        self.desk.turn(self.now)
        assert len(self.answers) == count + 1
        return self.answers[-1][1]

    def every_id(self, limit: int) -> list[str]:
        """Return the client IDs of all pages."""
        found: list[str] = []
        after = ""
        while True:
            self.now += 1
            seen = self.ask(Query(1, "clients", after=after, limit=limit))
            assert not seen.error
            found += [row.client_id for row in rows_of("clients", seen)]
            after = seen.after
            if not after:
                return found


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_query_pages_return_every_row_once_in_order(limit: int) -> None:
    shown = Shown()
    assert shown.every_id(limit) == list(shown.table.values())


def test_query_pages_repeat_no_row_when_rows_are_removed() -> None:
    shown = Shown()
    first = shown.ask(Query(1, "clients", limit=10))
    for number in (5, 12, 13):
        del shown.table[number]
    shown.table[31] = "client-31"
    shown.now += 5
    second = shown.ask(Query(1, "clients", after=first.after, limit=1000))
    numbers = [row.number for row in rows_of("clients", second)]
    assert numbers == [11, *range(14, 32)]


def test_query_result_has_timestamp_and_map_epoch() -> None:
    seen = Shown().ask(Query(5, "clients", limit=3))
    assert (seen.request, seen.map_epoch, seen.at_ms, seen.visited, seen.after) == (5, 7, 99, 3, "3")


def test_query_stops_at_its_row_bound_without_matches() -> None:
    shown = Shown(clients=100, bounds=QueryBounds(40, 1.0, 32 * 1024))
    seen = shown.ask(Query(1, "clients", where={"client_id": "none"}))
    assert (seen.rows, seen.visited, seen.after) == ([], 40, "40")


def test_query_stops_at_its_time_bound() -> None:
    shown = Shown(clients=100, bounds=QueryBounds(500, 0.0003, 32 * 1024), clocks=Clocks(Clock(0.0001)))
    seen = shown.ask(Query(1, "clients"))
    assert 8 <= seen.visited <= 40
    assert seen.after == str(seen.visited)


def test_query_reply_bytes_bound_loses_no_row() -> None:
    shown = Shown(clients=100, bounds=QueryBounds(500, 1.0, 300))
    seen = shown.ask(Query(1, "clients"))
    assert 0 < sum(map(len, seen.rows)) <= 300
    assert shown.every_id(1000) == list(shown.table.values())


def test_query_cuts_long_text_with_a_note() -> None:
    shown = Shown(clients=3)
    shown.table[2] = "x" * 65_535
    seen = shown.ask(Query(1, "clients"))
    assert [len(row.client_id) for row in rows_of("clients", seen)] == [8, 4096, 8]
    assert "4096" in seen.note


def test_query_does_not_build_unrequested_columns() -> None:
    shown = Shown(clients=3)
    seen = shown.ask(Query(1, "clients", columns=["number"]))
    assert not shown.built
    assert [(row.number, row.client_id) for row in rows_of("clients", seen)] == [(1, None), (2, None), (3, None)]


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ({"client_id": "client-2*"}, [2, *range(20, 30)]),
        ({"client_id": "client-?"}, list(range(1, 10))),
        ({"client_id": "*-1?", "number": "1*"}, list(range(10, 20))),
        ({"client_id": "client-3"}, [3]),
        ({"user": "*"}, []),  # an unknown value matches no filter
    ],
)
def test_query_filters_must_all_match(where: dict[str, str], numbers: list[int]) -> None:
    assert [row.number for row in rows_of("clients", Shown().ask(Query(1, "clients", where=where)))] == numbers


@pytest.mark.parametrize(
    ("look", "role", "error", "exit_code"),
    [
        (Query(1, "cats"), "admin", "edge e1 shows no 'cats': it shows clients, journal, log", 2),
        (Query(1, "sessions"), "admin", "edge e1 shows no 'sessions'", 2),
        (Query(1, "clients", columns=["cat"]), "admin", "clients has no column 'cat': client_id, user, state", 2),
        (Query(1, "clients", where={"cat": "*"}), "admin", "clients has no 'cat' to choose by: client_id", 2),
        (Query(1, "clients", where={"client_id": "*" * 1025}), "admin", "at most 1024 characters", 2),
        (Query(1, "clients", after="x"), "admin", "'x' is no place in this list", 2),
        (Query(1, "clients", after="1:2"), "admin", "'1:2' is no place in this list", 2),
        (
            Query(1, "log", role="admin"),
            "viewer",
            "a look at log wants the role operator; what counts here is viewer",
            1,
        ),
        (
            Query(1, "log", role="viewer"),
            "admin",
            "a look at log wants the role operator; what counts here is viewer",
            1,
        ),
        (Query(1, "log", role="root"), "admin", "wants the role operator", 1),
    ],
)
def test_query_refusal_has_its_reason(look: Query, role: str, error: str, exit_code: int) -> None:
    seen = Shown().ask(look, role)
    assert seen.error.startswith(error) or error in seen.error
    assert (seen.rows, seen.exit_code) == ([], exit_code)


def test_query_role_is_the_lower_of_certificate_and_query() -> None:
    assert not Shown().ask(Query(1, "log", role="operator"), "admin").error
    assert "wants the role operator" in Shown().ask(Query(1, "log", role="viewer"), "admin").error
    assert "wants the role operator" in Shown().ask(Query(1, "log", role="admin"), "viewer").error


def test_query_server_above_its_pace_queues_then_reports_busy() -> None:
    shown = Shown()
    for number in range(20 + PENDING_MAX):
        shown.desk.ask(shown.now, "admin:a/1", "admin", Query(number + 1, "clients", limit=1))
        shown.desk.turn(shown.now)
    assert len(shown.answers) == 20, "a burst"
    shown.desk.ask(shown.now, "admin:b/1", "admin", Query(999, "clients"))
    _, refused = shown.answers[-1]
    assert (refused.request, refused.exit_code) == (999, 4)
    assert 0 < refused.retry_ms <= 1000
    assert "busy" in refused.error
    before = len(shown.answers)
    while len(shown.desk):
        shown.now = max(shown.now + 1e-6, shown.desk.next_deadline())
        shown.desk.turn(shown.now)
    assert len(shown.answers) - before == PENDING_MAX
    assert shown.now - 100.0 == pytest.approx(PENDING_MAX / 200, rel=0.1), "200 a second"
    assert shown.desk.next_deadline() == float("inf")


@pytest.mark.parametrize(("busy", "share"), [(0.9, 0.018), (0.4, 0.008), (0.15, 0.004), (0.05, 0.25)])
def test_query_pacer_bounds_the_share_of_the_loop(busy: float, share: float) -> None:
    """A quarter of an idle loop; of a busy one a fiftieth of its other work, at least 0.4 % of the time."""
    work = Clock()
    used = [0.0]
    shown = Shown(clocks=Clocks(work, lambda: used[0] + work.now))
    length = 0.002
    shown.table.clear()

    def slow(_: RowScan) -> Iterator[tuple[Place, Any]]:
        work.now += length
        return iter(())

    shown.desk.show("clients", RowSource(slow, {}))
    answered = 0
    for turn in range(4000):
        shown.now = 100.0 + turn / 1000
        used[0] = busy * turn / 1000
        while len(shown.desk) < 5:
            shown.desk.ask(shown.now, "admin:a/1", "admin", Query(1, "clients"))
        shown.desk.turn(shown.now)
    answered = len(shown.answers)
    at_first = 0.005 + 0.25 * 0.05  # credit, and the share until the first measurement
    assert answered * length == pytest.approx(4.0 * share + at_first, rel=0.15, abs=2 * length)


def test_query_is_short_while_the_loop_is_busy() -> None:
    """A query of 2 ms delayed the next one by half a second."""
    work, used = Clock(0.0001), [0.0]
    shown = Shown(clients=200, bounds=QueryBounds(5_000, 0.002, 256 * 1024), clocks=Clocks(work, lambda: used[0]))
    idle = shown.ask(Query(1, "clients", limit=1000))
    shown.now, used[0] = 101.0, 0.5
    busy = shown.ask(Query(2, "clients", limit=1000))
    assert 0 < busy.visited < idle.visited / 3 and busy.after


def test_query_waits_for_new_rows_and_resumes_after_them() -> None:
    shown = Shown()
    shown.log.append("one")
    seen = shown.ask(Query(1, "journal", wait_ms=1000))
    assert (len(seen.rows), seen.after) == (1, "1")
    shown.desk.ask(shown.now, "admin:a/1", "admin", Query(2, "journal", after="1", wait_ms=1000))
    shown.desk.turn(shown.now)
    assert len(shown.answers) == 1
    shown.log.append("two")
    shown.now = shown.desk.next_deadline()
    shown.desk.turn(shown.now + 0.1)
    _, seen = shown.answers[-1]
    assert ([row.number for row in rows_of("journal", seen)], seen.after) == ([2], "2")


def test_query_without_new_rows_is_answered_at_its_timeout() -> None:
    shown = Shown()
    shown.desk.ask(shown.now, "admin:a/1", "admin", Query(2, "journal", wait_ms=1000))
    while not shown.answers:
        shown.desk.turn(shown.now)
        shown.now += 0.05
    assert shown.now - 100.0 == pytest.approx(1.0, abs=0.2)
    assert shown.answers[0][1].rows == []


def test_query_of_a_disconnected_operator_is_dropped() -> None:
    shown = Shown()
    shown.desk.ask(shown.now, "admin:a/1", "admin", Query(2, "journal", wait_ms=1000))
    shown.desk.turn(shown.now)
    shown.desk.ask(shown.now, "admin:a/1", "admin", Query(3, "clients"))
    shown.desk.gone("admin:a/1")
    shown.desk.turn(shown.now + 5)
    assert not shown.answers
    assert len(shown.desk) == 0


# --- patterns


def _as_expression(pattern: str) -> re.Pattern[str]:
    letters = {"*": ".*", "?": "."}
    return re.compile("".join(letters.get(letter, re.escape(letter)) for letter in pattern), re.DOTALL)


def test_matcher_agrees_with_a_regular_expression() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        pattern = "".join(rng.choices("ab*?", k=rng.randrange(7)))
        text = "".join(rng.choices("ab", k=rng.randrange(8)))
        assert matcher(pattern)(text) == bool(_as_expression(pattern).fullmatch(text)), (pattern, text)


@pytest.mark.parametrize("pattern", ["*a" * 5_000 + "*b", "a?*" * 2_000 + "b", "*" * 65_535, "?" * 65_535])
def test_matcher_hostile_pattern_costs_linear_time(pattern: str) -> None:
    began = time.thread_time()
    matcher(pattern)("a" * 10_000)
    assert time.thread_time() - began < 2.0


def test_matcher_has_only_two_wildcards() -> None:
    assert is_literal("a.[b]+\\d^$")
    assert matcher("a.[b]+\\d^$")("a.[b]+\\d^$")
    assert not matcher("a.c")("abc")


def test_walk_refuses_an_invalid_cursor() -> None:
    ask = RowScan({}, "5:a:b", frozenset(), "viewer", 1, 0.0)
    assert ask.number_and_text() == (5, "a:b")
    with pytest.raises(QueryRefused):
        RowScan({}, "x:a", frozenset(), "viewer", 1, 0.0).number_and_text()
