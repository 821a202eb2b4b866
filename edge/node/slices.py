"""Work that may be long, done a few steps a turn, so that nobody else waits for it.

A job is an iterator: it does some tens of microseconds of work and yields how many such steps that was. Steps are
counted, for a core reads no clock.
Decision: docs/adr/0023-work-in-slices.md.
"""

from collections import deque
from collections.abc import Iterator

__all__ = ["Slices"]


class Slices:
    """Jobs under way.

    Args:
        steps_max: Steps of a turn.
        in_order: The first job to its end, then the next one; else one step of each in turn, so that a long job holds
            up no short one.
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
        """Begin a job, at once as far as the steps of this turn reach."""
        self._jobs.append(job)
        self._go_on()

    def next_turn(self) -> None:
        """Go on with what is under way; once a turn."""
        self._left = self._steps_max
        self._go_on()

    def _go_on(self) -> None:
        if self._running:  # a step that adds a job: the loop below comes to it
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
