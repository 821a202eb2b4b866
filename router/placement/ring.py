"""The consistent-hash ring: it proposes the nodes of partitions and shards; the ClusterMap decides.

One adapter around ``uhashring`` (md5, 256 vnodes per unit of weight). Primaries are balanced among each partition's own
replicas, so balancing them moves no data. Every function is pure: same nodes, same proposal, on every router.
Source: Karger et al. 1997; docs/adr/0003-cluster-map-leases-completion.md.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from uhashring import HashRing

__all__ = ["WEIGHT_MAX", "RingNode", "propose_owners", "propose_replicas"]

VNODES = 256
WEIGHT_MAX = 100  # of a node; conf/node_settings.py has the same


@dataclass(frozen=True, slots=True)
class RingNode:
    """A node of the ring."""

    name: str
    weight: int = 1
    zone: str = ""


def _ring(nodes: Sequence[RingNode], vnodes: int) -> HashRing:
    names: Mapping[str, object] = {
        node.name: {"weight": _weight(node), "vnodes": vnodes} for node in sorted(nodes, key=lambda node: node.name)
    }
    return HashRing(nodes=names, vnodes=vnodes)


def _weight(node: RingNode) -> int:
    """Return a nonzero weight within range, even from an old snapshot of the map."""
    return max(1, min(node.weight, WEIGHT_MAX))


def propose_replicas(
    nodes: Sequence[RingNode], partitions: int, replicas: int, *, vnodes: int = VNODES
) -> list[tuple[str, ...]]:
    """Return each partition's replicas, its proposed primary first.

    Args:
        nodes: Storage nodes that may hold data; none gives empty tuples.
        partitions: Number of partitions.
        replicas: Copies; fewer if there are fewer nodes. Each zone is used once before any is used twice.
        vnodes: Points of a node of weight 1.
    """
    if not nodes:
        return [()] * partitions
    ring = _ring(nodes, vnodes)
    zones = {node.name: node.zone for node in nodes}
    weights = {node.name: _weight(node) for node in nodes}
    total = sum(weights.values())
    wanted = min(replicas, len(nodes))
    led = dict.fromkeys(sorted(weights), 0)
    proposal = []
    for order in _orders(ring, "p", partitions):
        chosen = _spread(order, zones, wanted)
        primary = next(
            (name for name in chosen if led[name] < ceil(partitions * weights[name] / total)),
            min(chosen, key=lambda name: (led[name] / weights[name], chosen.index(name))),
        )
        led[primary] += 1
        proposal.append((primary, *(name for name in chosen if name != primary)))
    return proposal


def _orders(ring: HashRing, kind: str, count: int) -> Iterator[list[str]]:
    """Iterate over the nodes in ring order from each number's position; one walk for all numbers of an interval.

    Many partitions share an interval: a walk for each would take seconds with the largest map.
    """
    places, names = (list(column) for column in zip(*ring.get_points(), strict=True))
    nodes = len(set(names))
    walks: dict[int, list[str]] = {}
    for number in range(count):
        start = bisect(places, ring.hashi(f"{kind}/{number}"))
        if start not in walks:
            found: dict[str, None] = {}
            at = start
            while len(found) < nodes:
                found[names[at % len(names)]] = None
                at += 1
            walks[start] = list(found)
        yield walks[start]


def _spread(order: Sequence[str], zones: Mapping[str, str], wanted: int) -> list[str]:
    """Select nodes in ring order, each zone once, then again from the start until there are enough."""
    chosen: list[str] = []
    while len(chosen) < wanted:
        used: set[str] = set()
        before = len(chosen)
        for name in order:
            if len(chosen) == wanted:
                break
            if name in chosen or (zones[name] and zones[name] in used):
                continue
            chosen.append(name)
            used.add(zones[name])
        if len(chosen) == before:
            break
    return chosen


def propose_owners(nodes: Sequence[RingNode], shards: int, *, vnodes: int = VNODES) -> list[str]:
    """Return each route shard's proposed owner, "" without routers; no router owns more than its rounded-up share."""
    if not nodes:
        return [""] * shards
    ring = _ring(nodes, vnodes)
    weights = {node.name: _weight(node) for node in nodes}
    total = sum(weights.values())
    owned = dict.fromkeys(sorted(weights), 0)
    owners = []
    for order in _orders(ring, "s", shards):
        owner = next((name for name in order if owned[name] < ceil(shards * weights[name] / total)), order[0])
        owned[owner] += 1
        owners.append(owner)
    return owners
