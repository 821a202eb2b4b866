"""Automatic rebalance for a storage node that arrives after the first placement, while no data is stored.

Partitions are placed as soon as there are as many storage nodes as copies. A later node would stay empty until an
operator rebalances. While every primary reports empty partitions, the leader starts an ordinary rebalance for it: copy,
hand over, drop. A session that opens meanwhile moves with its partition. After an operator has rebalanced or stopped
this, the leader starts no further one. Sans-IO. Rules: docs/adr/0019.
"""

from collections.abc import Callable

import msgspec

from router.map.commands import Command, StartRebalance
from router.map.leases import LeaseTable
from router.map.machine import MapMachine
from router.placement.plan import MOVES_MAX, make_plan, ring_nodes
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_STORAGE

__all__ = ["LateStorage"]

REPEAT_S = 1.0  # before an uncommitted proposal is repeated


class LateStorage:
    """The leader's check for storage nodes without partitions."""

    def __init__(self, machine: MapMachine, leases: LeaseTable, propose: Callable[[Command], object]) -> None:
        self._machine = machine
        self._leases = leases
        self._propose = propose
        self._next = float("-inf")
        self._balanced_epoch = -1  # epoch at which all nodes had partitions

    def check(self, now: float) -> None:
        """Propose a rebalance if one is needed and allowed."""
        machine, cluster_map = self._machine, self._machine.map
        job = machine.job
        if now < self._next or cluster_map.epoch == self._balanced_epoch:
            return
        if job is not None and not (job.automatic and job.state in ("done", "failed")):
            return
        if not _without_partitions(cluster_map):
            self._balanced_epoch = cluster_map.epoch
            return
        if self._leases.ending or self._leases.settled_epoch(cluster_map) < cluster_map.epoch or not self._empty():
            return
        plan = make_plan(cluster_map)
        moves = tuple(move for move in plan.moves if move.kind != "shard")[:MOVES_MAX]
        if moves:
            self._next = now + REPEAT_S
            self._propose(StartRebalance(msgspec.structs.replace(plan, moves=moves), automatic=True))

    def _empty(self) -> bool:
        """Return whether every partition's primary reported, in its current incarnation, that it stores no data."""
        cluster_map = self._machine.map
        for number, placement in enumerate(cluster_map.partitions):
            entry = cluster_map.nodes.get(placement.primary)
            if entry is None or not entry.alive:
                return False
            if self._leases.sizes((entry.node, entry.incarnation)).get(number) != (0, 0):
                return False
        return True


def _without_partitions(cluster_map: ClusterMap) -> bool:
    """Return whether all partitions are placed and an eligible live storage node holds none."""
    idle = {node.name for node in ring_nodes(cluster_map, TIER_STORAGE)}
    for placement in cluster_map.partitions:
        if not placement.epoch or not idle:
            return False
        idle.difference_update(placement.in_sync, placement.joining)
    return bool(idle)
