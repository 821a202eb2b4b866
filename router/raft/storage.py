"""Disk as the Raft shell needs it; the real one is ``router/raft/log.py``, simulations bring a model."""

from collections.abc import Sequence
from typing import Protocol

from router.raft.events import HardState, Snapshot, StoredRaftState
from router.raft.messages import LogEntry

__all__ = ["LogDamaged", "Storage"]


class LogDamaged(Exception):
    """The disk lost or changed something it had promised to keep: this peer must not vote or serve until rebuilt.

    To rebuild: remove the peer from the group, delete its folder, add it again as a learner.
    """


class Storage(Protocol):
    """Durable state of one peer. Calls come one at a time, from any thread."""

    def load(self) -> StoredRaftState:
        """Return what is on disk.

        Raises:
            LogDamaged: Something that was synced is missing or changed.
        """

    def write(self, hard_state: HardState | None, entries: Sequence[LogEntry]) -> None:
        """Write; the hard state is durable before the first entry is written, entries only after ``sync``.

        An entry whose index is already there replaces it and everything behind it.
        """

    def sync(self) -> None:
        """Return when everything written is durable. An OSError is final: the caller stops this peer."""

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Make the leader's snapshot durable, then drop the whole log."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make an own snapshot durable, then drop what it covers."""

    def close(self) -> None:
        """Release files; nothing is written."""
