"""Bounds of the router's core, each with the default of the operator's model in conf/router_settings.py."""

from dataclasses import dataclass

from conf.router_settings import RouterSettings as OperatorSettings
from router.map.commands import Bootstrap
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["RouterLimits"]

DEFAULT = OperatorSettings()


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Bounds of the core; the operator's model is conf/router_settings.py."""

    cluster: str = "stratamq"
    partitions: int = DEFAULT.partitions
    shards: int = DEFAULT.shards
    replicas: int = DEFAULT.replicas
    min_in_sync: int = DEFAULT.min_in_sync
    lease_s: float = DEFAULT.lease_s
    lease_margin_s: float = DEFAULT.lease_margin_s
    cached_topics_max: int = DEFAULT.cached_topics_max
    map_page_bytes: int = MAP_PAGE_BYTES  # lower in tests that need many pages
    prune_late_s: float = 3_600.0  # delay before expired policy entries are removed: largest assumed clock difference
    cluster_id: str = ""  # for a cluster that this router bootstraps

    def bootstrap(self) -> Bootstrap:
        """Return the first command of a cluster with these settings."""
        return Bootstrap(
            self.cluster,
            self.partitions,
            self.shards,
            self.replicas,
            self.min_in_sync,
            self.lease_s,
            self.cluster_id,
        )
