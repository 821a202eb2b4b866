"""The routers of the Raft group: only they may register, hold leases and give orders.

A router outside the group has a valid certificate but no rights. One that the map has alive loses its shards in one
step, and its lease is not renewed. Rules: docs/protocol.md rule 2.11.
"""

from collections.abc import Callable, Collection

from router.map.commands import StopNodes
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER

__all__ = ["Group", "find_non_members", "is_in_group"]

Group = Callable[[], Collection[str]] | None  # returns the members, empty while this router joins; None: use the map


def is_in_group(group: Group, node: str) -> bool:
    """Return whether a router is a member, as far as this router knows."""
    return group is None or node in group()


def find_non_members(group: Group, cluster_map: ClusterMap) -> StopNodes | None:
    """Return the command that stops live routers outside the group, None if there are none."""
    routers = cluster_map.live(TIER_ROUTER)
    left = {each.node: each.incarnation for each in routers if not each.stops and not is_in_group(group, each.node)}
    return StopNodes(left) if left else None
