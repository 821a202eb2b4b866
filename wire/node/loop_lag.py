"""The longest event-loop iteration of a process, and the longest step of a task within it.

An iteration of Trio is the code between two waits: each ready task, once. The edge's compiled loop replaces a wait and
reports its own iterations. Durations are wall time, as clients see it: lost processor time and a stopped process count
too.
"""

import time

import trio

from conf.metrics import PowersOfTwo

__all__ = ["LoopLag", "StepLag", "WindowedMax"]

WINDOW_S = 30.0


class WindowedMax:
    """The maximum of the values of the last 30 to 60 s."""

    def __init__(self) -> None:
        self._window_ends = time.monotonic() + WINDOW_S
        self._longest_s = 0.0  # of this window
        self._before_s = 0.0  # of the one before

    def note(self, seconds: float, now: float) -> None:
        """Add a duration that ended at ``now``, of ``time.monotonic()``."""
        if now >= self._window_ends:
            self._start_window(now)
        if seconds > self._longest_s:
            self._longest_s = seconds

    def longest_s(self) -> float:
        """Return the maximum of this window and the one before, in seconds."""
        now = time.monotonic()
        if now >= self._window_ends:
            self._start_window(now)
        return max(self._longest_s, self._before_s)

    def _start_window(self, now: float) -> None:
        silent = now >= self._window_ends + WINDOW_S
        self._before_s = 0.0 if silent else self._longest_s
        self._longest_s, self._window_ends = 0.0, now + WINDOW_S


class LoopLag(WindowedMax, trio.abc.Instrument):
    """Measures each iteration of Trio's loop.

    Attributes:
        lengths: Histogram of all iterations, including those of the edge's loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self.lengths = PowersOfTwo()

    def note(self, seconds: float, now: float) -> None:
        """Add an iteration that ended at ``now``, of ``time.monotonic()``."""
        super().note(seconds, now)
        self.lengths.observe(seconds)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Start an iteration."""
        self._began = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """End an iteration."""
        now = time.monotonic()
        self.note(now - self._began, now)


class StepLag(trio.abc.Instrument):
    """Measures each step of a task, from one of its waits to the next.

    Args:
        longest: Receives the durations of steps.
    """

    def __init__(self, longest: WindowedMax) -> None:
        self._longest = longest
        self._began = time.monotonic()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """Start a step."""
        self._began = time.monotonic()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """End a step."""
        now = time.monotonic()
        self._longest.note(now - self._began, now)
