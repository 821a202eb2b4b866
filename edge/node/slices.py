"""Long jobs in slices of a few steps an iteration, so that other work is not delayed.

A job is an iterator: it works some tens of microseconds and yields that work as a number of steps. Steps are counted
because a core reads no clock.
Decision: docs/adr/0023-work-in-slices.md.
"""

from collections import deque
from collections.abc import Iterator

__all__ = ["Slices"]


class Slices:
    """Pending jobs.

    Args:
        steps_max: Steps of an iteration.
        in_order: Complete the first job before the next one; else run one step of each in rotation, so that a long job
            does not delay short ones.
    """

    def __init__(self, steps_max: int, *, in_order: bool = False) -> None:
        self._steps_max = steps_max
        self._in_order = in_order
        self._left = steps_max
        self._jobs: deque[Iterator[int]] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Iterator[int]) -> None:
        """Start a job, at once if this iteration has steps left."""
        self._jobs.append(job)
        self._run()

    def next_turn(self) -> None:
        """Continue pending jobs; called once an iteration."""
        self._left = self._steps_max
        self._run()

    def _run(self) -> None:
        if self._running:  # a step added a job: the loop below runs it
            return
        self._running = True
        while self._jobs and self._left > 0:
            job = self._jobs.popleft()
            try:
                self._left -= next(job)
            except StopIteration:
                self._left -= 1
                continue
            if self._in_order:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
        self._running = False
