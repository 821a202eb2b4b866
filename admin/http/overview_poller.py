"""The service's own eyes: figures, alarms and history of the cluster, asked for while somebody looks, or each 5 s.

One task asks; pages and streams read what it found last. Nobody is asked more often than each second, however many
pages are open.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import trio

from admin import queries
from admin.alerts import GROWING, ActiveAlert, Alerts, ClearedAlert, ClusterView
from admin.growth import Growth
from admin.http.cluster_metrics import ClusterMetrics, MetricHistory, drops_of, figures_of, finite
from admin.http.live_cluster import LiveCluster
from admin.http.partial import PartialResult
from admin.http.problems import Problem
from conf.errors import UserError
from wire.messages.cluster_map import ClusterMap
from wire.messages.node_rows import StatsRow

__all__ = ["MetricsPage", "Overview", "OverviewPoller", "pages_of"]

LOOKED_S = 1.0
HISTORY_S = 5.0
LOOK_S = 2.0  # for one look at all nodes
LEADS = "stratamq_raft_leader"  # a router's gauge
LAST_LOOK_S = 3.0  # a page that asked so lately is being looked at


class Overview(msgspec.Struct):
    """The first page."""

    figures: ClusterMetrics
    alarms: list[ActiveAlert]
    drops: dict[str, int]
    history: dict[str, list[Any]]
    complete: bool = True
    partial: list[PartialResult] = []
    beat: int = 0


class MetricsPage(NamedTuple):
    """Where a node shows its figures."""

    node: str
    tier: str
    zone: str
    address: str


def pages_of(
    before: Iterable[MetricsPage], cluster_map: ClusterMap, stats: Mapping[str, StatsRow]
) -> list[MetricsPage]:
    """Return the pages of all nodes of the map; of a node that does not answer, where it was last.

    A page that went with its node would leave nothing that Prometheus finds down.
    """
    pages = {page.node: page for page in before if page.node in cluster_map.nodes}
    for node, row in stats.items():
        if row.metrics:
            pages[node] = MetricsPage(node, row.tier or "", row.zone or "", row.metrics)
    return [pages[node] for node in sorted(pages)]


class OverviewPoller:
    """The latest figures, alarms and history of the cluster.

    Args:
        cluster: Asked.
        keeps_history: Whether to ask while nobody looks.
        tell: Told which alarms began and ended.
    """

    def __init__(
        self, cluster: LiveCluster, keeps_history: bool, tell: Callable[[list[ActiveAlert], list[ClearedAlert]], None]
    ) -> None:
        self._cluster = cluster
        self._keeps_history = keeps_history
        self._tell = tell
        self.alarms = Alerts()
        self.history = MetricHistory()
        self._growth = Growth(GROWING)
        self._figures = ClusterMetrics()
        self._drops: dict[str, int] = {}
        self._partial: list[PartialResult] = []
        self.stats: list[StatsRow] = []
        self.clients_max = 0  # the most clients that were seen at once
        self.beat = 0
        self.pages: list[MetricsPage] = []
        self._lookers = 0
        self._looked_at = -LAST_LOOK_S
        self._kept_at = 0.0
        self._wanted = trio.Event()
        self._came = trio.Event()

    @property
    def overview(self) -> Overview:
        """Return what was found last."""
        return Overview(
            self._figures,
            self.alarms.active,
            self._drops,
            self.history.columns(),
            not self._partial,
            self._partial,
            self.beat,
        )

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Have the nodes asked each second for as long as the block runs."""
        self._lookers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._lookers -= 1

    async def fresh(self) -> Overview:
        """Return figures of at most a second ago, where the nodes answer in time."""
        self._looked_at = trio.current_time()
        self._wanted.set()
        if not self.beat or self._figures.at_ms < (time.time() - 1.5) * 1000:
            came = self._came
            with trio.move_on_after(LOOK_S + 0.5):
                await came.wait()
        return self.overview

    async def next_beat(self) -> int:
        """Wait for the next look, and return its number."""
        await self._came.wait()
        return self.beat

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            began = trio.current_time()
            try:
                await self._look()
            except (Problem, UserError) as problem:
                self._failed(str(problem))
            period = LOOKED_S if self._is_looked_at() else HISTORY_S
            self._wanted = trio.Event()
            if not self._is_looked_at() and not self._keeps_history:
                await self._wanted.wait()
                continue
            with trio.move_on_after(max(0.05, began + period - trio.current_time())):
                while not self._is_looked_at():
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                await trio.sleep_until(began + LOOKED_S)

    def _is_looked_at(self) -> bool:
        return bool(self._lookers) or trio.current_time() - self._looked_at < LAST_LOOK_S

    async def _look(self) -> None:
        cluster = await self._cluster.for_queries("viewer", LOOK_S)
        before = time.time()
        listed = await queries.walk(cluster, "stats", queries.ListQuery(limit=1_000))
        now_ms = int(time.time() * 1000)
        stats = {node: finite(row) for node, row in listed.rows}
        rows: list[StatsRow] = [*stats.values()]
        cluster_map = cluster.map
        live = [entry.node for entry in cluster_map.nodes.values() if entry.alive]
        middle_ms = (before * 1000 + now_ms) / 2
        offsets = {node: row.at_ms - middle_ms for node, row in stats.items() if row.at_ms}
        error_ms = (now_ms - before * 1000) / 2
        offsets = {node: offset for node, offset in offsets.items() if abs(offset) > error_ms}
        placed = all(placement.primary for placement in cluster_map.partitions)
        copies_met = placed and not cluster_map.under_replicated()
        leader = next((node for node, row in stats.items() if (row.gauges or {}).get(LEADS)), "")
        if not leader:  # it may lead and not have answered: others name it
            routers = await queries.walk(cluster, "raft", queries.ListQuery(limit=16))
            leader = next((row.leader for _, row in routers.rows if row.leader), "")
        figures = figures_of(now_ms, rows, len(live), copies_met)
        self._figures = self.history.take(figures, rows)
        self._drops = drops_of(rows)
        self.stats, self.clients_max = rows, max(self.clients_max, figures.connections)
        self._partial = [PartialResult(*missing) for missing in listed.partial]
        self.pages = pages_of(self.pages, cluster_map, stats)
        silent = [node for node in live if node not in stats]
        grown = self._growth.take(now_ms, stats)
        sight = ClusterView(now_ms, cluster_map, stats, silent, leader, offsets, grown)
        self._found(sight)

    def _found(self, sight: ClusterView) -> None:
        began, ended = self.alarms.look(sight)
        if began or ended:
            self._tell(began, ended)
        now = trio.current_time()
        if now - self._kept_at >= HISTORY_S - 0.1:
            self._kept_at = now
            self.history.keep(self._figures)
        self._beat()

    def _failed(self, why: str) -> None:
        self._partial = [PartialResult("routers", why)]
        self._beat()

    def _beat(self) -> None:
        self.beat += 1
        came, self._came = self._came, trio.Event()
        came.set()
