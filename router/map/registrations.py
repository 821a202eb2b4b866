"""Registrations at the leader that wait until the former incarnation of their node is surely over.

A node repeats its registration until it is answered, so the newest of each node is kept and a full table drops the
others. Sans-IO. Rules: docs/protocol.md section 2.
"""

from router.map.commands import RegisterNode
from router.map.leases import LeaseTable
from router.map.proposals import ProposalOrigin
from wire.messages.cluster_map import ClusterMap
from wire.messages.nodes import RegisterRequest

__all__ = ["Registrations"]

REGISTRATIONS_MAX = 10_000  # waiting for a former incarnation's lease to run out


class Registrations:
    """The newest registration of each node that waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, RegisterRequest] = {}

    def add(self, node: str, message: RegisterRequest) -> None:
        """Have a registration wait; a table that is full keeps what it has, and the node repeats its own."""
        if len(self._waiting) < REGISTRATIONS_MAX:
            self._waiting[node] = message

    def take_due(
        self, now: float, cluster_map: ClusterMap, leases: LeaseTable
    ) -> list[tuple[RegisterNode, ProposalOrigin]]:
        """Return the registrations to propose now, by name, each with the node that asked, and let them go."""
        if not (self._waiting and cluster_map.cluster):
            return []
        due = [
            node for node in sorted(self._waiting) if _may_enter(now, cluster_map, leases, node, self._waiting[node])
        ]
        taken = [(node, self._waiting.pop(node)) for node in due]
        return [(RegisterNode(item.entry, item.whole), ProposalOrigin(node, item.request)) for node, item in taken]

    def clear(self) -> None:
        """Forget all, because this router leads no more: the nodes ask the next leader."""
        self._waiting.clear()


def _may_enter(now: float, cluster_map: ClusterMap, leases: LeaseTable, node: str, message: RegisterRequest) -> bool:
    """Return whether the former incarnation is dead in the map, ended by proof, or surely out of lease."""
    former = cluster_map.nodes.get(node)
    return (
        former is None
        or not former.alive
        or former.incarnation == message.entry.incarnation
        or message.ended_incarnation >= former.incarnation
        or leases.surely_over(now, (node, former.incarnation))
    )
