"""Seeded bug: a leader that receives no messages keeps leading: its followers keep a deaf leader."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoCheckQuorum(RaftCore):
    def has_active_majority(self) -> bool:
        return True


MUTANT = Mutant("no_check_quorum", NoCheckQuorum, "liveness", 60)
