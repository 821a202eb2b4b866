"""The journal of one node: its last refusals, drops, kicks, takeovers, wills, ends of sessions and purges, in memory.

Written on slow paths only, without payloads. It keeps one entry per (event, reason, client) and second, and a bounded
number per second; the next entry has the count of suppressed ones. Decision: docs/adr/0110-journals.md.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from wire.messages.cluster_map import ClusterMap
from wire.queries.origins import origin_text
from wire.queries.source import Columns, Place, RowScan, RowSource

__all__ = ["Journal", "drop_columns", "journal_source"]

ENTRIES = 16_384
ENTRIES_PER_SECOND = 1_024  # a storm must not overwrite the minutes before it
TEXT_MAX = 256  # characters of a client ID, a topic or a detail
NO_ORIGIN = (0, 0, 0)


class JournalEntry(NamedTuple):
    """One entry."""

    number: int
    at_ms: int
    event: str
    reason: str
    client_id: str
    topic: str
    origin: tuple[int, int, int]
    detail: str
    left_out: int


class Journal:
    """The newest entries of one node.

    Args:
        utc_ms: Milliseconds since the epoch, by this node's clock.

    Attributes:
        entries: The newest ones, by number without a gap.
        number: Of the newest; 0 before the first.
        outside: Number of entries suppressed by callers.
        last_drops: The newest drop entry for each reason, kept after it left ``entries``.
    """

    def __init__(self, utc_ms: Callable[[], int] = lambda: 0) -> None:
        self.utc_ms = utc_ms
        self.entries: deque[JournalEntry] = deque(maxlen=ENTRIES)
        self.number = 0
        self.outside: Callable[[], int] = lambda: 0
        self.last_drops: dict[str, JournalEntry] = {}
        self._left_out = 0
        self._reported = 0  # suppressed entries reported with the last entry
        self._second = -1
        self._seen: set[tuple[str, str, str]] = set()  # of this second

    def note(
        self,
        event: str,
        reason: str = "",
        client_id: str = "",
        topic: str = "",
        origin: tuple[int, int, int] = NO_ORIGIN,
        detail: str = "",
    ) -> None:
        """Add an entry, unless it is a duplicate or exceeds the limit of this second."""
        at_ms = self.utc_ms()
        self._begin_second(at_ms)
        key = (event, reason, client_id[:TEXT_MAX])
        if not self._is_new(key):
            self._left_out += 1
            return
        self._seen.add(key)
        self.number += 1
        left_out = self.left_out()
        texts = client_id[:TEXT_MAX], topic[:TEXT_MAX]
        entry = JournalEntry(
            self.number, at_ms, event, reason, *texts, origin, detail[:TEXT_MAX], left_out - self._reported
        )
        self.entries.append(entry)
        if event == "drop":
            self.last_drops[reason] = entry
        self._reported = left_out

    def wants(self, event: str, reason: str, client_id: str) -> bool:
        """Return whether an entry would be kept, so that callers can avoid preparing it."""
        return self.utc_ms() // 1000 != self._second or self._is_new((event, reason, client_id[:TEXT_MAX]))

    def _begin_second(self, at_ms: int) -> None:
        if at_ms // 1000 != self._second:
            self._second = at_ms // 1000
            self._seen.clear()

    def _is_new(self, key: tuple[str, str, str]) -> bool:
        return key not in self._seen and len(self._seen) < ENTRIES_PER_SECOND

    def left_out(self) -> int:
        """Return the number of entries suppressed by a limit per second or iteration, since the node started."""
        return self._left_out + self.outside()


def drop_columns(journal: Journal, node: str) -> Columns:
    """Return the columns of (reason, count): drops since the node started, and the newest one of each reason."""

    def last(read: Callable[[JournalEntry], Any]) -> Callable[[tuple[str, int]], Any]:
        return lambda drop: read(journal.last_drops[drop[0]]) if drop[0] in journal.last_drops else None

    return {
        "node": lambda _: node,
        "reason": lambda drop: drop[0],
        "count": lambda drop: drop[1],
        "last_at_ms": last(lambda entry: entry.at_ms),
        "last_client_id": last(lambda entry: entry.client_id or None),
        "last_topic": last(lambda entry: entry.topic or None),
    }


def journal_source(journal: Journal, node: str, cluster_map: Callable[[], ClusterMap]) -> RowSource:
    """Return the row source of a journal, the oldest entry first."""

    def walk(scan: RowScan) -> Iterator[tuple[Place, Any]]:
        (after,) = scan.numbers(1)
        entries = journal.entries
        skipped = max(0, after - entries[0].number + 1) if entries else 0
        for entry in islice(entries, skipped, None):
            yield entry.number, entry

    def origin(entry: JournalEntry) -> str | None:
        return origin_text(*entry.origin, cluster_map()) if entry.origin != NO_ORIGIN else None

    columns: Columns = {
        "number": lambda entry: entry.number,
        "at_ms": lambda entry: entry.at_ms,
        "node": lambda _: node,
        "event": lambda entry: entry.event,
        "reason": lambda entry: entry.reason or None,
        "client_id": lambda entry: entry.client_id or None,
        "topic": lambda entry: entry.topic or None,
        "origin": origin,
        "detail": lambda entry: entry.detail or None,
        "left_out": lambda entry: entry.left_out or None,
    }
    return RowSource(walk, columns, lambda: len(journal.entries), newest=lambda _: journal.number)
