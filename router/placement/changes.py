"""Changes that a storage node may ask of its partition's configuration: compare-and-set steps, judged by the map.

A drop that would leave fewer than the minimum in sync is refused; whatever stops acknowledging stays promotable. A
joining replica counts for acknowledging before it is in sync, and for promotion only after. Rules: docs/protocol.md
section 9.
"""

from collections.abc import Callable

from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.nodes import RequestChange

__all__ = ["placement_change", "relieved", "still_in_sync"]


def still_in_sync(in_sync: tuple[str, ...], is_alive: Callable[[str], bool], minimum: int) -> tuple[str, ...]:
    """Return the replicas that stay in sync: those that live, and the dead too while fewer than the minimum live.

    Nothing is acknowledged then, so a dead one lacks nothing, and may be the only whole copy when the last one that
    lives loses its disk (KIP-966: the last replica standing).
    """
    live = tuple(name for name in in_sync if is_alive(name))
    return live if len(live) >= minimum else in_sync


def relieved(
    current: PartitionEntry,
    stops: Callable[[str], bool],
    stays: Callable[[str], bool],
    heir: Callable[[tuple[str, ...]], str],
    minimum: int,
) -> PartitionEntry | None:
    """Return the placement without the nodes that stop, None where it stays as it is.

    Nobody takes over from them but a replica in sync that goes on itself: without one all stays with them to the end,
    and a cluster that is stopped as a whole finds each primary in its place when it starts again. They stop counting
    for acknowledgements at once, so that their end changes nothing more, unless fewer than the minimum would be left.

    Args:
        current: The placement now.
        stops: Whether a node is among those that stop now.
        stays: Whether a node lives and does not stop.
        heir: Chooses who takes over.
        minimum: Replicas that acknowledge at least.
    """
    if not current.primary or not any(map(stops, (*current.in_sync, *current.joining))):
        return None
    left = tuple(name for name in current.in_sync if stays(name))
    primary = current.primary
    if stops(primary):
        if not left:
            return None
        primary = heir(left)
    elif not stays(primary):
        return None  # it asked sooner, and found nobody
    in_sync = left if len(left) >= minimum else current.in_sync
    return PartitionEntry(
        current.epoch + 1, primary, in_sync, tuple(name for name in current.joining if not stops(name))
    )


def placement_change(cluster_map: ClusterMap, asker: str, request: RequestChange) -> tuple[PartitionEntry | None, str]:
    """Return the placement that a request asks for, or None and why it is refused."""
    if not 0 <= request.partition < len(cluster_map.partitions):
        return None, f"no partition {request.partition}"
    current = cluster_map.partitions[request.partition]
    if current.epoch != request.partition_epoch:
        return None, f"partition {request.partition} is at epoch {current.epoch}, not {request.partition_epoch}"
    if request.verb != "add_joining" and asker != current.primary:
        return None, f"{asker} is not the primary of partition {request.partition}"
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
        # It applied what was never acknowledged: its copy is made anew, however few are left.
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
