"""Access control at an edge: one holder for the parts that authenticate, authorize and limit clients.

Each part is a core of its own (``edge/login``, ``edge/rights``, ``edge/clients/abuse_limits.py``). The core of the edge
calls only this holder, and the holder calls each configured part. Without parts it has no cost and no effect.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from edge.clients.client import Client

__all__ = ["AccessPart", "ConnectionStateHolder", "EdgeAccess"]


class AccessPart(Protocol):
    """A part that runs in each iteration of an edge."""

    def step(self, now: float) -> None:
        """Process pending work; called in each iteration, before its flush."""

    def next_deadline(self) -> float:
        """Return when ``step`` must be called next, infinity for never."""


class ConnectionStateHolder(Protocol):
    """A part that holds state of connections."""

    def closed(self, client: Client, why: int) -> None:
        """Remove the state of a closed connection."""


class EdgeAccess:
    """The parts of one edge.

    Args:
        parts: In call order: a policy step is applied before any client is authorized by it.
        close_hooks: Parts that hold state of connections and release it on close.
    """

    def __init__(self, parts: Sequence[AccessPart], close_hooks: Sequence[ConnectionStateHolder]) -> None:
        self._parts = parts
        self._close_hooks = close_hooks

    def join(self, part: AccessPart) -> None:
        """Call a part of the shell in each later iteration, before the others."""
        self._parts = (part, *self._parts)

    def step(self, now: float) -> None:
        """Run one step of each part."""
        for part in self._parts:
            part.step(now)

    def next_deadline(self) -> float:
        """Return the earliest deadline of the parts."""
        deadline = math.inf
        for part in self._parts:
            due = part.next_deadline()
            if due < deadline:
                deadline = due
        return deadline

    def closed(self, client: Client, why: int) -> None:
        """Make each part remove its state of a closed connection."""
        for part in self._close_hooks:
            part.closed(client, why)
