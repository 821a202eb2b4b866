"""Seeded bug: a leader answers reads without asking whether it still leads."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class ReadWithoutRound(RaftCore):
    def confirmed_round(self) -> int:
        return self.round


MUTANT = Mutant("read_without_round", ReadWithoutRound, "script", 1, "read_index.txt")
