"""Seeded bug: a leader with a hung disk keeps leading; the group commits and its clients get no answers."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class NoDiskWatch(RaftCore):
    def disk_stalls(self) -> bool:
        return False


MUTANT = Mutant("no_disk_watch", NoDiskWatch, "liveness", 100)
