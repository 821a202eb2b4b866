"""Reason why a node does not serve yet, in one line: for its log, ``/readyz`` and ``cluster status``.

Decides the words and how often they are logged. Which of them concern a tier is decided by the tier.
"""

import logging
from collections.abc import Sequence

from conf.events import say
from wire.messages.cluster_map import ClusterMap
from wire.node.lease_holder import LeaseHolder

__all__ = ["MapGaps", "WaitingLog", "missing_from_map", "missing_from_routers"]

FIRST_S = 1.0  # an ordinary start takes less, and nobody has to read of it
EVERY_S = 10.0
NAMES_MAX = 5  # nodes named in a line; more are counted


def missing_from_routers(lease: LeaseHolder, now: float, seeds: Sequence[str], fault: str = "") -> str:
    """Return why a node has neither map nor lease, "" if it has both.

    Args:
        lease: The node's own.
        now: On the clock of the leases.
        seeds: Where the node looks for routers (node.seeds).
        fault: Why a router that answered made no link with this node; "" if none answered, or one did.
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
    """Return why partitions have no place or no primary, "" if every one has both."""
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
    """Gaps of the map, and its primaries: judged once an epoch, because maps may be large."""

    def __init__(self) -> None:
        self._epoch = -1
        self._reason = ""
        self._primaries: list[str] = []

    def reason(self, cluster_map: ClusterMap) -> str:
        """Return ``missing_from_map``."""
        self._look(cluster_map)
        return self._reason

    def primaries(self, cluster_map: ClusterMap) -> list[str]:
        """Return every node that is primary of a partition, by name."""
        self._look(cluster_map)
        return self._primaries

    def _look(self, cluster_map: ClusterMap) -> None:
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
    """Logs what a node waits for: a moment after it began to wait, then every 10 s, and the end of it.

    Attributes:
        reason: What the node waits for as of the last look, "" if for nothing.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.reason = ""
        self._logger = logger
        self._say_at = 0.0
        self._said = False

    def look(self, now: float, reason: str) -> None:
        """Take the present reason; call at least once a second."""
        if not reason:
            if self._said:
                say(self._logger, "node.waits_no_longer")
            self.reason, self._said = "", False
            return
        if not self.reason:
            self._say_at = now + FIRST_S
        self.reason = reason
        if now >= self._say_at:
            self._say_at = now + EVERY_S
            self._said = True
            say(self._logger, "node.waits", reason=reason)
