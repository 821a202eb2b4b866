"""One edge from the balancer's view: addresses, estimated number of clients, and skip time after failures.

The estimate starts at the gossip value and grows by this balancer's picks. A gossip value is older than the picks of
the last seconds. Therefore it changes the estimate only by the part that those picks cannot explain. Pure.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Edge"]

GOSSIP_AGE_S = 5  # largest age of a gossip value: sent every 2 s, plus propagation
SKIP_S = 1.0  # after a failure; doubled with each further one
SKIP_MAX_S = 5.0


@dataclass(slots=True, eq=False)
class Edge:
    """One incarnation of an edge.

    Attributes:
      node: Its name.
      incarnation: Its process.
      addresses: By listener, host:port.
      socket: Path of its hand-over socket on this host, "" if it is on another host.
      zone: Zone of its host.
      weight: Its share, relative to others.
      since: When it became a candidate; -inf for edges of the first map.
      clients: Estimated number of clients.
      skip_until: It receives no clients before this time.
      number: Number of its last pick, for round-robin among equals.
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
        """Count a client that is being forwarded to this edge."""
        self.clients += 1
        self.number = number
        second = int(now)
        if self._recent and self._recent[-1][0] == second:
            self._recent[-1][1] += 1
        else:
            self._recent.append([second, 1])
            self._forget_before(second)

    def picks_in(self, second: int) -> int:
        """Return the picks of one recent second."""
        return sum(picks for at, picks in self._recent if at == second)

    def lost(self) -> None:
        """Count a picked client that did not arrive or whose relayed connection ended."""
        self.clients = max(0, self.clients - 1)

    def update_clients(self, now: float, clients: int) -> None:
        """Update the estimate with a gossip value."""
        self._forget_before(int(now))
        recent = sum(picks for _, picks in self._recent)
        self.clients = min(max(self.clients, clients), clients + recent)

    def failed(self, now: float) -> None:
        """Record a failure and skip the edge for a while; failures during that time count once."""
        if now < self.skip_until:
            return
        self.skip_until = now + self._skip_s
        self._skip_s = min(SKIP_MAX_S, 2 * self._skip_s)

    def took(self) -> None:
        """Record an accepted client."""
        self._skip_s = SKIP_S

    def _forget_before(self, second: int) -> None:
        while self._recent and self._recent[0][0] < second - GOSSIP_AGE_S:
            self._recent.popleft()
