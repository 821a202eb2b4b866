"""Invariants of a Raft group, checked at every step of a simulation (Raft paper, figure 3).

The checker sees all events of all peers; a violation raises ``Violation`` with its name.
"""

from zlib import crc32

from router.raft.core import RaftCore
from router.raft.messages import LogEntry

__all__ = ["Invariants", "Violation"]


class Violation(Exception):
    """A property of figure 3, a lost acknowledgement or a stale read."""


class Invariants:
    """The history of one run."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[str, int]] = {}  # term -> its leader and the leader's life
        self.written: dict[tuple[int, int], tuple[int | None, int]] = {}  # (index, term) -> term before, content
        self.applied: dict[int, tuple[int, int]] = {}  # index -> term, content
        self.state_at: dict[int, int] = {0: 0}  # applied index -> hash of the whole state machine
        self.committed_by_term: dict[int, tuple[int, int]] = {}  # leader's term -> last (index, term) committed by it
        self.acked_index = 0
        self.acks = 0
        self.elections = 0

    def written_or_sent(self, peer: str, entries: tuple[LogEntry, ...], prev_log_term: int | None = None) -> None:
        """Check Log Matching: the same index and term means the same entry and the same history before it.

        Checked when an entry is on a disk or sent in a message; entries that a crash loses before that do not count.
        """
        for entry in entries:
            key = (entry.index, entry.term)
            content = crc32(entry.data)
            known = self.written.get(key)
            if known is None or known[0] is None:
                self.written[key] = (prev_log_term, content)
            if known is not None and (known[1] != content or None is not known[0] != prev_log_term is not None):
                raise Violation(f"log matching: {peer} index {entry.index} term {entry.term}")
            prev_log_term = entry.term

    def leading(self, core: RaftCore, life: int) -> None:
        """Check a leader whose term is on its disk; before that, none of its messages was sent."""
        if core.term not in self.leaders or self.leaders[core.term] != (core.id, life):
            self._elected(core, life)
        if core.commit_index >= core.first_index_of_term:
            term = core.log.term_at(core.commit_index)
            if term is not None:
                self.committed_by_term[core.term] = (core.commit_index, term)

    def _elected(self, core: RaftCore, life: int) -> None:
        self.elections += 1
        first = self.leaders.setdefault(core.term, (core.id, life))
        if first != (core.id, life):
            raise Violation(f"election safety: term {core.term} led by {first} and {(core.id, life)}")
        before = [known for term, known in self.committed_by_term.items() if term < core.term]
        if before:
            index, term = max(before)
            held = core.log.term_at(index)
            if held != term and index > core.log.base_index:
                raise Violation(f"leader completeness: {core.id} term {core.term} lacks {index} of term {term}")

    def apply(self, peer: str, entry: LogEntry, state: int) -> int:
        """Check State Machine Safety; return the state's hash after the entry."""
        content = crc32(entry.data)
        known = self.applied.setdefault(entry.index, (entry.term, content))
        if known != (entry.term, content):
            raise Violation(f"state machine safety: {peer} applied another entry at {entry.index}")
        state = crc32(b"%d:%d" % (entry.term, content), state)
        if self.state_at.setdefault(entry.index, state) != state:
            raise Violation(f"state machine safety: {peer} differs at {entry.index}")
        return state

    def restored(self, peer: str, index: int, state: int) -> None:
        """Check that a snapshot holds the applied state."""
        if self.state_at.get(index) != state:
            raise Violation(f"snapshot of {peer} at {index} is of another history")

    def acked(self, index: int) -> None:
        """Record an acknowledgement to a client."""
        self.acks += 1
        self.acked_index = max(self.acked_index, index)

    def read(self, peer: str, acked_before: int, index: int) -> None:
        """Check that a read sees all operations acknowledged before it began."""
        if index < acked_before:
            raise Violation(f"stale read: {peer} may serve at {index}, acknowledged before: {acked_before}")
