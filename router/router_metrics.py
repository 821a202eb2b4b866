"""Metrics of a router: the map, placement, its shards, nodes that contradict the log, readiness."""

from typing import Protocol

from conf.metrics import Metrics
from router.map.contradictions import Contradictions
from router.map.machine import MapMachine
from router.map.rebalance_run import RebalanceRunner
from router.policy.policy_service import PolicyService
from router.routes.shard import RouteShard
from wire.clock import boot_time
from wire.node.lease_holder import LeaseHolder

__all__ = ["register_router_metrics"]


class RouterMetrics(Protocol):
    """A router, as far as its metrics show it."""

    machine: MapMachine
    rebalancer: RebalanceRunner
    contradictions: Contradictions
    policy: PolicyService
    counts: dict[str, int]
    holder: LeaseHolder

    @property
    def shards(self) -> dict[int, RouteShard]:
        """Shards owned here."""


def register_router_metrics(metrics: Metrics, core: RouterMetrics) -> None:
    """Register the metrics and readiness checks that are read from the core alone."""
    metrics.gauge("map_epoch", "Epoch of the ClusterMap.", lambda: float(core.machine.map.epoch))
    metrics.gauge("ring_version", "Epoch of the placement: that of the map.", lambda: float(core.machine.map.epoch))
    metrics.gauge(
        "ring_moves_pending",
        "Unfinished moves of the running rebalance.",
        lambda: float(core.rebalancer.moves_pending()),
    )
    metrics.gauge(
        "partitions_without_primary",
        "Partitions without a primary in this router's map.",
        lambda: float(sum(not placement.primary for placement in core.machine.map.partitions)),
    )
    metrics.gauge(
        "partitions_under_replicated",
        "Partitions with fewer live in-sync copies than replicas, in this router's map.",
        lambda: float(core.machine.map.under_replicated()),
    )
    metrics.gauge("route_shards", "Route shards owned here.", lambda: float(len(core.shards)))
    metrics.gauge("routes", "Routes stored here.", lambda: float(sum(s.routes for s in core.shards.values())))
    metrics.gauge(
        "routes_coarse",
        "Routes that reach more topics than their filters match, because exact ones cost too much.",
        lambda: float(sum(shard.coarse_routes for shard in core.shards.values())),
    )
    metrics.gauge(
        "answers_shortened",
        "Answers without some destinations of shared groups, because they exceed a frame.",
        lambda: float(sum(shard.answers_shortened for shard in core.shards.values())),
    )
    metrics.gauge(
        "cached_topics",
        "Topics that edges cache, as known to this router.",
        lambda: float(sum(shard.cached_topics for shard in core.shards.values())),
    )
    metrics.gauge(
        "contradicting_nodes",
        "Nodes whose last heartbeat names a map or policy that is not a state of the routers' log; leader only.",
        lambda: float(len(core.contradictions.nodes)),
    )
    metrics.counter(
        "router_credentials_sent_total",
        "Password records and SCRAM verifiers that this router sent, one per login, by requesting edge.",
        lambda: {(edge,): float(sent) for edge, sent in core.policy.credentials_sent.items()},
        ("edge",),
    )
    metrics.counter(
        "router_events_total",
        "Events of this router by name; refused_* counts messages without permission.",
        lambda: {(name,): float(count) for name, count in core.counts.items()},
        ("event",),
    )
    metrics.check("lease", lambda: core.holder.has_lease(boot_time()), depends=True)
    metrics.check("routes", lambda: not any(shard.collecting for shard in core.shards.values()), depends=True)
