"""The routers of the Raft group, as the core beside Raft judges others by it: they register, hold leases, give orders.

A router that left the group, or never was in it, has a certificate and nothing else. One that the map still has
alive is relieved of its shards in one step, and its lease is not renewed. Rules: docs/protocol.md rule 2.11.
"""

from collections.abc import Callable, Collection

from router.map.commands import StopNodes
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER

__all__ = ["Group", "is_in_group", "outside_group"]

Group = Callable[[], Collection[str]] | None  # returns the members, none while this router joins; None: by the map


def is_in_group(group: Group, node: str) -> bool:
    """Return whether a router is a member, as far as this one knows."""
    return group is None or node in group()


def outside_group(group: Group, cluster_map: ClusterMap) -> StopNodes | None:
    """Return what relieves the routers of the map that are no members, None where there are none."""
    routers = cluster_map.live(TIER_ROUTER)
    left = {each.node: each.incarnation for each in routers if not each.stops and not is_in_group(group, each.node)}
    return StopNodes(left) if left else None
