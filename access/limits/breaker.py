"""Breaker in front of a server that is asked: after some failures nobody waits for it for a while.

=======  =========================================  =====================================================
state    asks                                       way out
=======  =========================================  =====================================================
closed   everybody                                  FAILURES failures within WINDOW_S: open
open     nobody; the answer is 0x88 at once         after OPEN_S the next one who asks is the probe: probing
probing  the probe alone, and nobody else           its success: closed; its failure: open; no word of it
                                                    for OPEN_S: the next one is the probe
=======  =========================================  =====================================================

The answer to a question that was asked in a former state changes nothing: late failures of a server that has died
would otherwise open what its successor's probe has closed.
"""

from collections import deque

__all__ = ["Breaker"]

FAILURES = 5
WINDOW_S = 10.0
OPEN_S = 5.0


class Breaker:
    """Failures of one server.

    Attributes:
        opened: How many times it opened.
    """

    def __init__(self, failures: int = FAILURES, window_s: float = WINDOW_S, open_s: float = OPEN_S) -> None:
        if failures < 1 or not (window_s > 0 and open_s > 0):
            raise ValueError(f"{failures} failures in {window_s} s open it for {open_s} s: all above 0")
        self._window_s = window_s
        self._open_s = open_s
        self._failed_at: deque[float] = deque(maxlen=failures)
        self._closed = True
        self._until = 0.0  # until then nobody asks, unless it is closed
        self._state = 1  # number of the state: a permit is good in its own
        self.opened = 0

    @property
    def closed(self) -> bool:
        """True while everybody may ask."""
        return self._closed

    def ask(self, now: float) -> int:
        """Return a permit to ask the server, 0 if nobody may; the permit goes into ``done``."""
        if self._closed:
            return self._state
        if now < self._until:
            return 0
        self._state += 1
        self._until = now + self._open_s  # by then the probe has its answer, or another one is sent
        return self._state

    def done(self, permit: int, ok: bool, now: float) -> None:
        """Note the outcome of a question; one that was cancelled is a failure."""
        if permit != self._state:
            return
        if self._closed:
            if not ok:
                self._failed(now)
        elif ok:
            self._state += 1
            self._closed = True
            self._failed_at.clear()
        else:
            self._open(now)

    def _failed(self, now: float) -> None:
        self._failed_at.append(now)
        if len(self._failed_at) == self._failed_at.maxlen and now - self._failed_at[0] <= self._window_s:
            self._open(now)

    def _open(self, now: float) -> None:
        self._state += 1
        self._closed = False
        self._until = now + self._open_s
        self._failed_at.clear()
        self.opened += 1
