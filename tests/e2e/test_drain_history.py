"""Edges are drained one after the other under load: no acknowledged message is lost, by the history of every client.

python -m pytest -s -m slow tests/e2e/test_drain_history.py     1 000 clients, three edges, one to two minutes
"""

import io
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from stratamq.history.check import judge
from stratamq.history.history import parse_history
from stratamq.history.recorder import RecordSettings, record
from stratamq.history.report import as_text
from stratamq.history.run import Run
from tests.e2e.local_cluster import LocalCluster, local_cluster

Work = Callable[[Run], Coroutine[Any, Any, None]]


class Drainer:
    """Drains and undrains edges in sequence by the command line."""

    def __init__(self, cluster: LocalCluster, edges: range, rate: int) -> None:
        self._cluster, self._edges, self._rate = cluster, edges, rate
        self.done = trio.Event()
        self.results: list[dict[str, int]] = []

    async def work(self, _: Run) -> None:
        """Drain one edge after the other."""
        for edge in self._edges:
            await trio.sleep(1.0)
            self.results.append(await self._order("drain", f"edge-{edge}", "--rate", f"{self._rate}/s", "--redirect"))
            assert self.results[-1]["left"] == 0
            await self._order("undrain", f"edge-{edge}")
        await trio.sleep(1.0)
        self.done.set()

    async def wait(self, _: Run) -> None:
        """Work until the other half is drained too."""
        await self.done.wait()

    async def _order(self, *arguments: str) -> dict[str, int]:
        command = [*LocalCluster.command_line(), "node", *arguments, "-o", "json", "--data", str(self._cluster.data)]
        result = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert result.returncode == 0, result.stderr
        answer: dict[str, int] = json.loads(result.stdout)
        return answer


async def record_both(halves: Sequence[tuple[RecordSettings, io.BytesIO, Work]]) -> None:
    async with trio.open_nursery() as nursery:
        for settings, sink, work in halves:
            nursery.start_soon(partial(record, settings, sink, work))


@pytest.mark.parametrize(
    ("clients", "drained", "rate"), [(40, 1, 20), pytest.param(1_000, 3, 100, marks=pytest.mark.slow)]
)
def test_edges_drained_under_load_lose_no_message(clients: int, drained: int, rate: int) -> None:
    """Half of the clients have a durable session, half have none."""
    with local_cluster("--edges", "3") as cluster:
        brokers = tuple(("127.0.0.1", cluster.port(edge, "plain")) for edge in range(3))
        drainer = Drainer(cluster, range(drained), rate)
        each = 300.0 / clients
        durable = RecordSettings(brokers, "queue", 1.0, 1, clients=clients // 2, drain_s=30.0, operations_per_s=each)
        others = RecordSettings(brokers, "routes", 1.0, 2, clients=clients // 2, drain_s=30.0, operations_per_s=each)
        sinks = io.BytesIO(), io.BytesIO()
        trio.run(record_both, [(durable, sinks[0], drainer.work), (others, sinks[1], drainer.wait)])
    assert all(result["clients"] >= clients // 10 for result in drainer.results), drainer.results
    for sink in sinks:
        verdict = judge(parse_history(sink.getvalue()))
        print(as_text(verdict, 3))
        assert verdict.complete and verdict.clean, as_text(verdict, 3)
        assert sum(report.checked for report in verdict.reports.values()) > 0
