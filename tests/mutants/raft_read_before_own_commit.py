"""Seeded bug: a new leader answers reads by a commit index that may lag behind its predecessor's (etcd #7331)."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class ReadBeforeOwnCommit(RaftCore):
    def may_read(self) -> bool:
        return True


MUTANT = Mutant("read_before_own_commit", ReadBeforeOwnCommit, "safety", 20)
