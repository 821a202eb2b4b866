"""Choice of one edge among those that may have a client: three policies, and turns among equals.

``least_connections``: the fewest clients by weight. With other balancers about, two random edges are compared instead
of all, or every balancer would send its clients to the same one until it has told so (power of two choices,
Mitzenmacher 1996). ``round_robin``: exact turns by weight, spread evenly (as NGINX has them). ``sticky``: rendezvous
hashing of a key (Thaler, Ravishankar 1996), with no edge above 1.25 times its share (Mirrokni et al. 2016). Pure.
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
        policy: Which.
        rng: For two random ones.
    """

    def __init__(self, policy: PolicyName, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._turns: dict[str, int] = {}  # of round_robin: by edge, what it is owed

    def pick(self, edges: Sequence[Edge], key: str, *, in_company: bool) -> Edge:
        """Return one of the edges.

        Args:
            edges: One at least, by name.
            key: Of a sticky client.
            in_company: Other balancers are about.
        """
        if self._policy == "round_robin":
            return self._in_turn(edges)
        if self._policy == "sticky":
            return _by_hash(edges, key)
        if in_company and len(edges) > 2:
            edges = self._rng.sample(edges, 2)
        return min(edges, key=lambda edge: (edge.clients / edge.weight, edge.number))

    def _in_turn(self, edges: Sequence[Edge]) -> Edge:
        owed = {edge.node: self._turns.get(edge.node, 0) + edge.weight for edge in edges}
        chosen = max(edges, key=lambda edge: owed[edge.node])  # the first of equals
        owed[chosen.node] -= sum(edge.weight for edge in edges)
        self._turns.update(owed)
        if len(self._turns) > len(edges):
            self._turns = {node: self._turns[node] for node in owed}
        return chosen


def _by_hash(edges: Sequence[Edge], key: str) -> Edge:
    """Return the first edge by hash that has room below its bound; one always has."""
    clients, weights = 1 + sum(edge.clients for edge in edges), sum(edge.weight for edge in edges)
    for edge in sorted(edges, key=lambda edge: _distance(edge, key)):
        if edge.clients + 1 <= math.ceil(LOAD_MAX * clients * edge.weight / weights):
            return edge
    return min(edges, key=lambda edge: edge.clients / edge.weight)


def _distance(edge: Edge, key: str) -> float:
    digest = blake2b(f"{edge.node}\0{key}".encode(errors="surrogateescape"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest) + 1) / (HASHES + 1)) / edge.weight
