"""Seeded bug: entries of older terms are committed by counting copies (Raft paper, figure 8)."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class CommitsOlderTerm(RaftCore):
    def may_commit(self, index: int) -> bool:
        return self.log.term_at(index) is not None


MUTANT = Mutant("commits_older_term", CommitsOlderTerm, "script", 1, "figure_8.txt")
