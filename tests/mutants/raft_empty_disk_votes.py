"""Seeded bug: a peer that lost its disk votes and acknowledges under its old name (etcd #21178)."""

from router.raft.core import RaftCore
from router.raft.messages import RaftMessage
from tests.mutants.raft_mutant import Mutant


class EmptyDiskVotes(RaftCore):
    @property
    def is_voter(self) -> bool:
        return self.id in self.configuration.voters

    def has_foreign_disk(self, message: RaftMessage) -> bool:
        del message
        return False

    def refuses_identity(self, message: RaftMessage) -> bool:
        del message
        return False


MUTANT = Mutant("empty_disk_votes", EmptyDiskVotes, "script", 1, "empty_disk.txt")
