"""Client programs as coroutines on the simulation's clock: sleep, and wait for changes.

A minimal scheduler, so that only the heap determines the order.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from tests.simulation.scheduler import Scheduler

__all__ = ["Change", "Program", "sleep"]


class _Wait:
    """Value yielded by a program: resume on a change, or at a time, whichever is first."""

    def __init__(self, deadline: float, change: "Change | None" = None, seconds: float = 0.0) -> None:
        self.deadline = deadline
        self.seconds = seconds  # from now, without a deadline
        self.change = change

    def __await__(self) -> Generator["_Wait", None, None]:
        yield self


def sleep(seconds: float) -> Awaitable[None]:
    """Wait."""
    return _Wait(float("inf"), None, seconds)


class Change:
    """A condition variable of programs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.waiting: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Wake all waiting programs, after the current event."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            self._scheduler.after(0.0, call)

    async def until(self, condition: Callable[[], object], within_s: float = float("inf")) -> bool:
        """Wait for a condition; False after a timeout."""
        deadline = self._scheduler.now + within_s
        while not condition():
            if self._scheduler.now >= deadline:
                return False
            await _Wait(deadline, self)
        return True


class Program:
    """One running coroutine."""

    def __init__(self, scheduler: Scheduler, coroutine: Coroutine[Any, Any, object]) -> None:
        self._scheduler = scheduler
        self._coroutine = coroutine
        self._turn = 0
        self.done = False
        scheduler.after(0.0, self._step, 0)

    def stop(self) -> None:
        """Stop it at its current wait."""
        if not self.done:
            self.done = True
            self._coroutine.close()

    def _step(self, turn: int) -> None:
        if self.done or turn != self._turn:
            return  # the other of change and time was first
        self._turn += 1
        try:
            wait: _Wait = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            return
        if wait.change is not None:
            now = self._turn
            wait.change.waiting.append(lambda: self._step(now))
            if wait.deadline != float("inf"):
                self._scheduler.at(wait.deadline, self._step, self._turn)
        else:
            self._scheduler.after(wait.seconds, self._step, self._turn)
