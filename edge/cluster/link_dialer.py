"""Dials of one edge: the nodes of the map that it must dial, and the seeds while no router of the map is linked.

Sans-IO: the shell waits, connects, and reports the result. ``wire/messages/hello.py`` decides which of two nodes dials,
``wire/links/redial.py`` the backoff.
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
    wait_s: float  # before the dial

    @property
    def node(self) -> str:
        """Return the node's name; "" at a seed's address: its HELLO names it."""
        return "" if self.name == self.address else self.name


class LinkDialer:
    """The dials of an edge.

    Args:
        peers: The other nodes.
        cluster_map: Returns the current map.
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
        self._pending: dict[str, LoopConnection | None] = {}  # by name; None: not connected yet
        self._failures: dict[str, int] = {}  # dials since the last link to the node

    def due(self) -> list[DialTarget]:
        """Return the next dials; each is pending until ``failed``, or ``connected`` and the connection's end."""
        dials = []
        for name, (tier, address) in self._targets().items():
            conn = self._pending.get(name)
            if name not in self._pending or (conn is not None and conn.closed):
                self._pending[name] = None
                failures = self._failures.get(name, 0)
                self._failures[name] = failures + 1
                dials.append(DialTarget(name, tier, address, backoff_s(failures, self._rng) if failures else 0.0))
        return dials

    def connected(self, name: str, conn: LoopConnection) -> None:
        """Register the connection of a dial; it is pending until it closes."""
        self._pending[name] = conn

    def failed(self, name: str) -> None:
        """Remove a dial that made no connection."""
        self._pending.pop(name, None)
        if not self._peers.connected():
            self._peers.router_fault = ""  # no node answers: an earlier fault is outdated

    def _targets(self) -> dict[str, tuple[str, str]]:
        cluster_map = self._map()
        wanted = {name: where for name, where in self._peers.wanted(cluster_map).items() if where[1]}
        if not any(is_router(cluster_map, key) for key in self._peers.connected()):
            addresses = {address for _, address in wanted.values()}
            wanted.update({seed: (TIER_ROUTER, seed) for seed in self._seeds if seed not in addresses})
        for name in [name for name in self._pending if name not in wanted]:
            if self._pending[name] is not None:  # it is linked, or no longer in the map
                del self._pending[name]
                self._failures.pop(name, None)
        return wanted
