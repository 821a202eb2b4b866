"""The consistent-hash ring: it proposes where partitions and shards should be; the ClusterMap decides where they are.

One adapter around ``uhashring`` (md5, 256 vnodes per unit of weight). Primaries are balanced among each partition's own
replicas, so balancing them moves no data. Every function is pure: same nodes, same proposal, on every router.
Source: Karger et al. 1997; docs/adr/0003-cluster-map-leases-completion.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from uhashring import HashRing

__all__ = ["RingNode", "propose_owners", "propose_replicas"]

VNODES = 256


@dataclass(frozen=True, slots=True)
class RingNode:
    """A node as the ring sees it."""

    name: str
    weight: int = 1
    zone: str = ""


def _ring(nodes: Sequence[RingNode], vnodes: int) -> HashRing:
    names: Mapping[str, object] = {
        node.name: {"weight": node.weight, "vnodes": vnodes} for node in sorted(nodes, key=lambda node: node.name)
    }
    return HashRing(nodes=names, vnodes=vnodes)


def propose_replicas(
    nodes: Sequence[RingNode], partitions: int, replicas: int, *, vnodes: int = VNODES
) -> list[tuple[str, ...]]:
    """Return each partition's replicas, its proposed primary first.

    Args:
        nodes: Of the storage tier that may hold data; none gives empty tuples.
        partitions: P.
        replicas: Copies; fewer where there are fewer nodes. Zones are spread over before one is used twice.
        vnodes: Points of a node of weight 1.
    """
    if not nodes:
        return [()] * partitions
    ring = _ring(nodes, vnodes)
    zones = {node.name: node.zone for node in nodes}
    weights = {node.name: node.weight for node in nodes}
    total = sum(weights.values())
    wanted = min(replicas, len(nodes))
    led = dict.fromkeys(sorted(weights), 0)
    proposal = []
    for number in range(partitions):
        order = [str(point["nodename"]) for point in ring.range(f"p/{number}", len(nodes), unique=True)]
        chosen = _spread(order, zones, wanted)
        primary = next(
            (name for name in chosen if led[name] < ceil(partitions * weights[name] / total)),
            min(chosen, key=lambda name: (led[name] / weights[name], chosen.index(name))),
        )
        led[primary] += 1
        proposal.append((primary, *(name for name in chosen if name != primary)))
    return proposal


def _spread(order: Sequence[str], zones: Mapping[str, str], wanted: int) -> list[str]:
    """Take nodes in ring order, each zone once, then again from the start until there are enough."""
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
    weights = {node.name: node.weight for node in nodes}
    total = sum(weights.values())
    owned = dict.fromkeys(sorted(weights), 0)
    owners = []
    for number in range(shards):
        order = [str(point["nodename"]) for point in ring.range(f"s/{number}", len(nodes), unique=True)]
        owner = next((name for name in order if owned[name] < ceil(shards * weights[name] / total)), order[0])
        owned[owner] += 1
        owners.append(owner)
    return owners
