"""Seeded bug: term and vote are answered but never written (RedisLabs/raft #49 among others)."""

import msgspec

from router.raft.core import RaftCore
from router.raft.events import Event, RaftReady
from tests.mutants.raft_mutant import Mutant


class VoteNotPersisted(RaftCore):
    def handle(self, now: float, event: Event) -> RaftReady:
        return msgspec.structs.replace(super().handle(now, event), hard_state=None)


MUTANT = Mutant("vote_not_persisted", VoteNotPersisted, "safety", 150)
