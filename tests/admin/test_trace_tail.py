"""Following a trace: nodes hold queries until they have events, and are queried no more often than necessary."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from admin.links import answered, carry
from admin.queries import Cluster
from admin.scatter_gather import Event, LinkFailed, NodeQuery, QueryAnswered, QueryTemplate, ResultPage, ScatterGather
from admin.trace_tail import WAIT_S, follow
from admin.traces import TraceRead
from conf.errors import UserError
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.orders import TraceOrder
from wire.messages.queries import Query, QueryResult
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer
from wire.queries.tracer import Tracer

TURN_S = 0.02
NODES = {"edge-0": "edge", "storage-0": "storage"}
UTC_US = 1_800_000_000_000_000


class QueryServers:
    """The query servers of two nodes, as links of the query layer; each runs every 20 ms."""

    def __init__(self) -> None:
        self.map = ClusterMap("c", 1)
        self.silent: set[str] = set()
        self.queries: Counter[str] = Counter()
        self.traces: dict[str, Tracer] = {}
        self._servers: dict[str, QueryServer] = {}
        self._results: list[QueryResult] = []
        for name, tier in NODES.items():
            self.map.nodes[name] = NodeEntry(name, tier, 1, f"{name}:1", state=NodeState.ACTIVE)
            traces = self.traces[name] = Tracer(name, lambda: self.map, lambda: None)
            traces.utc_us = lambda: UTC_US + int(trio.current_time() * 1e6)
            bounds = QueryBounds(100, 1.0, 32 * 1024)
            self._servers[name] = QueryServer(name, tier, bounds, traces.sources(), self._add_result, lambda: 1)

    def _add_result(self, node: str, result: QueryResult) -> None:
        del node
        self._results.append(result)

    async def query_node(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        self.queries[question.what] += 1
        request = self.queries.total()
        with trio.move_on_after(timeout_s):
            if node in self.silent:
                await trio.sleep_forever()
            server, where = self._servers[node], dict(question.where)
            query_node = Query(request, question.what, where, after, limit, [], "", "operator", question.wait_ms)
            server.ask(trio.current_time(), "op", "operator", query_node)
            while True:
                server.turn(trio.current_time())
                for result in [one for one in self._results if one.request == request]:
                    self._results.remove(result)
                    return answered(0, 1, question.what, result)
                await trio.sleep(TURN_S)
        return LinkFailed(node, f"no answer in {timeout_s:g} s")

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        async with trio.open_nursery() as nursery:

            async def tell(ask: NodeQuery, channel: trio.MemorySendChannel[Event]) -> None:
                event = await self.query_node(ask.node, question, ask.after, ask.limit, 10.0)
                if isinstance(event, QueryAnswered):
                    event = event._replace(request=ask.request)
                channel.send_nowait(event)

            page = await carry(gather, lambda ask, channel: nursery.start_soon(tell, ask, channel))
            nursery.cancel_scope.cancel()
        return page

    def begin(self, name: str, **options: Any) -> None:
        for server in self.traces.values():
            server.begin(TraceOrder(name, "topic", "#", **options), trio.current_time())

    def stop(self, name: str) -> None:
        for server in self.traces.values():
            server.stop(name, trio.current_time())

    def note(self, node: str, stage: str, number: int) -> None:
        self.traces[node].note(stage, (0, 1, number), topic="a", qos=1)


class Shown:
    """Records the shown events with the time."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, str, str | None]] = []
        self.missing: list[str] = []

    async def __call__(self, found: TraceRead) -> None:
        self.rows += [(round(trio.current_time(), 1), node, event.stage) for node, event in found.rows]
        self.missing += [one.node for one in found.missing]


@pytest.fixture
def servers() -> QueryServers:
    return QueryServers()


def run(main: Callable[[], Any]) -> None:
    async def bounded() -> None:
        with trio.fail_after(300):
            await main()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))


def test_follow_shows_events_promptly_with_few_queries(servers: QueryServers) -> None:
    """Within 0.5 s; in a quiet minute a node answers about twelve times, and at once at the end of the trace."""
    shown = Shown()

    async def main() -> None:
        servers.begin("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, Cluster(servers), "t", 0.5, shown)
            await trio.sleep(1.0)
            before = servers.queries.total()
            await trio.sleep(12 * WAIT_S)
            assert servers.queries.total() - before <= 2 * 2 * 13
            came = trio.current_time()
            servers.note("edge-0", "received", 7)
            servers.note("storage-0", "queued", 7)
            await trio.sleep(1.0)
            found = sorted((node, stage) for _, node, stage in shown.rows)
            assert found == [("edge-0", "received"), ("storage-0", "queued")]
            assert all(at - came < 0.6 for at, _, _ in shown.rows)
            stopped = trio.current_time()
            servers.note("edge-0", "acknowledged", 7)
            servers.stop("t")
        assert trio.current_time() - stopped < 1.5
        assert shown.rows[-1][1:] == ("edge-0", "acknowledged")

    run(main)


def test_follow_many_events_are_read_once(servers: QueryServers) -> None:
    shown = Shown()

    async def main() -> None:
        servers.begin("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, Cluster(servers), "t", 0.5, shown)
            for number in range(1_200):
                servers.note("edge-0", f"s{number}", number)
                if number % 20 == 0:
                    await trio.sleep(0.05)
            assert servers.queries["trace"] < 40
            assert len(shown.rows) > 900, "they keep up"
            servers.stop("t")
        assert [stage for _, _, stage in shown.rows] == [f"s{number}" for number in range(1_200)]

    run(main)


def test_follow_silent_node_is_named_and_retried(servers: QueryServers) -> None:
    shown = Shown()

    async def main() -> None:
        servers.begin("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, Cluster(servers), "t", 0.5, shown)
            await trio.sleep(1.0)
            servers.silent.add("storage-0")
            await trio.sleep(4 * WAIT_S)
            assert "storage-0" in shown.missing
            servers.silent.clear()
            servers.note("storage-0", "queued", 7)
            await trio.sleep(2 * WAIT_S)
            assert [stage for _, _, stage in shown.rows] == ["queued"]
            servers.silent.add("storage-0")
            servers.stop("t")

    run(main)


def test_follow_unknown_trace_is_refused(servers: QueryServers) -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="no node has a trace 'x'"):
            await follow(Cluster(servers), "x", 0.5, Shown())

    run(main)
