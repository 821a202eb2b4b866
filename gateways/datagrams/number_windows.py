"""Windows of publishers: the numbers of their last messages, and how each was answered.

A repeat is answered again and distributed once. 1 024 numbers per publisher; a number below those that left is
refused, for nobody can say whether it was distributed. The publishers that were silent longest are forgotten above the
bound, of publishers and of all their numbers.
"""

import enum
from collections.abc import Hashable

from gateways.datagrams.messages import PubAck

__all__ = ["WINDOW", "NumberStatus", "NumberWindows"]

WINDOW = 1024
NUMBERS_MAX = 1_000_000  # of all publishers: some 200 MB at most


class NumberStatus(enum.Enum):
    """Knowledge of a number."""

    NEW = "noted now"
    UNDER_WAY = "its answer comes when it is distributed"
    ANSWERED = "the answer of then stands"
    TOO_OLD = "below the window"


class _Window:
    __slots__ = ("answers", "floor")

    def __init__(self) -> None:
        self.answers: dict[int, PubAck | None] = {}
        self.floor = -1  # the greatest number that left


class NumberWindows:
    """Windows by publisher: its session, or its address where it has none."""

    def __init__(self, publishers_max: int) -> None:
        self.forgotten = 0
        self._max, self._numbers = publishers_max, 0
        self._windows: dict[Hashable, _Window] = {}  # silent longest first

    def look(self, publisher: Hashable, number: int) -> NumberStatus:
        """Judge a number, and note a new one."""
        window = self._windows.pop(publisher, None)
        if window is None:
            while len(self._windows) >= self._max or (self._numbers >= NUMBERS_MAX and self._windows):
                gone = self._windows.pop(next(iter(self._windows)))
                self._numbers -= len(gone.answers)
                self.forgotten += 1
            window = _Window()
        self._windows[publisher] = window
        if number in window.answers:
            return NumberStatus.UNDER_WAY if window.answers[number] is None else NumberStatus.ANSWERED
        if number <= window.floor:
            return NumberStatus.TOO_OLD
        if len(window.answers) >= WINDOW:
            oldest = next(iter(window.answers))
            window.floor = max(window.floor, oldest)
            del window.answers[oldest]
            self._numbers -= 1
        window.answers[number] = None
        self._numbers += 1
        return NumberStatus.NEW

    def answer(self, publisher: Hashable, number: int) -> PubAck | None:
        """Return the answer that was given to a number."""
        window = self._windows.get(publisher)
        return window.answers.get(number) if window is not None else None

    def note(self, publisher: Hashable, number: int, answer: PubAck) -> None:
        """Keep an answer, for repeats."""
        window = self._windows.get(publisher)
        if window is not None and number in window.answers:
            window.answers[number] = answer

    def forget(self, publisher: Hashable, number: int) -> None:
        """Judge a number anew when it comes again: nothing was done for it."""
        window = self._windows.get(publisher)
        if window is not None and number in window.answers:
            del window.answers[number]
            self._numbers -= 1
