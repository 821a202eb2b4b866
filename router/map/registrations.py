"""Registrations that wait at the leader until the former incarnation of their node has certainly ended.

A node repeats its registration until it is answered. So only the newest of each node is stored, and a full table drops
further ones. Sans-IO. Rules: docs/protocol.md section 2.
"""

from router.map.commands import RegisterNode
from router.map.leases import LeaseTable
from router.map.proposals import ProposalOrigin
from wire.messages.cluster_map import ClusterMap
from wire.messages.nodes import RegisterRequest

__all__ = ["Registrations"]

REGISTRATIONS_MAX = 10_000  # pending


class Registrations:
    """The newest pending registration of each node."""

    def __init__(self) -> None:
        self._waiting: dict[str, RegisterRequest] = {}

    def add(self, node: str, message: RegisterRequest) -> None:
        """Queue a registration; a full table drops it, and the node repeats it."""
        if len(self._waiting) < REGISTRATIONS_MAX:
            self._waiting[node] = message

    def take_due(
        self, now: float, cluster_map: ClusterMap, leases: LeaseTable
    ) -> list[tuple[RegisterNode, ProposalOrigin]]:
        """Remove and return the registrations to propose now, in name order, each with the node to answer."""
        if not (self._waiting and cluster_map.cluster):
            return []
        due = [
            node for node in sorted(self._waiting) if _may_enter(now, cluster_map, leases, node, self._waiting[node])
        ]
        taken = [(node, self._waiting.pop(node)) for node in due]
        return [(RegisterNode(item.entry, item.whole), ProposalOrigin(node, item.request)) for node, item in taken]

    def clear(self) -> None:
        """Drop all registrations when leadership ends: the nodes repeat them at the next leader."""
        self._waiting.clear()


def _may_enter(now: float, cluster_map: ClusterMap, leases: LeaseTable, node: str, message: RegisterRequest) -> bool:
    """Return whether the former incarnation is dead in the map, ended by proof, or certainly without a lease."""
    former = cluster_map.nodes.get(node)
    return (
        former is None
        or not former.alive
        or former.incarnation == message.entry.incarnation
        or message.ended_incarnation >= former.incarnation
        or leases.has_certainly_expired(now, (node, former.incarnation))
    )
