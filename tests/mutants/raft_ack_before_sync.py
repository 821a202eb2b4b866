"""Seeded bug: answers are sent before the promised state is on disk (etcd #10508)."""

import msgspec

from router.raft.core import RaftCore
from router.raft.events import Event, RaftReady
from tests.mutants.raft_mutant import Mutant


class AckBeforeSync(RaftCore):
    def handle(self, now: float, event: Event) -> RaftReady:
        ready = super().handle(now, event)
        return msgspec.structs.replace(ready, messages=(), early_messages=ready.early_messages + ready.messages)


MUTANT = Mutant("ack_before_sync", AckBeforeSync, "safety", 100)
