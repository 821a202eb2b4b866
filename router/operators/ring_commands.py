"""``ring plan | rebalance | pause | resume | abort | status | verify | add | drain | remove``: commands and answers.

Validates an operator's request against the map before a proposal; a refusal states the reason and the remedy in one
line. ``router/placement/plan.py`` computes the moves. The machine validates each committed command again.
"""

from typing import Any

import msgspec

from router.map.commands import AcceptLoss, ForgetNode, OperatorCommand, SetAdminState, SetRebalance, StartRebalance
from router.map.leases import LeaseTable
from router.map.rebalance_run import reached
from router.placement.plan import MOVES_MAX, Move, RebalanceJob, RebalancePlan, make_plan, ring_nodes
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE

__all__ = ["PendingMoves", "Sizes", "command", "lost", "plan", "problems", "rebalance", "sizes", "verify"]

Answer = dict[str, Any]
Sizes = tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]  # of partitions and shards: keys, bytes
DRAINING = "draining"


class PendingMoves:
    """Number of partitions that are not at their node of the ring, counted once for each map epoch."""

    def __init__(self) -> None:
        self._counted = (-1, 0)  # map epoch, partitions

    def of(self, cluster_map: ClusterMap) -> int:
        """Return the count for this map."""
        if self._counted[0] != cluster_map.epoch:
            moves = make_plan(cluster_map).moves
            self._counted = cluster_map.epoch, sum(move.kind == "partition" for move in moves)
        return self._counted[1]


def sizes(cluster_map: ClusterMap, leases: LeaseTable) -> Sizes:
    """Return (keys, bytes) of partitions and of route shards, as last reported to the leader."""
    partitions: dict[int, tuple[int, int]] = {}
    shards: dict[int, tuple[int, int]] = {}
    for name in sorted(cluster_map.nodes):
        entry = cluster_map.nodes[name]
        reported = leases.sizes((name, entry.incarnation))
        (partitions if entry.tier == TIER_STORAGE else shards).update(reported)
    return partitions, shards


def plan(cluster_map: ClusterMap, known: Sizes, arguments: Answer) -> Answer:
    """Return the moves of a rebalance now, or after nodes were added or drained."""
    supposed = msgspec.structs.replace(cluster_map, nodes=dict(cluster_map.nodes))
    for key, state in (("drain", DRAINING), ("add", "")):
        for name in arguments[key]:
            entry = _node(cluster_map, name)
            supposed.nodes[entry.node] = msgspec.structs.replace(entry, admin_state=state)
    return describe(make_plan(supposed, *known), cluster_map)


def verify(cluster_map: ClusterMap, job: RebalanceJob | None) -> Answer:
    """Compare the map with the last plan and with its invariants."""
    found = [
        {"what": f"{move.kind} {move.number}", "problem": f"planned at {_names(move)}, is not"}
        for move in (job.plan.moves if job is not None else ())
        if not reached(cluster_map, move)
    ]
    found += [{"what": f"partition {number}", "problem": text} for number, text in problems(cluster_map)]
    return {
        "id": job.number if job is not None else None,
        "phase": job.state if job is not None else "none",
        "checked": len(job.plan.moves) if job is not None else 0,
        "problems": found,
        "ok": not found,
    }


def lost(cluster_map: ClusterMap, arguments: Answer) -> Answer:
    """Return the partitions without a primary, and the nodes of their last whole copies."""
    partitions = []
    for number in _lost(cluster_map, arguments["partition"]):
        placement = cluster_map.partitions[number]
        states = {name: _state(cluster_map, name) for name in placement.in_sync}
        partitions.append({"partition": number, "partition_epoch": placement.epoch, "whole_copies": states})
    storages = {entry.node: entry.address for entry in cluster_map.live(TIER_STORAGE)}
    return {"map_epoch": cluster_map.epoch, "partitions": partitions, "storages": storages}


def command(cluster_map: ClusterMap, job: RebalanceJob | None, verb: str, arguments: Answer) -> OperatorCommand:
    """Return the command of a verb; ``ring rebalance`` has its own function.

    Raises:
        ValueError: The request is refused; the text states the reason.
    """
    if verb in ("ring pause", "ring resume", "ring abort"):
        if job is None:
            raise ValueError("no rebalance was ever started")
        states = {"ring pause": "paused", "ring resume": "running", "ring abort": "aborting"}
        return SetRebalance(job.number, states[verb])
    entry = _node(cluster_map, arguments["node"])
    if verb == "ring recover":
        found = _lost(cluster_map, arguments["partition"])
        if not found:
            raise ValueError("every partition has a primary: nothing to recover")
        return AcceptLoss({number: cluster_map.partitions[number].epoch for number in found}, entry.node)
    if verb in ("ring drain", "node drain"):
        _check_drain(cluster_map, entry.node)
        return SetAdminState(entry.node, DRAINING)
    if verb in ("ring add", "node undrain"):
        if not entry.alive:
            raise ValueError(f"{entry.node} is {entry.state}: start it first")
        return SetAdminState(entry.node, "")
    holds = _holds(cluster_map, entry.node)
    if holds:
        raise ValueError(f"{entry.node} still holds {holds}: `ring drain {entry.node}` first, then stop it")
    return ForgetNode(entry.node)


