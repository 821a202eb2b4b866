"""Nodes that asked the leader to be relieved, gathered for a moment: those that stop together are judged together.

Whoever stops a whole tier sends a signal to each of its nodes; judged one by one, each would hand its partitions to the
next one that stops. They go on serving meanwhile, so the moment costs nobody anything. Sans-IO.
"""

__all__ = ["StopRequests"]

GATHER_S = 0.2  # after the newest: signals to all processes of a host arrive within this, on a busy one too
GATHER_S_MAX = 1.0  # after the oldest


class StopRequests:
    """Requests that wait, at the leader; a node repeats its own until the map shows that it stops."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._oldest = self._newest = 0.0

    def ask(self, now: float, node: str, incarnation: int) -> None:
        """Take a request of a live incarnation; there are no more of them than nodes in the map."""
        if self._asked.get(node) == incarnation:
            return
        if not self._asked:
            self._oldest = now
        self._newest = now
        self._asked[node] = incarnation

    def take(self, now: float) -> dict[str, int]:
        """Return the incarnations to relieve together, once it is time."""
        if not self._asked or now < self.next_deadline():
            return {}
        asked, self._asked = self._asked, {}
        return asked

    def clear(self) -> None:
        """This router leads no more: they ask the next one."""
        self._asked = {}

    def next_deadline(self) -> float:
        """Return when ``take`` has something."""
        return min(self._newest + GATHER_S, self._oldest + GATHER_S_MAX) if self._asked else float("inf")
