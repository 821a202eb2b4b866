"""Access at an edge: one place for the parts that log in, judge and limit its clients.

A part is a core of its own (``edge/login``, ``edge/rights``, ``edge/clients/abuse_limits.py``). The core of the edge
calls this holder only, and the holder calls each part that stands; without parts nothing here costs or changes
anything.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from edge.clients.client import Client

__all__ = ["AccessPart", "EdgeAccess", "RevocationReload"]


class AccessPart(Protocol):
    """A part that follows an edge's turns."""

    def step(self, now: float) -> None:
        """Go on with what waits; called in each turn, before its flush."""

    def next_deadline(self) -> float:
        """Return when ``step`` wants to be called next, infinity for never."""


class RevocationReload(Protocol):
    """A part that keeps something of a connection."""

    def closed(self, client: Client, why: int) -> None:
        """Forget a connection that is gone, whatever it waited for."""


class EdgeAccess:
    """The parts of one edge.

    Args:
        parts: In the order of a turn: a step of the policy is known before anybody is judged by it.
        keeping: Those that keep something of a connection, and let go of it when that ends.
    """

    def __init__(self, parts: Sequence[AccessPart], keeping: Sequence[RevocationReload]) -> None:
        self._parts = parts
        self._keeping = keeping

    def join(self, part: AccessPart) -> None:
        """Call a part of the shell from now on, before the others."""
        self._parts = (part, *self._parts)

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
        """Tell each part that keeps something of a connection that it is gone."""
        for part in self._keeping:
            part.closed(client, why)
