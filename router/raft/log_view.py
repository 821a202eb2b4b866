"""The log in memory: entries, their durability, and the snapshot before them.

A write in progress may be truncated in memory meanwhile; its completion must not count for the replacing entries. The
files are in ``router/raft/log.py``. Source: Raft paper, sections 5.3 and 7.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from router.raft.events import RaftInvariantBroken, Snapshot
from router.raft.messages import LogEntry

__all__ = ["LogView"]


@dataclass(slots=True)
class _Write:
    """A Ready whose entries are being written, the last index of the write, and its start."""

    number: int
    index: int
    since: float


class LogView:
    """Entries after ``base_index``; the snapshot covers older ones.

    Attributes:
        base_index: Index before the first stored entry; at most the snapshot's index.
        durable_index: Last index known to be synced here, with everything before it.
    """

    def __init__(self, snapshot: Snapshot | None, entries: Sequence[LogEntry]) -> None:
        self.snapshot = snapshot
        self.base_index = snapshot.index if snapshot else 0
        self.base_term = snapshot.term if snapshot else 0
        self.entries: list[LogEntry] = list(entries)
        if self.entries and self.entries[0].index != self.base_index + 1:
            raise RaftInvariantBroken(f"log begins at {self.entries[0].index}, snapshot ends at {self.base_index}")
        self.durable_index = self.last_index
        self._unwritten_from = self.last_index + 1
        self._writes: deque[_Write] = deque()

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the snapshot without one."""
        return self.base_index + len(self.entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, or of the snapshot."""
        return self.entries[-1].term if self.entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry, or None if it is not stored (compacted or not appended yet)."""
        offset = index - self.base_index
        if offset == 0:
            return self.base_term
        if offset < 0 or offset > len(self.entries):
            return None
        return self.entries[offset - 1].term

    def slice(self, first: int, last: int) -> list[LogEntry]:
        """Return entries first..last, both inclusive, as far as stored."""
        return self.entries[max(0, first - self.base_index - 1) : max(0, last - self.base_index)]

    def batch(self, first: int, max_entries: int, max_bytes: int) -> tuple[LogEntry, ...]:
        """Return entries from first within both limits, at least one if it exists."""
        entries = self.slice(first, first + max_entries - 1)
        total = 0
        for count, entry in enumerate(entries):
            total += len(entry.data)
            if total > max_bytes and count:
                return tuple(entries[:count])
        return tuple(entries)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Append entries that follow the last one."""
        self.entries.extend(entries)

    def truncate_from(self, index: int) -> None:
        """Drop the entry at index and all later ones; writes in progress no longer count for them."""
        del self.entries[index - self.base_index - 1 :]
        self._unwritten_from = min(self._unwritten_from, index)
        self.durable_index = min(self.durable_index, index - 1)
        for write in self._writes:
            write.index = min(write.index, index - 1)

    def match_hint(self, index: int, term: int) -> tuple[int, int]:
        """Return the last (index, term) at or before index whose term is not above the given one."""
        index = min(index, self.last_index)
        while index > self.base_index:
            own = self.entries[index - self.base_index - 1].term
            if own <= term:
                return index, own
            index -= 1
        return self.base_index, self.base_term

    def take_unwritten(self, number: int, now: float) -> tuple[LogEntry, ...]:
        """Return the entries that Ready ``number`` must write, once each."""
        if self._unwritten_from > self.last_index:
            return ()
        entries = tuple(self.entries[self._unwritten_from - self.base_index - 1 :])
        self._unwritten_from = self.last_index + 1
        self._writes.append(_Write(number, self.last_index, now))
        return entries

    def persisted(self, number: int) -> None:
        """Mark the entries of Ready ``number`` and earlier ones as durable."""
        while self._writes and self._writes[0].number <= number:
            self.durable_index = max(self.durable_index, self._writes.popleft().index)

    @property
    def writing(self) -> bool:
        """Whether a write is not synced yet."""
        return bool(self._writes)

    def stalled(self, since: float) -> bool:
        """Whether a write that started before the given time is not synced."""
        return bool(self._writes) and self._writes[0].since < since

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot: after one conflict, later entries are not reliable either."""
        self.snapshot = snapshot
        self.entries.clear()
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self._unwritten_from = snapshot.index + 1
        for write in self._writes:
            write.index = 0
        # The order of Readies makes the snapshot durable before any later entry is acknowledged.
        self.durable_index = snapshot.index

    def compact(self, snapshot: Snapshot, trailing: int) -> None:
        """Store the newer snapshot and drop entries more than ``trailing`` before it."""
        self.snapshot = snapshot
        cut = min(snapshot.index - trailing, self.durable_index)
        term = self.term_at(cut)
        if cut > self.base_index and term is not None:
            del self.entries[: cut - self.base_index]
            self.base_index, self.base_term = cut, term
