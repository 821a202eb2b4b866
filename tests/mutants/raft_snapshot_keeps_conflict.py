"""Seeded bug: a snapshot that conflicts with the log leaves the entries behind it in place (hashicorp/raft #697)."""

from router.raft.core import RaftCore
from router.raft.events import Snapshot
from tests.mutants.raft_mutant import Mutant


class SnapshotKeepsConflict(RaftCore):
    def install_snapshot(self, snapshot: Snapshot) -> None:
        behind = tuple(self.log.slice(snapshot.index + 1, self.log.last_index))
        super().install_snapshot(snapshot)
        if self.installed is not None and behind:
            self.append_entries(behind)


MUTANT = Mutant("snapshot_keeps_conflict", SnapshotKeepsConflict, "script", 1, "snapshot_conflict.txt")
