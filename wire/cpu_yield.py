"""Giving way: between two pieces of its work a node offers the core to the other nodes of its host.

A router or a storage node that wakes up after a rest has its share of the core before it. So the kernel lets it go on
until the next tick, some milliseconds later, though the edge is ready all the time and its slice is short.
``sched_yield`` has the kernel choose again, which costs half a microsecond: the edge goes on as soon as the other has
had its share, and comes first. Only a process whose session has a group of its own may do that
(``wire/node/scheduling.py``): there it gives up nothing that its group is due, elsewhere a whole slice. Decision and
figures: docs/adr/0220-pieces-give-way.md.
"""

from collections.abc import Callable
from typing import TypeAlias

import trio

__all__ = ["GiveWay", "YieldBeforeSteps", "stay"]

GiveWay: TypeAlias = Callable[[], object]


def stay() -> None:
    """Give way to nobody."""


class YieldBeforeSteps(trio.abc.Instrument):
    """Gives way before each step of a task."""

    def __init__(self, give_way: GiveWay) -> None:
        self._give_way = give_way

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        """A step is about to begin."""
        self._give_way()
