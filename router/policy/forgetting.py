"""The delay before the map removes a dead edge: until none of its incarnations can serve clients.

A later leader does not wait for a removed edge (docs/revocation.md, C5).
"""

from router.map.commands import Command, ForgetNode, Order
from router.policy.verb_waits import SettlementWaits
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_EDGE

__all__ = ["refusal_to_forget"]


def refusal_to_forget(now: float, command: Command, cluster_map: ClusterMap, waits: SettlementWaits) -> str:
    """Return why a command would remove a node too early, "" if it does not."""
    inner = command.command if isinstance(command, Order) else command
    if not isinstance(inner, ForgetNode):
        return ""
    entry = cluster_map.nodes.get(inner.node)
    if entry is None or entry.tier != TIER_EDGE or waits.may_forget(now, inner.node):
        return ""
    return f"{inner.node} may serve its own clients for up to {entry.fence_close_s:.0f} s yet: ask again behind that"
