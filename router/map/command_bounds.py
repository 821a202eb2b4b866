"""Ranges of all parts of a command, so that every map that commands can produce fits the wire.

A command is validated before it is proposed and when it is applied: the log may hold entries of an older or hostile
router. The types of a decoded command have ranges too (``wire/messages/ranges.py``), wider than these where sums
matter. ``router/map/machine.py`` validates epochs, owners and states against the map. The largest map has 32 768
partitions with 17 names each and 4 096 nodes of 8 KiB: some 75 MB, below MAP_BYTES_MAX. Rules: docs/adr/0019.
"""

import math
from collections.abc import Iterable

import msgspec

from router.map.commands import (
    AcceptLoss,
    Bootstrap,
    Command,
    Delegate,
    Order,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    SetAdminState,
    SetRebalance,
    StartRebalance,
)
from router.placement.plan import MOVES_MAX, Move
from router.placement.ring import WEIGHT_MAX
from wire.messages.cluster_map import ClusterMap, NodeEntry, PartitionEntry
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE
from wire.messages.ranges import INCARNATION_MAX, NODES_MAX, PARTITIONS_MAX

__all__ = ["COMMAND_BYTES_MAX", "NUMBER_MAX", "TIERS", "out_of_range"]

COMMAND_BYTES_MAX = 4 << 20  # of a log entry: a frame of 8 MiB always holds one with its header
NAME_BYTES_MAX = 64  # of a node or a cluster: ASCII, see conf/node_settings.py
ZONE_BYTES_MAX = 256  # 64 characters of four bytes
ADDRESS_BYTES_MAX = 255
NODE_BYTES_MAX = 8 * 1024  # of an entry: some dozens of listeners
COPIES_MAX = 16  # of a partition, in sync and joining: twice the largest ``replicas``, as during a move
SHARDS_MAX = 8_192  # the largest ``shards``, and pinned prefixes
DELEGATIONS_MAX = 1_024
PREFIX_BYTES_MAX = 1_024
DEPTH_MAX = 128  # levels of a route key or prefix
DETAIL_CHARACTERS_MAX = 1_000
NUMBER_MAX = (1 << 62) - 1  # of amounts: sums of many fit 64 bits
ADMIN_STATES = ("", "draining")
TIERS = (TIER_EDGE, TIER_ROUTER, TIER_STORAGE)
MOVE_KINDS = ("shard", "partition", "primary")


def out_of_range(command: Command, cluster_map: ClusterMap) -> str:
    """Return the part of a command that no map may hold, as a refusal; "" if the command is in range."""
    if isinstance(command, Order):
        return _too_long("an order's identifier", command.identifier) or out_of_range(command.command, cluster_map)
    if isinstance(command, Bootstrap):
        return _bootstrap(command)
    if isinstance(command, RegisterNode):
        return _node(command.entry, cluster_map)
    if isinstance(command, PlacePartitions):
        return next(filter(None, map(_placement, command.entries.values())), "")
    if isinstance(command, PlaceShards):
        return _names(command.owners.values())
    if isinstance(command, Delegate):
        return _delegation(command, cluster_map)
    if isinstance(command, StartRebalance):
        return _plan(command, cluster_map)
    if isinstance(command, SetRebalance) and len(command.detail) > DETAIL_CHARACTERS_MAX:
        return f"a detail of {len(command.detail)} characters is too long"
    if isinstance(command, SetAdminState) and command.state not in ADMIN_STATES:
        return "a node is draining or it is not: no other state is known"
    if isinstance(command, AcceptLoss):
        return _too_long("a node's name", command.node)
    return ""


