"""Seeded bug: who hears a leader still helps another peer to depose it: partial partitions never calm down."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoStickiness(RaftCore):
    def is_sticky(self) -> bool:
        return False


MUTANT = Mutant("no_stickiness", NoStickiness, "script", 1, "stickiness.txt")
