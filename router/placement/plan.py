"""Moves of a rebalance, as data; and the next step of each move, derived from the map.

A plan is a pure function of one map, a step of a move and the current map. So no progress is stored: any leader
continues from the map. Each partition is at its old placement, its new one, or in between with every copy in place.
Rules: docs/protocol.md rule 10.2.
"""

from collections.abc import Mapping

import msgspec

from router.placement.ring import RingNode, propose_owners, propose_replicas
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE

__all__ = [
    "MOVES_MAX",
    "NEXT_STATES",
    "UNFINISHED",
    "Move",
    "NextMoveStep",
    "RebalanceJob",
    "RebalancePlan",
    "make_plan",
    "next_step",
    "step_back",
]

NEXT_STATES = {
    "running": ("paused", "aborting", "done", "failed"),
    "paused": ("running", "aborting"),
    "aborting": ("aborted",),
}
UNFINISHED = frozenset(NEXT_STATES)
MOVES_MAX = 1_024  # of one job: its plan fits a log entry, and a check of all moves takes a few ms

Sizes = Mapping[int, tuple[int, int]]  # partition or shard -> keys, bytes


class Move(msgspec.Struct, frozen=True):
    """One partition's or shard's change to its new placement."""

    kind: str  # "shard", "partition" (data moves), "primary" (changes among the same replicas)
    number: int
    source: tuple[str, ...]  # nodes that lose the role
    target: tuple[str, ...]  # nodes that gain the role
    replicas: tuple[str, ...] = ()  # of a partition afterwards, primary first
    keys: int = 0
    bytes: int = 0


class RebalancePlan(msgspec.Struct, frozen=True):
    """Moves for one map epoch; invalid at any other."""

    map_epoch: int
    moves: tuple[Move, ...] = ()
    slots: int = 0  # replica slots in all

    @property
    def slots_moved(self) -> int:
        """Number of copies that nodes must fetch."""
        return sum(len(move.target) for move in self.moves if move.kind == "partition")


class RebalanceJob(msgspec.Struct, frozen=True):
    """A plan in progress, as stored in the Raft log."""

    number: int
    plan: RebalancePlan
    throttle_bytes_s: int = 0
    state: str = "running"
    detail: str = ""
    automatic: bool = False  # started by router/map/late_storage.py


class NextMoveStep(msgspec.Struct, frozen=True):
    """Next step of a move: a new placement, a wait, or the end."""

    placement: PartitionEntry | None = None
    verb: str = ""  # "add_joining", "relinquish", "drop", "wait", "done", "failed"
    node: str = ""


def make_plan(
    cluster_map: ClusterMap, partition_sizes: Sizes | None = None, shard_sizes: Sizes | None = None
) -> RebalancePlan:
    """Return the moves, by number, after which the map equals the ring's proposal."""
    moves = _shard_moves(cluster_map, shard_sizes or {})
    storages = ring_nodes(cluster_map, TIER_STORAGE)
    if storages:
        count, replicas = len(cluster_map.partitions), cluster_map.replicas
        for number, wanted in enumerate(propose_replicas(storages, count, replicas)):
            current = cluster_map.partitions[number]
            if not current.epoch:
                continue
            held = (*current.in_sync, *current.joining)
            gives = tuple(name for name in held if name not in wanted)
            gets = tuple(name for name in wanted if name not in held)
            keys, size = (partition_sizes or {}).get(number, (0, 0))
            if gives or gets:
                moves.append(Move("partition", number, gives, gets, wanted, keys * len(gets), size * len(gets)))
            elif current.primary != wanted[0]:
                moves.append(Move("primary", number, (current.primary,), (wanted[0],), wanted))
    return RebalancePlan(cluster_map.epoch, tuple(moves), len(cluster_map.partitions) * cluster_map.replicas)


def _shard_moves(cluster_map: ClusterMap, sizes: Sizes) -> list[Move]:
    routers = ring_nodes(cluster_map, TIER_ROUTER)
    if not routers:
        return []
    proposal = propose_owners(routers, cluster_map.base_shards)
    pinned = {rule.shard: rule.pin for rule in cluster_map.delegations if rule.shard >= 0}
    names = {node.name for node in routers}
    moves = []
    for number, shard in enumerate(cluster_map.shards):
        pin = pinned.get(number, "")
        owner = pin if pin in names else proposal[number % len(proposal)]
        if shard.owner != owner:
            moves.append(Move("shard", number, (shard.owner,), (owner,), keys=sizes.get(number, (0, 0))[0]))
    return moves


def ring_nodes(cluster_map: ClusterMap, tier: str) -> list[RingNode]:
    """Return the nodes of a tier that may hold roles: live and not draining."""
    return [RingNode(entry.node, entry.weight, entry.zone) for entry in cluster_map.live(tier) if not entry.admin_state]


def next_step(cluster_map: ClusterMap, move: Move) -> NextMoveStep:
    """Return the next step of a partition's move: add copies, wait for them, hand over, drop the others."""
    current = cluster_map.partitions[move.number]
    live = {entry.node for entry in cluster_map.live(TIER_STORAGE)}
    for node in move.replicas:
        if node in current.in_sync:
            continue
        if node not in live:
            return step_back(cluster_map, move, "failed", node)
        if node in current.joining:
            return NextMoveStep(verb="wait", node=node)
        if not current.primary:
            return NextMoveStep(verb="wait", node=node)  # no primary can send the data
        return _placed(current, "add_joining", node, current.primary, current.in_sync, (*current.joining, node))
    primary = move.replicas[0]
    if current.primary != primary:
        if primary not in live:
            return NextMoveStep(verb="failed", node=primary)
        return _placed(current, "relinquish", primary, primary, current.in_sync, current.joining)
    for node in current.in_sync:
        if node not in move.replicas:
            left = _without(current.in_sync, node)
            return _placed(current, "drop", node, primary, left, _without(current.joining, node))
    for node in current.joining:
        if node not in move.replicas:
            return _placed(current, "drop", node, primary, current.in_sync, _without(current.joining, node))
    return NextMoveStep(verb="done")


def step_back(cluster_map: ClusterMap, move: Move, verb: str = "done", node: str = "") -> NextMoveStep:
    """Return the step that ends an aborted move: copies that are still joining are dropped.

    A move whose copies are all in sync is completed instead.
    """
    current = cluster_map.partitions[move.number]
    if all(name in current.in_sync for name in move.replicas):
        return next_step(cluster_map, move)
    for name in move.target:
        if name in current.joining:
            left = _without(current.joining, name)
            return _placed(current, "drop", name, current.primary, current.in_sync, left)
    surplus = [name for name in move.target if name in current.in_sync and name != current.primary]
    if surplus and set(move.source) <= set(current.in_sync):
        left = _without(current.in_sync, surplus[0])
        return _placed(current, "drop", surplus[0], current.primary, left, current.joining)
    return NextMoveStep(verb=verb, node=node)


def _placed(
    current: PartitionEntry, verb: str, node: str, primary: str, in_sync: tuple[str, ...], joining: tuple[str, ...]
) -> NextMoveStep:
    return NextMoveStep(PartitionEntry(current.epoch + 1, primary, in_sync, joining), verb, node)


def _without(names: tuple[str, ...], removed: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != removed)
