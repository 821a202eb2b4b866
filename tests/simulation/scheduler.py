"""The simulation's clock: a heap of (time, sequence, call) in one thread, a trace, and watchdogs.

Equal times run in the order of their requests. ``trace`` folds all events into one number, equal in two runs of a
seed.
"""

import heapq
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

__all__ = ["REAL_TIME_MAX_S", "Scheduler", "Spinning"]

EVENTS_MAX = 5_000_000  # of one seed
EVENTS_PER_INSTANT_MAX = 100_000
REAL_TIME_MAX_S = 180.0  # of processor time: a seed with all modes takes 80 s
CHECK_EVERY = 4_096  # events between checks of the bounds


class Spinning(AssertionError):
    """A watchdog ended the seed: too many events, or too much real time."""


class Scheduler:
    """Virtual time of one seed."""

    def __init__(self, *, events_max: int = EVENTS_MAX, real_time_max_s: float = REAL_TIME_MAX_S) -> None:
        self.now = 1000.0  # not 0, so that an unset clock is distinguishable
        self.events = 0
        self.digest = 0
        self._events_max = events_max
        self._real_time_max_s = real_time_max_s
        self._real_start = time.process_time()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._instant = 0.0
        self._instant_events = 0  # before it
        self.log: list[str] | None = None  # lines of events, for the replay of a seed

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call at a time; a past time means now."""
        self._sequence += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._sequence, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call later."""
        self.at(self.now + seconds, call, *arguments)

    def run_until(self, when: float) -> None:
        """Run the heap's calls up to a time."""
        heap, heappop = self._heap, heapq.heappop
        while heap and heap[0][0] <= when:
            self.now, _, call, arguments = heappop(heap)
            self.events += 1
            if self.events % CHECK_EVERY == 0:
                self._watch()
            call(*arguments)
        self.now = when

    def _watch(self) -> None:
        if self.now != self._instant:
            self._instant, self._instant_events = self.now, self.events
        if self.events - self._instant_events > EVENTS_PER_INSTANT_MAX:
            raise Spinning(f"more than {EVENTS_PER_INSTANT_MAX} events at {self.now:.6f}")
        if self.events > self._events_max:
            raise Spinning(f"more than {self._events_max} events")
        if time.process_time() - self._real_start > self._real_time_max_s:
            raise Spinning(f"more than {self._real_time_max_s} s of processor time")

    def trace(self, what: str, data: bytes = b"") -> None:
        """Fold an occurrence into the digest."""
        self.digest = crc32(data, crc32(b"%.9f %s" % (self.now, what.encode()), self.digest))

    def note(self, what: str) -> None:
        """Log an occurrence, and fold it into the digest."""
        self.trace(what)
        if self.log is not None:
            self.log.append(f"{self.now:11.6f} {what}")
