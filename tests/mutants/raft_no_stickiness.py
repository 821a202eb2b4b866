"""Seeded bug: a peer with a live leader votes for another candidate: partial partitions never stabilize."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoStickiness(RaftCore):
    def is_sticky(self) -> bool:
        return False


MUTANT = Mutant("no_stickiness", NoStickiness, "script", 1, "stickiness.txt")
