"""The longest turn of a process, and the longest piece of one: for how long its loop gave nobody else a chance.

A turn of trio's is what it runs between two waits: each task that was ready, once. The edge's compiled loop takes the
place of a wait there and has turns of its own, which its shell tells. Seconds are those of the wall: a processor that
others had, or a stopped process, is a long turn too, as clients see it.
"""

import time

import trio

from conf.metrics import PowersOfTwo

__all__ = ["LoopLag", "StepLag", "WindowedMax"]

WINDOW_S = 30.0


class WindowedMax:
    """The longest of what was noted in the last 30 to 60 s."""

    def __init__(self) -> None:
        self._window_ends = time.monotonic() + WINDOW_S
        self._longest_s = 0.0  # of this window
        self._before_s = 0.0  # of the one before

    def note(self, seconds: float, now: float) -> None:
        """Take what ended at ``now``, of ``time.monotonic()``."""
        if now >= self._window_ends:
            self._turn_window(now)
        if seconds > self._longest_s:
            self._longest_s = seconds

    def longest_s(self) -> float:
        """Return the longest of this window and the one before, in seconds."""
        now = time.monotonic()
        if now >= self._window_ends:
            self._turn_window(now)
        return max(self._longest_s, self._before_s)

    def _turn_window(self, now: float) -> None:
        silent = now >= self._window_ends + WINDOW_S
        self._before_s = 0.0 if silent else self._longest_s
        self._longest_s, self._window_ends = 0.0, now + WINDOW_S


class LoopLag(WindowedMax, trio.abc.Instrument):
    """Notes each turn of trio's.

    Attributes:
        lengths: Of all turns, those that the edge's loop tells among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self.lengths = PowersOfTwo()

    def note(self, seconds: float, now: float) -> None:
        """Take a turn that ended at ``now``, of ``time.monotonic()``."""
        super().note(seconds, now)
        self.lengths.observe(seconds)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Begin a turn."""
        self._began = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """End a turn."""
        now = time.monotonic()
        self.note(now - self._began, now)


class StepLag(trio.abc.Instrument):
    """Notes each step of a task, from one wait of its own to the next.

    Args:
        longest: Takes the steps' seconds.
    """

    def __init__(self, longest: WindowedMax) -> None:
        self._longest = longest
        self._began = time.monotonic()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """Begin a step."""
        self._began = time.monotonic()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """End a step."""
        now = time.monotonic()
        self._longest.note(now - self._began, now)
