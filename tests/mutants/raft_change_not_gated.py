"""Seeded bug: a new leader changes the group before an entry of its term is committed (raft-dev, 2015)."""

from router.raft.core import RaftCore
from tests.mutants.raft_mutant import Mutant


class ChangeNotGated(RaftCore):
    def may_change(self) -> bool:
        return not self.change_pending()


MUTANT = Mutant("change_not_gated", ChangeNotGated, "script", 1, "change_at_leader_change.txt")
