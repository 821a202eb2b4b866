"""Seeded bug: an isolated peer raises its term at each timeout and deposes the leader when it reconnects."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoPreVote(RaftCore):
    def begin_campaign(self) -> None:
        self.campaign()


MUTANT = Mutant("no_pre_vote", NoPreVote, "liveness", 100)
