"""Windows of publishers: the numbers of their last messages, and the answers.

A repeat is answered again and distributed once. Each publisher has 1 024 numbers; a number below them is refused, since
it is unknown whether it was distributed. Above the bounds of publishers and of all numbers, the least recently active
publishers are removed.
"""

import enum
from collections.abc import Hashable

from gateways.datagrams.messages import PubAck

__all__ = ["WINDOW", "NumberStatus", "NumberWindows"]

WINDOW = 1024
NUMBERS_MAX = 1_000_000  # of all publishers: at most about 200 MB


class NumberStatus(enum.Enum):
    """Status of a number."""

    NEW = "recorded now"
    UNDER_WAY = "answered after its distribution"
    ANSWERED = "the stored answer is sent again"
    TOO_OLD = "below the window"


class _Window:
    __slots__ = ("answers", "floor")

    def __init__(self) -> None:
        self.answers: dict[int, PubAck | None] = {}
        self.floor = -1  # the greatest removed number


class NumberWindows:
    """Windows by publisher: its session, or its address without one."""

    def __init__(self, publishers_max: int) -> None:
        self.forgotten = 0
        self._max, self._numbers = publishers_max, 0
        self._windows: dict[Hashable, _Window] = {}  # least recently active first

    def check(self, publisher: Hashable, number: int) -> NumberStatus:
        """Return the status of a number, and record a new one."""
        window = self._windows.pop(publisher, None)
        if window is None:
            while len(self._windows) >= self._max or (self._numbers >= NUMBERS_MAX and self._windows):
                removed = self._windows.pop(next(iter(self._windows)))
                self._numbers -= len(removed.answers)
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
        """Return the answer to a number."""
        window = self._windows.get(publisher)
        return window.answers.get(number) if window is not None else None

    def store_answer(self, publisher: Hashable, number: int, answer: PubAck) -> None:
        """Store an answer, for repeats."""
        window = self._windows.get(publisher)
        if window is not None and number in window.answers:
            window.answers[number] = answer

    def forget(self, publisher: Hashable, number: int) -> None:
        """Remove a number, so that its repeat counts as new."""
        window = self._windows.get(publisher)
        if window is not None and number in window.answers:
            del window.answers[number]
            self._numbers -= 1
