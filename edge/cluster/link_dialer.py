"""Dials of one edge: every node of the map that is its to dial, and the seeds while no router of the map is linked.

Sans-IO: the shell waits, connects, and says how it went. Which of two nodes dials is a rule of
``wire/messages/hello.py``, how long to wait one of ``wire/links/redial.py``.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edge.cluster.peer_table import PeerTable
from edge.loop.state import LoopConnection
from wire.links.redial import backoff_s
from wire.links.roster import is_router
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER

__all__ = ["DialTarget", "LinkDialer"]


class DialTarget(NamedTuple):
    """An order to connect."""

    name: str  # of the node, or the seed's address
    tier: str
    address: str
    wait_s: float  # before that

    @property
    def node(self) -> str:
        """Return who is there; "" at a seed's address, where HELLO tells."""
        return "" if self.name == self.address else self.name


class LinkDialer:
    """Nodes that an edge dials.

    Args:
        peers: The other nodes.
        cluster_map: The map as of now.
        seeds: Addresses of routers.
        rng: For the jitter of waits.
    """

    def __init__(
        self, peers: PeerTable, cluster_map: Callable[[], ClusterMap], seeds: Sequence[str], rng: random.Random
    ) -> None:
        self._peers = peers
        self._map = cluster_map
        self._seeds = seeds
        self._rng = rng
        self._under_way: dict[str, LoopConnection | None] = {}  # by name; None: not connected yet
        self._failures: dict[str, int] = {}  # dials since the node was last linked

    def due(self) -> list[DialTarget]:
        """Return whom to dial now; each is under way until ``connected`` and the connection's end, or ``failed``."""
        dials = []
        for name, (tier, address) in self._wanted().items():
            pending = self._under_way.get(name)
            if name not in self._under_way or (pending is not None and pending.closed):
                self._under_way[name] = None
                failures = self._failures.get(name, 0)
                self._failures[name] = failures + 1
                dials.append(DialTarget(name, tier, address, backoff_s(failures, self._rng) if failures else 0.0))
        return dials

    def connected(self, name: str, conn: LoopConnection) -> None:
        """Take the connection of a dial; whether it becomes a link is seen by its end."""
        self._under_way[name] = conn

    def failed(self, name: str) -> None:
        """Forget a dial that made no connection."""
        self._under_way.pop(name, None)
        if not self._peers.connected():
            self._peers.router_fault = ""  # nobody answers, whatever was said before

    def _wanted(self) -> dict[str, tuple[str, str]]:
        cluster_map = self._map()
        wanted = {name: where for name, where in self._peers.wanted(cluster_map).items() if where[1]}
        if not any(is_router(cluster_map, key) for key in self._peers.connected()):
            addresses = {address for _, address in wanted.values()}
            wanted.update({seed: (TIER_ROUTER, seed) for seed in self._seeds if seed not in addresses})
        for name in [name for name in self._under_way if name not in wanted]:
            if self._under_way[name] is not None:  # it is linked, or nobody any more
                del self._under_way[name]
                self._failures.pop(name, None)
        return wanted
