"""One edge as a balancer sees it: where it is, how many clients it has by the best guess, and when it is left alone.

The guess begins with what the edge told by gossip and grows by this balancer's own picks. What is told next is older
than the picks of the last seconds, so it moves the guess only as far as those cannot explain. Pure.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Edge"]

TOLD_AGE_S = 5  # oldest news of an edge: told every 2 s, and gossip takes a while
SKIP_S = 1.0  # after a failure; doubled with each further one
SKIP_MAX_S = 5.0


@dataclass(slots=True, eq=False)
class Edge:
    """One incarnation of an edge.

    Attributes:
        node: Its name.
        incarnation: Of its process.
        addresses: By listener, host:port.
        socket: Path at which it takes connections from this host, "" where it is on another one.
        zone: Of its host.
        weight: Its share, relative to others.
        since: When it became a candidate; -inf for those that the first map had.
        clients: Guess of how many it has.
        skip_until: It gets nobody before.
        number: Of its last pick, so that equals take turns.
    """

    node: str
    incarnation: int
    addresses: Mapping[str, str]
    socket: str
    zone: str
    weight: int
    since: float
    clients: int = 0
    skip_until: float = float("-inf")
    number: int = 0
    _skip_s: float = SKIP_S
    _recent: deque[list[int]] = field(default_factory=deque)  # [second, picks], oldest first

    def picked(self, now: float, number: int) -> None:
        """Count a client that is on its way to this edge."""
        self.clients += 1
        self.number = number
        second = int(now)
        if self._recent and self._recent[-1][0] == second:
            self._recent[-1][1] += 1
        else:
            self._recent.append([second, 1])
            self._forget(second)

    def picks_in(self, second: int) -> int:
        """Return the picks of one of the last seconds."""
        return sum(picks for at, picks in self._recent if at == second)

    def lost(self) -> None:
        """A client is gone that was picked here: it did not arrive, or its relayed connection ended."""
        self.clients = max(0, self.clients - 1)

    def told(self, now: float, clients: int) -> None:
        """The edge told how many clients it has, some time ago."""
        self._forget(int(now))
        recent = sum(picks for _, picks in self._recent)
        self.clients = min(max(self.clients, clients), clients + recent)

    def failed(self, now: float) -> None:
        """It did not take a client: leave it alone for a while. What many clients find at once counts once."""
        if now < self.skip_until:
            return
        self.skip_until = now + self._skip_s
        self._skip_s = min(SKIP_MAX_S, 2 * self._skip_s)

    def took(self) -> None:
        """It took a client."""
        self._skip_s = SKIP_S

    def _forget(self, second: int) -> None:
        while self._recent and self._recent[0][0] < second - TOLD_AGE_S:
            self._recent.popleft()
