"""CPU yields: a node offers its core to the other nodes of the host between two pieces of work.

After a sleep, a router or storage node has unused CPU share. The kernel then lets it run until the next tick, some
milliseconds later, although an edge with a shorter slice is ready. ``sched_yield`` makes the kernel choose again and
costs half a microsecond. The edge resumes as soon as the other process has used its share. Only a process whose session
has its own scheduling group may yield (``wire/node/scheduling.py``). Without such a group, each call loses a whole
slice. Decision and measurements: docs/adr/0220-pieces-give-way.md.
"""

from collections.abc import Callable
from typing import TypeAlias

import trio

__all__ = ["GiveWay", "YieldBeforeSteps", "stay"]

GiveWay: TypeAlias = Callable[[], object]


def stay() -> None:
    """Do not yield."""


class YieldBeforeSteps(trio.abc.Instrument):
    """Yields the CPU before each step of a task."""

    def __init__(self, give_way: GiveWay) -> None:
        self._give_way = give_way

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """Yield before Trio runs a task step."""
        self._give_way()
