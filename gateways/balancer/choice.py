"""Choice of one edge among the candidates: three policies, round-robin among equals.

``least_connections``: the fewest clients by weight. If other balancers exist, it compares two random edges only.
Otherwise all balancers would choose the same edge until it reports its load (power of two choices, Mitzenmacher 1996).
``round_robin``: smooth weighted round-robin, as in NGINX. ``sticky``: rendezvous hashing of a key (Thaler,
Ravishankar 1996), with no edge above 1.25 times its share (Mirrokni et al. 2016). Pure.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Literal, TypeAlias

from gateways.balancer.edge import Edge

__all__ = ["Choice", "PolicyName"]

PolicyName: TypeAlias = Literal["least_connections", "round_robin", "sticky"]
LOAD_MAX = 1.25  # of an edge's share, for sticky clients
HASHES = 1 << 64


class Choice:
    """The choice for one listener.

    Args:
      policy: Name of the policy.
      rng: Samples two edges.
    """

    def __init__(self, policy: PolicyName, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._weights: dict[str, int] = {}  # round_robin: current weight by edge

    def pick(self, edges: Sequence[Edge], key: str, *, has_peers: bool) -> Edge:
        """Return one of the edges.

        Args:
          edges: At least one, sorted by name.
          key: Key of a sticky client.
          has_peers: Other balancers are alive.
        """
        if self._policy == "round_robin":
            return self._round_robin(edges)
        if self._policy == "sticky":
            return _by_hash(edges, key)
        if has_peers and len(edges) > 2:
            edges = self._rng.sample(edges, 2)
        return min(edges, key=lambda edge: (edge.clients / edge.weight, edge.number))

    def _round_robin(self, edges: Sequence[Edge]) -> Edge:
        weights = {edge.node: self._weights.get(edge.node, 0) + edge.weight for edge in edges}
        chosen = max(edges, key=lambda edge: weights[edge.node])  # the first of equals
        weights[chosen.node] -= sum(edge.weight for edge in edges)
        self._weights.update(weights)
        if len(self._weights) > len(edges):
            self._weights = {node: self._weights[node] for node in weights}
        return chosen


def _by_hash(edges: Sequence[Edge], key: str) -> Edge:
    """Return the first edge by hash that is below its bound; at least one always is."""
    clients, weights = 1 + sum(edge.clients for edge in edges), sum(edge.weight for edge in edges)
    for edge in sorted(edges, key=lambda edge: _distance(edge, key)):
        if edge.clients + 1 <= math.ceil(LOAD_MAX * clients * edge.weight / weights):
            return edge
    return min(edges, key=lambda edge: edge.clients / edge.weight)


def _distance(edge: Edge, key: str) -> float:
    digest = blake2b(f"{edge.node}\0{key}".encode(errors="surrogateescape"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest) + 1) / (HASHES + 1)) / edge.weight
