"""The pace of queries: their rate, and their share of the loop when it is busy and when it is idle.

A busy loop spends on queries a fiftieth of its other work, so that queries barely affect the cost of a message.
Decision: docs/adr/0169-a-fiftieth-of-the-work.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clocks", "QueryBounds", "QueryPacer"]

QUERIES_PER_S = 200.0
BURST = 20.0  # queries at once after an idle time
IDLE_SHARE = 0.25  # of wall time, while the loop is idle
BUSY_AT = 0.1  # share of processor time for other work from which on the loop is busy
BUSY_SHARE, LEAST_SHARE = 0.02, 0.004  # of the other work of a busy loop; of wall time
QUERY_OVERHEAD_S = 0.000_1  # of a query besides its rows: its frames
BUSY_QUERY_S = 0.000_5  # bound of one query while the loop is busy; the next one waits a hundred times as long
CREDIT_S = 0.005  # of the loop, saved up at most
MEASURED_S = 0.05  # measuring interval of the loop's load


def _zero() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of the process, passed in by its shell; in a simulation they do not advance.

    Attributes:
        work: Seconds, for the duration of a query.
        processor: Seconds of processor time of this thread.
    """

    work: Callable[[], float] = _zero
    processor: Callable[[], float] = _zero


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Bounds of one query: rows visited, seconds, bytes of a reply."""

    rows: int
    seconds: float
    reply_bytes: int


class QueryPacer:
    """Decides when the next query may be answered.

    Args:
        processor: Seconds of processor time of this thread.
    """

    def __init__(self, processor: Callable[[], float]) -> None:
        self._processor = processor
        self._queries = BURST
        self._credit = CREDIT_S
        self._at = 0.0
        self._measured = (0.0, 0.0)  # now, processor time
        self._share = IDLE_SHARE
        self._query_s = 0.0  # seconds since it was measured

    def may_look(self, now: float) -> bool:
        """Return whether a query may be answered now."""
        self._advance(now)
        return self._queries >= 1 and self._credit > 0

    def longest_s(self, seconds: float) -> float:
        """Return the time bound of a query, in seconds, given the bound of an idle loop."""
        return seconds if self._share == IDLE_SHARE else min(seconds, BUSY_QUERY_S)

    def looked(self, seconds: float) -> None:
        """Charge the duration of a query."""
        self._queries -= 1
        self._credit -= seconds + QUERY_OVERHEAD_S
        self._query_s += seconds + QUERY_OVERHEAD_S

    def next_at(self) -> float:
        """Return when the next query may be answered."""
        queries_s = max(0.0, 1 - self._queries) / QUERIES_PER_S
        credit_s = max(0.0, -self._credit) / self._share
        return self._at + max(queries_s, credit_s)

    def _advance(self, now: float) -> None:
        elapsed = max(0.0, now - self._at)
        self._at = now
        since, used = self._measured
        if now - since >= MEASURED_S:
            busy = (self._processor() - used - self._query_s) / (now - since)
            self._share = max(LEAST_SHARE, BUSY_SHARE * busy) if busy >= BUSY_AT else IDLE_SHARE
            self._measured, self._query_s = (now, self._processor()), 0.0
        self._queries = min(BURST, self._queries + QUERIES_PER_S * elapsed)
        self._credit = min(CREDIT_S, self._credit + self._share * elapsed)
