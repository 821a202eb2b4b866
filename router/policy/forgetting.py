"""The wait before the map forgets a dead edge: until no incarnation of it can serve clients any more.

What the map has forgotten no later leader waits for (docs/revocation.md, C5).
"""

from router.map.commands import Command, ForgetNode, Order
from router.policy.verb_waits import VerbWaits
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_EDGE

__all__ = ["refusal_to_forget"]


def refusal_to_forget(now: float, command: Command, cluster_map: ClusterMap, waits: VerbWaits) -> str:
    """Return why a command would forget a node too early, "" if it does not."""
    inner = command.command if isinstance(command, Order) else command
    if not isinstance(inner, ForgetNode):
        return ""
    entry = cluster_map.nodes.get(inner.node)
    if entry is None or entry.tier != TIER_EDGE or waits.may_forget(now, inner.node):
        return ""
    return f"{inner.node} may serve its own clients for up to {entry.fence_close_s:.0f} s yet: ask again behind that"