def rebalance(
    cluster_map: ClusterMap, job: RebalanceJob | None, known: Sizes, arguments: Answer
) -> OperatorCommand | Answer:
    """Return the command that starts a rebalance, or an answer if no move is needed.

    Raises:
        ValueError: The request is refused; the text states the reason.
    """
    wanted = arguments["map_epoch"]
    if wanted is not None and wanted != cluster_map.epoch:
        raise ValueError(f"the plan is of map epoch {wanted}, the map is at {cluster_map.epoch}: plan again")
    if job is not None and job.automatic and job.state == "running":  # it makes the requested moves
        return {"map_epoch": cluster_map.epoch, "rebalance": job.number}
    made = make_plan(cluster_map, *known)
    if not made.moves:
        return {"id": None, "phase": "nothing to move", "moves": 0, "map_epoch": cluster_map.epoch}
    made = msgspec.structs.replace(made, moves=made.moves[:MOVES_MAX])
    return StartRebalance(made, arguments["throttle_bytes_s"])


def _node(cluster_map: ClusterMap, name: str) -> NodeEntry:
    entry = cluster_map.nodes.get(name)
    if entry is None:
        raise ValueError(f"unknown node {name}: the map knows {', '.join(sorted(cluster_map.nodes))}")
    return entry


def _check_drain(cluster_map: ClusterMap, node: str) -> None:
    entry = cluster_map.nodes[node]
    if entry.tier == TIER_EDGE:
        return
    left = [other.name for other in ring_nodes(cluster_map, entry.tier) if other.name != node]
    if not left:
        thing = "the last replica of its partitions" if entry.tier == TIER_STORAGE else "its route shards"
        raise ValueError(f"{node} is the only {entry.tier} node that may hold {thing}: add another one first")
    if entry.tier == TIER_STORAGE and len(left) < cluster_map.min_in_sync:
        raise ValueError(
            f"without {node} there are {len(left)} storage nodes for min_in_sync {cluster_map.min_in_sync}: "
            "add another one first"
        )


def _holds(cluster_map: ClusterMap, node: str) -> str:
    copies = sum(1 for placement in cluster_map.partitions if node in (*placement.in_sync, *placement.joining))
    shards = sum(1 for shard in cluster_map.shards if shard.owner == node)
    parts = [f"{copies} partitions"] * bool(copies) + [f"{shards} route shards"] * bool(shards)
    return " and ".join(parts)


def _lost(cluster_map: ClusterMap, wanted: str) -> list[int]:
    """Return all partitions without a primary, or the given one, which must have none."""
    if wanted == "all":
        placements = enumerate(cluster_map.partitions)
        return [number for number, placement in placements if placement.epoch and not placement.primary]
    number = int(wanted)
    if not 0 <= number < len(cluster_map.partitions):
        raise ValueError(f"no partition {number}: they count from 0 to {len(cluster_map.partitions) - 1}")
    placement = cluster_map.partitions[number]
    if placement.primary or not placement.epoch:
        by = f"served by {placement.primary}" if placement.primary else "not placed yet"
        raise ValueError(f"partition {number} is {by}: nothing to recover")
    return [number]


def _state(cluster_map: ClusterMap, node: str) -> str:
    """Return why a node with a whole copy does not serve it."""
    entry = cluster_map.nodes.get(node)
    if entry is None:
        return "forgotten"
    return "not admitted yet" if entry.alive else "dead"


def describe(plan: RebalancePlan, cluster_map: ClusterMap) -> Answer:
    """Return a plan as data for tables and programs."""
    return {
        "map_epoch": plan.map_epoch,
        "slots": plan.slots,
        "slots_moved": plan.slots_moved,
        "slots_moved_share": round(plan.slots_moved / plan.slots, 4) if plan.slots else 0.0,
        "partitions_moved": sum(1 for move in plan.moves if move.kind == "partition"),
        "primaries_changed": sum(1 for move in plan.moves if move.kind == "primary"),
        "shards_moved": sum(1 for move in plan.moves if move.kind == "shard"),
        "partitions_under_replicated": sum(
            1 for move in plan.moves if move.kind == "partition" and len(move.replicas) < cluster_map.replicas
        ),
        "bytes": sum(move.bytes for move in plan.moves),
        "nodes": len(cluster_map.live(TIER_STORAGE)) + len(cluster_map.live(TIER_ROUTER)),
        "moves": [
            {
                "kind": move.kind,
                "number": move.number,
                "from": list(move.source),
                "to": list(move.target),
                "keys": move.keys,
                "bytes": move.bytes,
            }
            for move in plan.moves
        ],
    }


def problems(cluster_map: ClusterMap) -> list[tuple[int, str]]:
    """Return the problems of a map's partitions."""
    live = {entry.node for entry in cluster_map.live(TIER_STORAGE)}
    found = []
    for number, placement in enumerate(cluster_map.partitions):
        if not placement.epoch:
            found.append((number, "was never placed"))
        elif not placement.primary:
            found.append((number, "has no primary: none of its replicas in sync lives"))
        elif placement.primary not in placement.in_sync or placement.primary not in live:
            found.append((number, f"primary {placement.primary} is not a live replica in sync"))
        elif len(in_sync := cluster_map.live_in_sync(placement)) < cluster_map.min_in_sync:
            found.append((number, f"{len(in_sync)} in sync, {cluster_map.min_in_sync} wanted at least"))
    return found


def _names(move: Move) -> str:
    return ",".join(move.replicas or move.target)
