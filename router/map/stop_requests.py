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
        self._requests: dict[str, int] = {}
        self._oldest = self._newest = 0.0

    def add(self, now: float, node: str, incarnation: int) -> None:
        """Queue a request of a live incarnation; the map bounds their number."""
        if self._requests.get(node) == incarnation:
            return
        if not self._requests:
            self._oldest = now
        self._newest = now
        self._requests[node] = incarnation

    def take(self, now: float) -> dict[str, int]:
        """Remove and return the incarnations to stop together, {} before the delay has passed."""
        if not self._requests or now < self.next_deadline():
            return {}
        requests, self._requests = self._requests, {}
        return requests

    def clear(self) -> None:
        """Drop all requests when leadership ends: the nodes repeat them at the next leader."""
        self._requests = {}

    def next_deadline(self) -> float:
        """Return when ``take`` returns requests."""
        return min(self._newest + GATHER_S, self._oldest + GATHER_S_MAX) if self._requests else float("inf")
