"""Seeded bug: a peer that hears nobody raises its term each timeout and deposes the leader when it is back."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoPreVote(RaftCore):
    def begin_campaign(self) -> None:
        self.campaign()


MUTANT = Mutant("no_pre_vote", NoPreVote, "liveness", 100)
