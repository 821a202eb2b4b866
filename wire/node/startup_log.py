"""The reason why a node does not serve yet, in one line, for its log, ``/readyz`` and ``cluster status``.

Defines the texts and their log interval. Each tier selects the conditions that apply to it.
"""

import logging
from collections.abc import Sequence

from conf.events import say
from wire.messages.cluster_map import ClusterMap
from wire.node.lease_holder import LeaseHolder

__all__ = ["MapGaps", "WaitingLog", "missing_from_map", "missing_from_routers"]

FIRST_S = 1.0  # an ordinary start takes less and is not logged
EVERY_S = 10.0
NAMES_MAX = 5  # nodes named in a line; more are counted


def missing_from_routers(lease: LeaseHolder, now: float, seeds: Sequence[str], fault: str = "") -> str:
    """Return why a node has neither map nor lease, "" if it has both.

    Args:
        lease: The node's own.
        now: On the clock of the leases.
        seeds: Configured addresses of routers (node.seeds).
        fault: Why a router that answered did not link with this node; "" if none answered, or one did.
    """
    if not lease.linked and not lease.has_lease(now):
        if not seeds and not lease.map.cluster:
            return "no router is known: node.seeds is empty"
        if fault:
            return f"no router takes a link of this node: {fault}"
        known = [entry.address for entry in lease.map.live("router")] or list(seeds)
        return f"no router answers at {_names(known)}"
    if lease.refusal and not lease.active:
        return f"the routers do not let this node in: {lease.refusal}"
    if not lease.map.cluster:
        return f"{_names(lease.linked)} sent no map yet: a majority of the routers has to elect a leader first"
    if not lease.has_lease(now):
        return f"no lease from {_names(lease.linked)}: a majority of the routers has to elect a leader first"
    return ""


def missing_from_map(cluster_map: ClusterMap) -> str:
    """Return why partitions have no place or no primary, "" if all have both."""
    unplaced = sum(1 for placement in cluster_map.partitions if not placement.epoch)
    storages = len(cluster_map.live("storage"))
    if unplaced:
        nodes = "1 storage node" if storages == 1 else f"{storages} storage nodes"
        copies = "1 copy" if cluster_map.replicas == 1 else f"{cluster_map.replicas} copies"
        return f"{_partitions(unplaced)} no place: {copies} wanted, {nodes}"
    orphans = [placement for placement in cluster_map.partitions if not placement.primary]
    if orphans:
        holders = sorted({name for placement in orphans for name in placement.in_sync})
        return f"{_partitions(len(orphans))} no primary: the copies are on {_names(holders)}"
    return ""


class MapGaps:
    """Gaps of the map, and its primaries, computed once per epoch, because maps may be large."""

    def __init__(self) -> None:
        self._epoch = -1
        self._reason = ""
        self._primaries: list[str] = []

    def reason(self, cluster_map: ClusterMap) -> str:
        """Return ``missing_from_map``."""
        self._refresh(cluster_map)
        return self._reason

    def primaries(self, cluster_map: ClusterMap) -> list[str]:
        """Return all primaries of partitions, by name."""
        self._refresh(cluster_map)
        return self._primaries

    def _refresh(self, cluster_map: ClusterMap) -> None:
        if cluster_map.epoch != self._epoch:
            self._epoch = cluster_map.epoch
            self._reason = missing_from_map(cluster_map)
            self._primaries = sorted({placement.primary for placement in cluster_map.partitions})


def _partitions(count: int) -> str:
    return "1 partition has" if count == 1 else f"{count} partitions have"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


class WaitingLog:
    """Logs why a node waits: after ``FIRST_S``, then every 10 s, and at the end of the wait.

    Attributes:
        reason: Why the node waits, "" if it does not.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.reason = ""
        self._logger = logger
        self._log_at = 0.0
        self._logged = False

    def look(self, now: float, reason: str) -> None:
        """Update the reason; called at least once a second."""
        if not reason:
            if self._logged:
                say(self._logger, "node.waits_no_longer")
            self.reason, self._logged = "", False
            return
        if not self.reason:
            self._log_at = now + FIRST_S
        self.reason = reason
        if now >= self._log_at:
            self._log_at = now + EVERY_S
            self._logged = True
            say(self._logger, "node.waits", reason=reason)
