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
        "Moves of the rebalance that runs which are not done yet.",
        lambda: float(core.rebalancer.moves_pending()),
    )
    metrics.gauge(
        "partitions_without_primary",
        "Partitions that nobody serves, by this router's map.",
        lambda: float(sum(not placement.primary for placement in core.machine.map.partitions)),
    )
    metrics.gauge(
        "partitions_under_replicated",
        "Partitions with fewer live copies in sync than the cluster wants, by this router's map.",
        lambda: float(core.machine.map.under_replicated()),
    )
    metrics.gauge("route_shards", "Route shards owned here.", lambda: float(len(core.shards)))
    metrics.gauge("routes", "Routes held here.", lambda: float(sum(s.routes for s in core.shards.values())))
    metrics.gauge(
        "routes_coarse",
        "Routes that reach more topics than their filters match, for exact ones would cost too much.",
        lambda: float(sum(shard.coarse_routes for shard in core.shards.values())),
    )
    metrics.gauge(
        "answers_shortened",
        "Answers of this router's shards that left out destinations of shared groups, for no frame held them all.",
        lambda: float(sum(shard.answers_shortened for shard in core.shards.values())),
    )
    metrics.gauge(
        "cached_topics",
        "Topics that some edge caches, as this router knows.",
        lambda: float(sum(shard.cached_topics for shard in core.shards.values())),
    )
    metrics.gauge(
        "contradicting_nodes",
        "Nodes whose last heartbeat names a map or a policy that is no state of the routers' log, at the leader.",
        lambda: float(len(core.contradictions.nodes)),
    )
    metrics.counter(
        "router_credentials_sent_total",
        "Password records and SCRAM verifiers that this router sent, by the edge that asked for one login each.",
        lambda: {(edge,): float(sent) for edge, sent in core.policy.credentials_sent.items()},
        ("edge",),
    )
    metrics.counter(
        "router_events_total",
        "Events of this router by name; what begins with refused_ is a message that its sender may not send.",
        lambda: {(name,): float(count) for name, count in core.counts.items()},
        ("event",),
    )
    metrics.check("lease", lambda: core.holder.has_lease(boot_time()), depends=True)
    metrics.check("routes", lambda: not any(shard.collecting for shard in core.shards.values()), depends=True)
