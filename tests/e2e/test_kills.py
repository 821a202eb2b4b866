"""Kill real processes with -9 under reconnecting clients: no accepted message is lost, no QoS 2 message repeated.

One process at a time, of any tier, when the cluster is whole again (docs/guarantees.md). The clients and the checker
are those of ``stratamq record`` and ``stratamq check``. The long form: ``pytest -m slow tests/e2e/test_kills.py``, or
with another number of kills ``STRATAMQ_KILLS=300``; by hand ``python -m tests.e2e.test_kills --kills 100``.
"""

import argparse
import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import trio

from conf.errors import UserError
from stratamq.cli.node_requests import ask_links
from stratamq.history.check import judge
from stratamq.history.history import parse_history
from stratamq.history.operations import Kind
from stratamq.history.recorder import RecordSettings, record
from stratamq.history.report import as_text
from stratamq.history.run import Run
from stratamq.history.verdict import HistoryVerdict
from tests.e2e.local_cluster import LocalCluster, local_cluster

SHAPE = ("--routers", "3", "--storages", "3", "--edges", "2")
WHOLE_S = 60.0  # until the cluster is whole again, at most
KILLS_PER_CLUSTER = 20
WRONG = ("partitions_without_primary", "partitions_under_replicated", "partitions_unplaced", "shards_collecting")
TIERS = ("storage", "edge", "router")


class Killer:
    """Kills one node after another and writes down when the cluster was whole again."""

    def __init__(self, cluster: LocalCluster, kills: int, seed: int, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._kills = kills
        self._rng = random.Random(seed)
        self._say = say
        self.whole_after_s: list[float] = []

    async def work(self, run: Run) -> None:
        """Kill, wait, and again."""
        for kill in range(self._kills):
            await trio.sleep(self._rng.uniform(0.2, 1.5))
            tier = TIERS[kill % len(TIERS)]
            node = self._rng.choice(sorted(name for name in self._cluster.state["nodes"] if name.startswith(tier)))
            former = self._cluster.pid(node)
            run.mark(Kind.KILL, node)
            began = time.monotonic()
            self._cluster.kill(node)
            with trio.fail_after(WHOLE_S):
                while self._cluster.state["nodes"].get(node, {}).get("pid", former) == former:
                    await trio.sleep(0.05)
                while not await self._whole():
                    await trio.sleep(0.1)
            run.mark(Kind.RESTART, node)
            self.whole_after_s.append(time.monotonic() - began)
            self._say(f"kill {kill + 1}, {node}: whole after {self.whole_after_s[-1]:.1f} s")

    async def _whole(self) -> bool:
        try:
            reply = await trio.to_thread.run_sync(ask_links, "cluster status", {}, "", self._cluster.data)
        except UserError:  # no router answers, or none leads
            return False
        return reply.ok and not any(reply.result[name] for name in WRONG)


def kill_and_judge(kills: int, seed: int, say: Callable[[str], None], rate: float = 15.0) -> HistoryVerdict:
    """Run the workload of durable queues while processes are killed, and check its history."""
    sink = io.BytesIO()
    with local_cluster(*SHAPE) as cluster:
        brokers = tuple(("127.0.0.1", cluster.port(edge, "plain")) for edge in range(2))
        settings = RecordSettings(brokers, "queue", 1.0, seed, clients=8, drain_s=30.0, operations_per_s=rate)
        killer = Killer(cluster, kills, seed, say)
        say(trio.run(record, settings, sink, killer.work))
    verdict = judge(parse_history(sink.getvalue()))
    say(as_text(verdict, 3))
    return verdict


def check(verdict: HistoryVerdict) -> None:
    """Assert that the history has messages, and none is lost, repeated or out of order."""
    assert verdict.complete
    assert verdict.clean, as_text(verdict, 3)
    assert sum(report.checked for report in verdict.reports.values()) > 0


def test_any_process_may_be_killed() -> None:
    """Each tier twice."""
    check(kill_and_judge(6, 1, print))


def in_rounds(kills: int, seed: int, say: Callable[[str], None]) -> Iterator[HistoryVerdict]:
    """Yield a verdict per cluster: one supervisor lets a node lie that died too often in a row."""
    for number, first in enumerate(range(0, kills, KILLS_PER_CLUSTER)):
        yield kill_and_judge(min(KILLS_PER_CLUSTER, kills - first), seed + number, say)


@pytest.mark.slow
def test_a_hundred_kills() -> None:
    for verdict in in_rounds(int(os.environ.get("STRATAMQ_KILLS", "100")), 2, print):
        check(verdict)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    verdicts = list(in_rounds(options.kills, options.seed, lambda line: print(line, flush=True)))
    sys.exit(not all(verdict.clean for verdict in verdicts))
