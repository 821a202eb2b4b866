"""Polls metrics and alerts of the cluster and keeps its history: every second while a page is open, else every 5 s.

One task polls; pages and streams read the latest result. The poll rate does not depend on the number of pages.
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
from admin.http.cluster_metrics import ClusterMetrics, MetricHistory, cluster_metrics_of, drops_of, finite
from admin.http.live_cluster import LiveCluster
from admin.http.partial import PartialResult
from admin.http.problems import Problem
from conf.errors import UserError
from wire.messages.cluster_map import ClusterMap
from wire.messages.node_rows import StatsRow

__all__ = ["MetricsPage", "Overview", "OverviewPoller", "pages_of"]

LOOKED_S = 1.0
HISTORY_S = 5.0
POLL_S = 2.0  # for one poll of all nodes
LEADER_GAUGE = "stratamq_raft_leader"  # a router's gauge
VIEWED_S = 3.0  # a page that requested data this recently counts as open


class Overview(msgspec.Struct):
    """The overview."""

    figures: ClusterMetrics
    alarms: list[ActiveAlert]
    drops: dict[str, int]
    history: dict[str, list[Any]]
    complete: bool = True
    partial: list[PartialResult] = []
    beat: int = 0


class MetricsPage(NamedTuple):
    """Address of a node's metrics page."""

    node: str
    tier: str
    zone: str
    address: str


def pages_of(
    before: Iterable[MetricsPage], cluster_map: ClusterMap, stats: Mapping[str, StatsRow]
) -> list[MetricsPage]:
    """Return the metrics pages of all nodes of the map; for a node that does not answer, its last known one.

    If the page disappeared with its node, Prometheus would not report it as down.
    """
    pages = {page.node: page for page in before if page.node in cluster_map.nodes}
    for node, row in stats.items():
        if row.metrics:
            pages[node] = MetricsPage(node, row.tier or "", row.zone or "", row.metrics)
    return [pages[node] for node in sorted(pages)]


class OverviewPoller:
    """The latest metrics, alerts and history of the cluster.

    Args:
        cluster: Cluster to poll.
        keeps_history: Whether to poll while no page is open.
        tell: Receives the alerts that became active or cleared.
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
        self.clients_max = 0  # maximum number of connected clients that was measured
        self.beat = 0
        self.pages: list[MetricsPage] = []
        self._viewers = 0
        self._viewed_at = -VIEWED_S
        self._kept_at = 0.0
        self._wanted = trio.Event()
        self._came = trio.Event()

    @property
    def overview(self) -> Overview:
        """Return the latest result."""
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
    async def viewing(self) -> AsyncIterator[None]:
        """Poll every second within the block."""
        self._viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def fresh(self) -> Overview:
        """Return a result of the last second, if the nodes answer in time."""
        self._viewed_at = trio.current_time()
        self._wanted.set()
        if not self.beat or self._figures.at_ms < (time.time() - 1.5) * 1000:
            came = self._came
            with trio.move_on_after(POLL_S + 0.5):
                await came.wait()
        return self.overview

    async def next_beat(self) -> int:
        """Wait for the next poll, and return its number."""
        await self._came.wait()
        return self.beat

    async def run(self) -> None:
        """Poll. Does not return."""
        while True:
            began = trio.current_time()
            try:
                await self._poll()
            except (Problem, UserError) as problem:
                self._report_failure(str(problem))
            period = LOOKED_S if self._has_viewers() else HISTORY_S
            self._wanted = trio.Event()
            if not self._has_viewers() and not self._keeps_history:
                await self._wanted.wait()
                continue
            with trio.move_on_after(max(0.05, began + period - trio.current_time())):
                while not self._has_viewers():
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                await trio.sleep_until(began + LOOKED_S)

    def _has_viewers(self) -> bool:
        return bool(self._viewers) or trio.current_time() - self._viewed_at < VIEWED_S

    async def _poll(self) -> None:
        cluster = await self._cluster.for_queries("viewer", POLL_S)
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
        leader = next((node for node, row in stats.items() if (row.gauges or {}).get(LEADER_GAUGE)), "")
        if not leader:  # the leader may not have answered: other routers name it
            routers = await queries.walk(cluster, "raft", queries.ListQuery(limit=16))
            leader = next((row.leader for _, row in routers.rows if row.leader), "")
        figures = cluster_metrics_of(now_ms, rows, len(live), copies_met)
        self._figures = self.history.take(figures, rows)
        self._drops = drops_of(rows)
        self.stats, self.clients_max = rows, max(self.clients_max, figures.connections)
        self._partial = [PartialResult(*missing) for missing in listed.partial]
        self.pages = pages_of(self.pages, cluster_map, stats)
        silent = [node for node in live if node not in stats]
        grown = self._growth.take(now_ms, stats)
        view = ClusterView(now_ms, cluster_map, stats, silent, leader, offsets, grown)
        self._apply(view)

    def _apply(self, view: ClusterView) -> None:
        began, ended = self.alarms.evaluate(view)
        if began or ended:
            self._tell(began, ended)
        now = trio.current_time()
        if now - self._kept_at >= HISTORY_S - 0.1:
            self._kept_at = now
            self.history.keep(self._figures)
        self._beat()

    def _report_failure(self, why: str) -> None:
        self._partial = [PartialResult("routers", why)]
        self._beat()

    def _beat(self) -> None:
        self.beat += 1
        came, self._came = self._came, trio.Event()
        came.set()
