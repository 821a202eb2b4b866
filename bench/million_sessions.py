"""List a million stored sessions: the query servers of three storage nodes, their rate and limits, page after page.

    python -m bench.million_sessions [--sessions 1000000] [--nodes 3] [--runs 3]

One process holds the sessions of all nodes and answers as nodes do at the end of their iterations, with real clocks;
links and sockets are omitted. A query server's share of its loop is checked by its own CPU time, as on an otherwise
idle node. Rows are read as the command line reads them; ``client list`` and similar commands write a row in 50 us after
that. Limits: first page of 100 in 200 ms, all pages in 60 s, the longest round of a node 20 ms.
"""

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any

from admin.scatter_gather import EVERY_ROW, NodeQuery, QueryAnswered, QueryTarget, QueryTick, ResultPage, ScatterGather
from storage.queries.operators import STORAGE_BOUNDS
from storage.queries.query_rows import QueryRows
from storage.queries.sessions import session_sources
from storage.state.durable_sessions import DurableSession
from stratamq.cli.nouns import NOUNS
from wire.messages.cluster_map import ClusterMap
from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import rows_of
from wire.queries.pace import Clocks
from wire.queries.query_server import QueryServer

PARTITIONS = 256
COLUMNS = list(NOUNS["session"].columns)


class Node:
    """A storage node's partitions and its query server."""

    def __init__(self, name: str, partitions: range, sessions: int) -> None:
        self.rounds: list[float] = []  # CPU seconds of each iteration of the query server
        self._worked = 0.0
        hosted: dict[int, Any] = {number: _partition(number, sessions // PARTITIONS) for number in partitions}
        shown = QueryRows(name, hosted, lambda: ClusterMap(""), lambda _: 1_000, lambda: 1_000)
        self.count = sum(len(one.partition.sessions) for one in hosted.values())
        self._answers: list[QueryResult] = []
        clocks = Clocks(time.perf_counter, lambda: self._worked)
        self._desk = QueryServer(
            name,
            "storage",
            STORAGE_BOUNDS,
            session_sources(shown),
            lambda _, seen: self._answers.append(seen),
            lambda: 1,
            clocks=clocks,
        )

    def ask(self, look: Query) -> None:
        """Take a question."""
        self._desk.ask(time.monotonic(), "operator", "admin", look)

    def turn(self) -> list[QueryResult]:
        """Run one iteration of the loop; return the answers."""
        now = time.monotonic()
        if self._desk.next_deadline() > now:
            return []
        began = time.thread_time()
        self._desk.turn(now)
        took = time.thread_time() - began
        self.rounds.append(took)
        self._worked += took
        answers, self._answers = self._answers, []
        return answers


def _partition(number: int, sessions: int) -> Any:
    held = {}
    for counter in range(1, sessions + 1):
        session = held[number << 48 | counter] = DurableSession(number << 48 | counter, f"device-{number}-{counter}")
        session.expiry_s = 3600
        session.deadline = 3_600_000
    wills = SimpleNamespace(of=lambda _: None)
    owners = SimpleNamespace(wills=wills, holders={}, openings={})
    partition = SimpleNamespace(number=number, sessions=held, replicas={"s0": 0, "s1": 0, "s2": 0})
    return SimpleNamespace(partition=partition, owners=owners, serving=True)


def listed(nodes: dict[str, Node], limit: int) -> tuple[float, ResultPage]:
    """Return the duration of a list, and its rows."""
    began = time.perf_counter()
    gather = ScatterGather([QueryTarget(name, 1) for name in nodes], limit, total_s=30.0)
    ready = gather.handle(time.monotonic(), QueryTick())
    while ready.page is None:
        for ask in ready.asks:
            nodes[ask.node].ask(Query(ask.request, "sessions", {}, ask.after, ask.limit, COLUMNS, role="admin"))
        answers = [seen for node in nodes.values() for seen in node.turn()]
        ready = ready._replace(asks=())
        asks: list[NodeQuery] = []
        for seen in answers:
            rows = rows_of("sessions", seen)
            ready = gather.handle(
                time.monotonic(),
                QueryAnswered(seen.request, 1, rows, seen.after, seen.retry_ms, seen.error, seen.total),
            )
            asks += ready.asks
        ready = ready._replace(asks=tuple(asks))
        if not answers:
            time.sleep(0.0002)
    return time.perf_counter() - began, ready.page


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    share = PARTITIONS // asked.nodes
    spans = [range(share * n, PARTITIONS if n == asked.nodes - 1 else share * (n + 1)) for n in range(asked.nodes)]
    nodes = {f"storage-{n}": Node(f"storage-{n}", span, asked.sessions) for n, span in enumerate(spans)}
    count = sum(node.count for node in nodes.values())
    first = statistics.median(listed(nodes, 100)[0] for _ in range(asked.runs))
    whole = []
    for _ in range(asked.runs):
        took, page = listed(nodes, EVERY_ROW)
        assert len(page.rows) == count and page.complete, (len(page.rows), page.partial)
        whole.append(took)
    rounds = sorted(took for node in nodes.values() for took in node.rounds)
    print(f"{count} sessions at {asked.nodes} nodes: first page {1000 * first:.1f} ms (bar 200 ms)")
    print(f"all rows {statistics.median(whole):.1f} s (bar 60 s), longest round {1000 * rounds[-1]:.1f} ms (bar 20 ms)")


if __name__ == "__main__":
    main()
