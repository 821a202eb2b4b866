"""The longest turn of a process: for how long its loop gave nobody else a chance.

A turn of trio's is what it runs between two waits: each task that was ready, once. The edge's compiled loop takes the
place of a wait there and has turns of its own, which its shell tells. Seconds are those of the wall: a processor that
others had, or a stopped process, is a long turn too, as clients see it.
"""

import time

import trio

__all__ = ["Turns"]

WINDOW_S = 30.0


class Turns(trio.abc.Instrument):
    """Looks at each turn; remembers the longest one of the last 30 to 60 s."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._window_ends = self._began + WINDOW_S
        self._longest_s = 0.0  # of this window
        self._before_s = 0.0  # of the one before

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Begin a turn."""
        self._began = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """End a turn."""
        now = time.monotonic()
        self.note(now - self._began, now)

    def note(self, seconds: float, now: float) -> None:
        """Take a turn that ended at ``now``, of ``time.monotonic()``."""
        if now >= self._window_ends:
            self._turn_window(now)
        if seconds > self._longest_s:
            self._longest_s = seconds

    def longest_s(self) -> float:
        """Return the longest turn of this window and the one before, in seconds."""
        now = time.monotonic()
        if now >= self._window_ends:
            self._turn_window(now)
        return max(self._longest_s, self._before_s)

    def _turn_window(self, now: float) -> None:
        silent = now >= self._window_ends + WINDOW_S
        self._before_s = 0.0 if silent else self._longest_s
        self._longest_s, self._window_ends = 0.0, now + WINDOW_S
