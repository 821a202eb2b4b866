"""Stop requests of nodes at the leader, collected briefly so that nodes that stop together are handled together.

An operator who stops a whole tier signals each of its nodes. Handled one by one, each would hand its partitions to the
next one that stops. The nodes serve meanwhile, so the delay costs no availability. Sans-IO.
"""

__all__ = ["StopRequests"]

GATHER_S = 0.2  # after the newest request: signals to all processes of a busy host arrive within this
GATHER_S_MAX = 1.0  # after the oldest request


class StopRequests:
    """Pending stop requests at the leader; a node repeats its own until the map shows it as stopping."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._oldest = self._newest = 0.0

    def ask(self, now: float, node: str, incarnation: int) -> None:
        """Queue a request of a live incarnation; the map bounds their number."""
        if self._asked.get(node) == incarnation:
            return
        if not self._asked:
            self._oldest = now
        self._newest = now
        self._asked[node] = incarnation

    def take(self, now: float) -> dict[str, int]:
        """Remove and return the incarnations to stop together, {} before the delay has passed."""
        if not self._asked or now < self.next_deadline():
            return {}
        asked, self._asked = self._asked, {}
        return asked

    def clear(self) -> None:
        """Drop all requests when leadership ends: the nodes repeat them at the next leader."""
        self._asked = {}

    def next_deadline(self) -> float:
        """Return when ``take`` returns requests."""
        return min(self._newest + GATHER_S, self._oldest + GATHER_S_MAX) if self._asked else float("inf")
