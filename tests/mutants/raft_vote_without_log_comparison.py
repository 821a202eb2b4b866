"""Seeded bug: any candidate is up to date: a stale one wins and overwrites (Raft paper, section 5.4.1)."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class VoteWithoutLogComparison(RaftCore):
    def is_up_to_date(self, last_log_index: int, last_log_term: int) -> bool:
        del last_log_index, last_log_term
        return True


MUTANT = Mutant("vote_without_log_comparison", VoteWithoutLogComparison, "safety", 40)
