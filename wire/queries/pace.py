"""The pace of looks: how often, and which share of the loop they take while it is busy and while it is not.

A busy loop gives looks a fiftieth of what it does otherwise, so that a message costs hardly more while somebody looks.
Decision: docs/adr/0169-a-fiftieth-of-the-work.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clocks", "QueryBounds", "QueryPacer"]

LOOKS_PER_S = 200.0
BURST = 20.0  # looks at once after a rest
IDLE_SHARE = 0.25  # of all time, of a loop with little else to do
BUSY_AT = 0.1  # processor time of the loop for anything but looks, of all time: from here on it is busy
BUSY_SHARE, LEAST_SHARE = 0.02, 0.004  # of what a busy loop does otherwise; of all time
LOOK_S = 0.000_1  # of a look beside its rows: frames of question and answer
BUSY_LOOK_S = 0.000_5  # of one look at most while the loop is busy: the next one waits for it a hundred times as long
CREDIT_S = 0.005  # of the loop, saved up at most
MEASURED_S = 0.05  # over which the loop is judged


def _still() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of the process, handed in by its shell; those of a simulation stand still.

    Attributes:
        work: Seconds, for the length of a look.
        processor: Seconds of processor time of this thread.
    """

    work: Callable[[], float] = _still
    processor: Callable[[], float] = _still


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Bounds of one look: rows visited, seconds, bytes of an answer."""

    rows: int
    seconds: float
    reply_bytes: int


class QueryPacer:
    """Says when the next look may be answered.

    Args:
        processor: Seconds of processor time of this thread.
    """

    def __init__(self, processor: Callable[[], float]) -> None:
        self._processor = processor
        self._looks = BURST
        self._credit = CREDIT_S
        self._at = 0.0
        self._measured = (0.0, 0.0)  # now, processor time
        self._share = IDLE_SHARE
        self._on_looks = 0.0  # seconds since it was measured

    def may_look(self, now: float) -> bool:
        """Return whether a look may be answered now."""
        self._advance(now)
        return self._looks >= 1 and self._credit > 0

    def longest_s(self, seconds: float) -> float:
        """Return how long a look may take that takes so long at most while the loop is not busy."""
        return seconds if self._share == IDLE_SHARE else min(seconds, BUSY_LOOK_S)

    def looked(self, seconds: float) -> None:
        """Note how long a look took."""
        self._looks -= 1
        self._credit -= seconds + LOOK_S
        self._on_looks += seconds + LOOK_S

    def next_at(self) -> float:
        """Return when the next look may be answered."""
        looks_s = max(0.0, 1 - self._looks) / LOOKS_PER_S
        credit_s = max(0.0, -self._credit) / self._share
        return self._at + max(looks_s, credit_s)

    def _advance(self, now: float) -> None:
        elapsed = max(0.0, now - self._at)
        self._at = now
        since, used = self._measured
        if now - since >= MEASURED_S:
            busy = (self._processor() - used - self._on_looks) / (now - since)
            self._share = max(LEAST_SHARE, BUSY_SHARE * busy) if busy >= BUSY_AT else IDLE_SHARE
            self._measured, self._on_looks = (now, self._processor()), 0.0
        self._looks = min(BURST, self._looks + LOOKS_PER_S * elapsed)
        self._credit = min(CREDIT_S, self._credit + self._share * elapsed)
