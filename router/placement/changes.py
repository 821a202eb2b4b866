"""Changes of a partition's configuration that a storage node may request: compare-and-set steps against the map.

A drop that would leave fewer than the minimum in sync is refused, so a replica that stops acknowledging stays eligible
as primary. A joining replica counts for acknowledgements before it is in sync, for promotion only afterwards. Rules:
docs/protocol.md section 9.
"""

from collections.abc import Callable

from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.nodes import RequestChange

__all__ = ["placement_change", "still_in_sync", "without_stopping"]


def still_in_sync(in_sync: tuple[str, ...], is_alive: Callable[[str], bool], minimum: int) -> tuple[str, ...]:
    """Return the live replicas; all replicas while fewer than the minimum are alive.

    Below the minimum no operation is acknowledged, so a dead replica misses none. It may hold the only whole copy if
    the last live one loses its disk (KIP-966).
    """
    live = tuple(name for name in in_sync if is_alive(name))
    return live if len(live) >= minimum else in_sync


def without_stopping(
    current: PartitionEntry,
    stops: Callable[[str], bool],
    stays: Callable[[str], bool],
    select_successor: Callable[[tuple[str, ...]], str],
    minimum: int,
) -> PartitionEntry | None:
    """Return the placement without the stopping nodes, None where it stays unchanged.

    Only an in-sync replica that stays takes over. Without one, the stopping nodes keep their roles to the end, and a
    cluster that stops as a whole restarts with the same primaries. Stopping replicas leave the in-sync set at once,
    unless fewer than the minimum would remain, so that their end changes no placement.

    Args:
        current: The placement now.
        stops: Returns whether a node is stopping now.
        stays: Returns whether a node is alive and not stopping.
        select_successor: Selects the next primary.
        minimum: Smallest number of replicas that acknowledge.
    """
    if not current.primary or not any(map(stops, (*current.in_sync, *current.joining))):
        return None
    left = tuple(name for name in current.in_sync if stays(name))
    primary = current.primary
    if stops(primary):
        if not left:
            return None
        primary = select_successor(left)
    elif not stays(primary):
        return None  # an earlier stop request found no successor
    in_sync = left if len(left) >= minimum else current.in_sync
    return PartitionEntry(
        current.epoch + 1, primary, in_sync, tuple(name for name in current.joining if not stops(name))
    )


def placement_change(
    cluster_map: ClusterMap, requester: str, request: RequestChange
) -> tuple[PartitionEntry | None, str]:
    """Return the requested placement, or None and a refusal."""
    if not 0 <= request.partition < len(cluster_map.partitions):
        return None, f"no partition {request.partition}"
    current = cluster_map.partitions[request.partition]
    if current.epoch != request.partition_epoch:
        return None, f"partition {request.partition} is at epoch {current.epoch}, not {request.partition_epoch}"
    if request.verb != "add_joining" and requester != current.primary:
        return None, f"{requester} is not the primary of partition {request.partition}"
    node = request.node
    epoch = current.epoch + 1
    if request.verb == "drop_backup":
        left = tuple(name for name in current.in_sync if name != node)
        joining = tuple(name for name in current.joining if name != node)
        if node == current.primary:
            return None, "a primary does not drop itself"
        if node in current.in_sync and sum(map(cluster_map.has_live, left)) < cluster_map.min_in_sync:
            return None, f"fewer than {cluster_map.min_in_sync} in sync would be left"
        return PartitionEntry(epoch, current.primary, left, joining), ""
    if request.verb == "replace_copy":
        # It applied an operation that was never acknowledged: its copy is rebuilt, whatever the count.
        if node not in current.in_sync or node == current.primary:
            return None, f"{node} is no backup in sync with partition {request.partition}"
        left = tuple(name for name in current.in_sync if name != node)
        return PartitionEntry(epoch, current.primary, left, (*current.joining, node)), ""
    if request.verb == "add_joining":
        entry = cluster_map.nodes.get(node)
        if entry is None or not entry.alive or entry.tier != "storage":
            return None, f"{node} is not a live storage node"
        if entry.stops:
            return None, f"{node} stops"
        if node in current.in_sync or node in current.joining:
            return None, f"{node} holds partition {request.partition} already"
        return PartitionEntry(epoch, current.primary, current.in_sync, (*current.joining, node)), ""
    if request.verb == "promote_joining":
        if node not in current.joining:
            return None, f"{node} is not joining partition {request.partition}"
        joining = tuple(name for name in current.joining if name != node)
        in_sync = still_in_sync((*current.in_sync, node), cluster_map.has_live, cluster_map.min_in_sync)
        return PartitionEntry(epoch, current.primary, in_sync, joining), ""
    if request.verb == "relinquish":
        if node not in current.in_sync or not cluster_map.stays(node):
            return None, f"{node} is not in sync with partition {request.partition}, or stops"
        return PartitionEntry(epoch, node, current.in_sync, current.joining), ""
    return None, f"unknown change {request.verb!r}"
