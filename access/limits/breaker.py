"""Circuit breaker for a callout server: after some failures, requests fail at once for a while.

=======  =========================================  =====================================================
state    requests                                   transition
=======  =========================================  =====================================================
closed   all                                        FAILURES failures within WINDOW_S: open
open     none; the answer is 0x88 at once           after OPEN_S the next request is the probe: probing
probing  only the probe                             its success: closed; its failure: open; no result
                                                    within OPEN_S: the next request is the probe
=======  =========================================  =====================================================

The result of a request from an earlier state is ignored: late failures of a dead server would otherwise open a breaker
that its successor's probe has closed.
"""

from collections import deque

__all__ = ["Breaker"]

FAILURES = 5
WINDOW_S = 10.0
OPEN_S = 5.0


class Breaker:
    """Failures of one server.

    Attributes:
        opened: How often it opened.
    """

    def __init__(self, failures: int = FAILURES, window_s: float = WINDOW_S, open_s: float = OPEN_S) -> None:
        if failures < 1 or not (window_s > 0 and open_s > 0):
            raise ValueError(f"{failures} failures in {window_s} s open it for {open_s} s: all above 0")
        self._window_s = window_s
        self._open_s = open_s
        self._failed_at: deque[float] = deque(maxlen=failures)
        self._closed = True
        self._until = 0.0  # no requests until then, unless closed
        self._state = 1  # number of the state: a permit is valid in its own state
        self.opened = 0

    @property
    def closed(self) -> bool:
        """Whether all requests are permitted."""
        return self._closed

    def ask(self, now: float) -> int:
        """Return a permit for a request, 0 if none is permitted; pass the permit to ``done``."""
        if self._closed:
            return self._state
        if now < self._until:
            return 0
        self._state += 1
        self._until = now + self._open_s  # until then the probe has a result, or another one is sent
        return self._state

    def done(self, permit: int, ok: bool, now: float) -> None:
        """Record the result of a request; a cancelled one is a failure."""
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
