"""Queries the nodes for the checks of a cluster: statistics twice, copies, drops and settings."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import trio

from admin.alerts import ClusterView
from admin.doctor.cluster import ExaminedCluster, is_filling
from admin.queries import Cluster, ListQuery, ListResult, walk
from admin.scatter_gather import MissingRows
from wire.messages.node_rows import RaftRow, StatsRow
from wire.messages.query_kinds import LOOK_KINDS

__all__ = ["CollectedRows", "asked", "examine"]

ROWS_MAX = 50_000  # of one kind
SURE_S = 20.0  # measuring time if a disk seems to fill: rules out a burst of a second
KINDS = ("raft", "replicas", "drops", "config")


class CollectedRows(NamedTuple):
    """Results of the nodes: for the checks, and as rows by kind for a bundle."""

    examined: ExaminedCluster
    rows: Mapping[str, tuple[tuple[str, Any], ...]]
    partial: tuple[MissingRows, ...]


async def examine(cluster: Cluster, status: Mapping[str, Any], apart_s: float) -> CollectedRows:
    """Query every node.

    Args:
        cluster: Cluster to query.
        status: Reply of a router to `cluster status`.
        apart_s: Time between two samples, longer if a disk seems to fill; 0: one sample.
    """
    sent_ms = time.time() * 1000
    first = await walk(cluster, "stats", ListQuery(limit=ROWS_MAX))
    took_ms = time.time() * 1000 - sent_ms
    began, later_s = trio.current_time(), 0.0
    found: dict[str, ListResult] = {"stats": first}
    nodes = [node for node, _ in first.rows]
    for kind in KINDS:
        found[kind] = await asked(cluster, kind, nodes, ROWS_MAX)
    later: dict[str, StatsRow] = {}
    if apart_s:
        for over_s in dict.fromkeys((apart_s, max(apart_s, SURE_S))):  # a second time if a disk seems to fill
            await trio.sleep_until(began + over_s)
            found["stats_later"] = await asked(cluster, "stats", nodes, ROWS_MAX)
            later, later_s = dict(found["stats_later"].rows), trio.current_time() - began
            if not any(is_filling(row, later.get(node), later_s) for node, row in first.rows):
                break
    partial = tuple(
        dict.fromkeys(MissingRows(missing.node, missing.why) for listed in found.values() for missing in listed.partial)
    )
    sight = _sight(cluster, first, found["raft"].rows, sent_ms, took_ms)
    settings: dict[str, dict[str, str]] = {}
    for node, row in found["config"].rows:
        settings.setdefault(node, {})[row.name or ""] = row.value or ""
    replicas = [row for _, row in found["replicas"].rows]
    drops = [row for _, row in found["drops"].rows]
    examined = ExaminedCluster(sight, later, later_s, status, replicas, drops, settings)
    return CollectedRows(examined, {kind: listed.rows for kind, listed in found.items()}, partial)


async def asked(cluster: Cluster, kind: str, nodes: Sequence[str], limit: int) -> ListResult:
    """Query those of the nodes that have such rows; silent nodes are left out."""
    tiers = LOOK_KINDS[kind].tiers
    holders = [node for node in nodes if node in cluster.map.nodes and cluster.map.nodes[node].tier in tiers]
    return await walk(cluster, kind, ListQuery(nodes=holders, limit=limit)) if holders else ListResult(())


def _sight(
    cluster: Cluster, first: ListResult, routers: tuple[tuple[str, RaftRow], ...], sent_ms: float, took_ms: float
) -> ClusterView:
    stats: dict[str, StatsRow] = dict(first.rows)
    alive = [entry.node for entry in cluster.map.nodes.values() if entry.alive]
    offsets = {node: row.at_ms - sent_ms - took_ms / 2 for node, row in stats.items() if row.at_ms is not None}
    certain = {node: offset for node, offset in offsets.items() if abs(offset) > took_ms / 2}
    leader = next((row.leader for _, row in routers if row.leader), "")
    silent = [node for node in alive if node not in stats]
    return ClusterView(int(sent_ms + took_ms), cluster.map, stats, silent, leader, certain)
