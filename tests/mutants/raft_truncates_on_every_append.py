"""Seeded bug: a follower cuts its log at every append, so that a late duplicate deletes newer entries."""

from router.raft.core import RaftCore
from router.raft.messages import LogEntry
from tests.mutants.raft_mutant import Mutant


class TruncatesOnEveryAppend(RaftCore):
    def take_entries(self, entries: tuple[LogEntry, ...]) -> None:
        if entries and self.log.term_at(entries[0].index) is not None:
            self.log.truncate_from(entries[0].index)
            self.undo_configurations(entries[0].index)
        self.append_entries(entries)


MUTANT = Mutant("truncates_on_every_append", TruncatesOnEveryAppend, "safety", 200)