def _bootstrap(command: Bootstrap) -> str:
    for name, value, most in (
        ("partitions", command.partitions, PARTITIONS_MAX),
        ("shards", command.shards, SHARDS_MAX // 2),
        ("replicas", command.replicas, COPIES_MAX // 2),
        ("min_in_sync", command.min_in_sync, COPIES_MAX // 2),
    ):
        if not 1 <= value <= most:
            return f"{name} must be 1 to {most}, not {value}"
    if not (math.isfinite(command.lease_s) and 0 <= command.lease_s <= 3600):
        return f"lease_s must be 0 to 3600, not {command.lease_s}"
    return _too_long("a cluster's name", command.cluster) or ("" if command.cluster else "a cluster has a name")


def _node(entry: NodeEntry, cluster_map: ClusterMap) -> str:
    if not entry.node:
        return "a node has a name"
    if entry.tier not in TIERS:
        return f"{entry.tier[:NAME_BYTES_MAX]!r} is no tier: {', '.join(TIERS)}"
    if not 0 < entry.incarnation < INCARNATION_MAX:
        return f"incarnation {entry.incarnation} is out of range"
    if not 1 <= entry.weight <= WEIGHT_MAX:
        return f"weight {entry.weight} is out of range: 1 to {WEIGHT_MAX}"
    if entry.node not in cluster_map.nodes and len(cluster_map.nodes) >= NODES_MAX:
        return f"the map holds {NODES_MAX} nodes: `stratamq cluster forget` removes dead ones"
    too_long = _too_long("a node's name", entry.node) or _too_long("a zone", entry.zone, ZONE_BYTES_MAX)
    too_long = too_long or _too_long("an address", entry.address, ADDRESS_BYTES_MAX)
    size = len(msgspec.msgpack.encode(entry)) if not too_long else 0
    return too_long or (f"the entry of a node is {size} bytes, at most {NODE_BYTES_MAX}" * (size > NODE_BYTES_MAX))


def _placement(entry: PartitionEntry) -> str:
    copies = (*entry.in_sync, *entry.joining)
    if len(copies) > COPIES_MAX:
        return f"a partition with {len(copies)} copies: at most {COPIES_MAX}"
    if len(set(copies)) < len(copies):
        return "a node holds one copy of a partition"
    return _names((entry.primary, *copies))


def _delegation(command: Delegate, cluster_map: ClusterMap) -> str:
    size = len(command.prefix.encode())
    if size > PREFIX_BYTES_MAX:
        return f"a prefix of {size} bytes is too long: at most {PREFIX_BYTES_MAX}"
    if not 0 <= command.depth <= DEPTH_MAX:
        return f"depth {command.depth} is out of range: 0 to {DEPTH_MAX}"
    known = any(rule.prefix == command.prefix for rule in cluster_map.delegations)
    if command.depth and not known and len(cluster_map.delegations) >= DELEGATIONS_MAX:
        return f"the map holds {DELEGATIONS_MAX} delegations: take one back first"
    if command.depth and command.pin and len(cluster_map.shards) >= SHARDS_MAX:
        return f"the map holds {SHARDS_MAX} shards: no further prefix can be pinned"
    return _too_long("a node's name", command.pin)


def _plan(command: StartRebalance, cluster_map: ClusterMap) -> str:
    if not 0 <= command.throttle_bytes_s <= NUMBER_MAX:
        return f"a throttle of {command.throttle_bytes_s} bytes per second is out of range"
    if len(command.plan.moves) > MOVES_MAX:
        return f"a plan of {len(command.plan.moves)} moves: at most {MOVES_MAX} at a time"
    return next(filter(None, (_move(move, cluster_map) for move in command.plan.moves)), "")


def _move(move: Move, cluster_map: ClusterMap) -> str:
    if move.kind not in MOVE_KINDS:
        return "a plan moves shards, partitions and primaries: nothing else"
    shard = move.kind == "shard"
    if not 0 <= move.number < len(cluster_map.shards if shard else cluster_map.partitions):
        return f"no {'shard' if shard else 'partition'} {move.number}"
    if shard and (len(move.source) != 1 or len(move.target) != 1):
        return f"shard {move.number} has one owner, and gets one"
    if not shard and not move.replicas:
        return f"partition {move.number} would be nowhere"
    if max(len(move.source), len(move.target), len(move.replicas)) > COPIES_MAX:
        return f"a partition with more than {COPIES_MAX} copies"
    if not (0 <= move.keys <= NUMBER_MAX and 0 <= move.bytes <= NUMBER_MAX):
        return f"{move.kind} {move.number}: its size is out of range"
    return _names((*move.source, *move.target, *move.replicas))


def _names(names: Iterable[str]) -> str:
    return next(filter(None, (_too_long("a node's name", name) for name in names)), "")


def _too_long(what: str, text: str, most: int = NAME_BYTES_MAX) -> str:
    size = len(text.encode())
    return f"{what} of {size} bytes is too long: at most {most}" if size > most else ""
