"""The journal of a node: bounded in total, per second and by duplicates; suppressed entries are counted."""

from typing import Any

from wire.messages.cluster_map import ClusterMap
from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import rows_of
from wire.queries.journal import ENTRIES, ENTRIES_PER_SECOND, Journal, journal_source
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer


class Node:
    """A node with only a journal, and a manual clock."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.journal = Journal(lambda: self.ms)
        self.results: list[QueryResult] = []
        source = journal_source(self.journal, "n1", lambda: ClusterMap("c"))
        bounds = QueryBounds(rows=500, seconds=1.0, reply_bytes=256 * 1024)
        self.desk = QueryServer("n1", "storage", bounds, {"journal": source}, self._take, lambda: 1)
        self.now = 0.0

    def _take(self, node: str, seen: QueryResult) -> None:
        del node
        self.results.append(seen)

    def look(self, **options: Any) -> QueryResult:
        self.now += 1.0
        self.desk.ask(self.now, "op", "viewer", Query(1, "journal", role="viewer", **options))
        self.desk.turn(self.now)
        return self.results[-1]

    def rows(self, **options: Any) -> list[Any]:
        return rows_of("journal", self.look(**options))


def test_journal_entry_has_event_client_and_time() -> None:
    node = Node()
    node.journal.note("drop", "queue_full", "dev7", "a/b", (1, 5 << 48 | 9, 3), "entry 12")
    (row,) = node.rows()
    assert (row.number, row.at_ms, row.node, row.event, row.reason) == (1, 1_000_000, "n1", "drop", "queue_full")
    assert (row.client_id, row.topic, row.origin, row.detail) == ("dev7", "a/b", "session/5-9/3", "entry 12")
    assert row.left_out is None


def test_journal_keeps_one_entry_per_kind_and_second_and_counts_the_rest() -> None:
    node = Node()
    for _ in range(5):
        node.journal.note("drop", "slow", "dev7", "a/b")
    node.journal.note("drop", "slow", "dev8", "a/b")
    node.journal.note("drop", "window", "dev8", "a/b")
    node.ms += 1000
    node.journal.note("drop", "slow", "dev7", "c")
    found = [(row.client_id, row.reason, row.left_out) for row in node.rows()]
    assert found == [("dev7", "slow", None), ("dev8", "slow", 4), ("dev8", "window", None), ("dev7", "slow", None)]
    assert node.journal.left_out() == 4


def test_journal_burst_keeps_older_entries() -> None:
    node = Node()
    node.journal.note("will", "fired", "first", "w")
    for number in range(5000):
        node.journal.note("refused", "0x87", f"storm{number}")
    assert len(node.journal.entries) == ENTRIES_PER_SECOND
    assert node.journal.left_out() == 5001 - ENTRIES_PER_SECOND
    assert node.rows(limit=1)[0].client_id == "first"


def test_journal_drops_oldest_entries_and_cursors_stay_valid() -> None:
    node = Node()
    for number in range(ENTRIES + 100):
        node.ms += 1000
        node.journal.note("ended", "0x8d", f"c{number}")
    assert len(node.journal.entries) == ENTRIES
    assert [row.number for row in node.rows(limit=2)] == [101, 102]
    assert [row.number for row in node.rows(limit=2, after="50")] == [101, 102]
    assert [row.number for row in node.rows(limit=2, after="16000")] == [16001, 16002]
    assert [row.client_id for row in node.rows(after=str(ENTRIES + 98))] == [f"c{ENTRIES + 98}", f"c{ENTRIES + 99}"]
    assert node.rows(after=str(ENTRIES + 100)) == []


def test_journal_reports_entries_suppressed_by_callers() -> None:
    node = Node()
    outside = [0]
    node.journal.outside = lambda: outside[0]
    node.journal.note("drop", "slow", "a")
    outside[0] = 7
    node.journal.note("drop", "slow", "b")
    assert [row.left_out for row in node.rows()] == [None, 7]


def test_journal_query_waiting_for_new_entries_gets_them() -> None:
    node = Node()
    node.journal.note("drop", "slow", "a")
    node.desk.ask(1.0, "op", "viewer", Query(2, "journal", role="viewer", after="1", wait_ms=5000))
    node.desk.turn(1.0)
    assert not node.results
    node.journal.note("kicked", "kicked", "b")
    node.desk.turn(1.5)
    node.desk.turn(1.6)
    assert [row.client_id for row in rows_of("journal", node.results[-1])] == ["b"]


def test_journal_cuts_long_names() -> None:
    node = Node()
    node.journal.note("refused", "0x85", "c" * 65_535, "t" * 65_535, detail="d" * 65_535)
    (row,) = node.rows()
    assert (len(row.client_id), len(row.topic), len(row.detail)) == (256, 256, 256)
