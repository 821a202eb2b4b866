"""The disk interface of the Raft shell, implemented by ``router/raft/log.py`` and by a model in simulations."""

from collections.abc import Sequence
from typing import Protocol

from router.raft.events import HardState, Snapshot, StoredRaftState
from router.raft.messages import LogEntry

__all__ = ["LogDamaged", "Storage"]


class LogDamaged(Exception):
    """The disk lost or changed acknowledged data: this peer must not vote or serve until rebuilt.

    To rebuild: remove the peer from the group, delete its folder, add it again as a learner.
    """


class Storage(Protocol):
    """Durable state of one peer. Calls come one at a time, from any thread."""

    def load(self) -> StoredRaftState:
        """Return the content of the disk.

        Raises:
            LogDamaged: Synced data is missing or changed.
        """

    def write(self, hard_state: HardState | None, entries: Sequence[LogEntry]) -> None:
        """Write; the hard state is durable before the first entry is written, entries only after ``sync``.

        An entry replaces the stored one of its index and all later ones.
        """

    def sync(self) -> None:
        """Return when all writes are durable. An OSError is final: the caller stops this peer."""

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Make the leader's snapshot durable, then drop the whole log."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make an own snapshot durable, then drop the covered files."""

    def close(self) -> None:
        """Release files without writing."""
