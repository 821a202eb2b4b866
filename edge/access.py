"""Access at an edge: one place for the parts that log in, judge and limit its clients.

A part is a core of its own (``edge/login``, ``edge/rights``, ``edge/clients/conduct.py``). The core of the edge calls
this holder only, and the holder calls each part that stands; without parts nothing here costs or changes anything.
"""

import math
from typing import Protocol

from edge.clients.client import Client

__all__ = ["AccessPart", "EdgeAccess"]


class AccessPart(Protocol):
    """A part that follows the turns and the ends of an edge's connections."""

    def step(self, now: float) -> None:
        """Go on with what waits; called in each turn, before its flush."""

    def next_deadline(self) -> float:
        """Return when ``step`` wants to be called next, infinity for never."""

    def closed(self, client: Client, why: int) -> None:
        """Forget a connection that is gone, whatever it waited for."""


class EdgeAccess:
    """The parts of one edge.

    Args:
        parts: In the order of a turn: a step of the policy is known before anybody is judged by it.
    """

    def __init__(self, *parts: AccessPart) -> None:
        self._parts = parts

    def step(self, now: float) -> None:
        """Let each part go on."""
        for part in self._parts:
            part.step(now)

    def next_deadline(self) -> float:
        """Return when the first part wants to go on."""
        deadline = math.inf
        for part in self._parts:
            due = part.next_deadline()
            if due < deadline:
                deadline = due
        return deadline

    def closed(self, client: Client, why: int) -> None:
        """Tell each part that a connection is gone."""
        for part in self._parts:
            part.closed(client, why)
