"""Seeded bug: several single-member changes are under way at once: majorities need not meet."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class ChangesOverlap(RaftCore):
    def may_change(self) -> bool:
        return True


MUTANT = Mutant("changes_overlap", ChangesOverlap, "script", 1, "change_at_leader_change.txt")
