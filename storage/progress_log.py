"""Log lines about a storage node's startup, store reads and copies that it rebuilds.

This module decides when a line is logged. ``wire/node/startup_log.py`` has the reasons for waiting.
"""

import logging
from collections.abc import Callable, Sequence

from conf.events import say
from storage.hosting.placements import Placements
from storage.hosting.storage_metrics import StorageMetrics
from wire.node.lease_holder import LeaseHolder
from wire.node.startup_log import MapGaps, WaitingLog, missing_from_routers

__all__ = ["ProgressLog"]

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # between two lines about copies that are rebuilt


class ProgressLog:
    """Logs a node's progress at most once a second.

    Args:
        lease: The node's lease and map.
        placements: The node's copies.
        partition_metrics: Statistics of its partitions.
        seeds: Addresses of routers (node.seeds).
        fault: Returns why a router that answered opened no link to this node; "" if it did.

    Attributes:
        catches_up: Copies were being rebuilt at the last check.
    """

    def __init__(
        self,
        lease: LeaseHolder,
        placements: Placements,
        partition_metrics: StorageMetrics,
        seeds: Sequence[str],
        fault: Callable[[], str],
    ) -> None:
        self.catches_up = False
        self._lease = lease
        self._placements = placements
        self._partition_metrics = partition_metrics
        self._seeds = seeds
        self._fault = fault
        self._gaps, self._waiting = MapGaps(), WaitingLog(logger)
        self._checked_epoch = -1  # map epoch of the last check of copies
        self._next_log_at = 0.0
        self._reads = False  # partitions are being read from the store

    def log_progress(self, now: float) -> None:
        """Log the progress of reading partitions and of rebuilding copies."""
        if now < self._next_log_at:
            return
        self._next_log_at = now + PROGRESS_S
        self._waiting.look(now, self.waits_for(now))
        if self._placements.loading:
            loaded, partitions = self._placements.progress()
            say(logger, "store.reading", loaded=loaded, partitions=partitions)
            self._reads = True
        elif self._reads:
            self._reads = False
            say(logger, "store.read", sessions=sum(self._partition_metrics.session_counts().values()))
        epoch = self._lease.map.epoch
        if not self.catches_up and epoch == self._checked_epoch:
            return
        self._checked_epoch = epoch
        missing, whole = self._placements.catching_up()
        if missing:
            say(logger, "replication.catching_up", whole=whole, copies=whole + missing)
        elif self.catches_up:
            say(logger, "replication.caught_up", copies=whole)
        self.catches_up = missing > 0

    def waits_for(self, now: float) -> str:
        """Return why this node does not serve, in one line; "" if it serves."""
        return missing_from_routers(self._lease, now, self._seeds, self._fault()) or self._gaps.reason(self._lease.map)
