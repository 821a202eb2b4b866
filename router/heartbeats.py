"""Heartbeats at one router: at the leader they are answered behind a quorum round, elsewhere with the leader's name.

What a heartbeat acknowledges of map and policy is taken when it comes, unless it contradicts the log; the lease is
granted by ``LeaseTable`` when the round that began after it is confirmed. Sans-IO. Rules: docs/protocol.md section 2.
"""

from collections.abc import Callable

from router.map.contradictions import Contradictions
from router.map.leases import LeaseTable
from router.policy.policy_service import PolicyService
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control
from wire.messages.nodes import Heartbeat, HeartbeatReply

__all__ = ["Heartbeats"]


class Heartbeats:
    """Heartbeats of all nodes.

    Args:
        node: This router.
        leases: Of every live incarnation, at the leader.
        policy: Takes what heartbeats say of it.
        tell: Sends a message to a node.
        lease_s: How long a lease runs that is granted.
        count: Counts an event by name.

    Attributes:
        contradictions: Nodes whose map or policy is no state of the log.
    """

    def __init__(
        self,
        node: str,
        leases: LeaseTable,
        policy: PolicyService,
        tell: Callable[[str, Control], None],
        lease_s: float,
        count: Callable[[str], None],
    ) -> None:
        self._node = node
        self._leases = leases
        self._policy = policy
        self._tell = tell
        self._lease_s = lease_s
        self.contradictions = Contradictions(count, policy.verdict)

    def refer(self, node: str, beat: Heartbeat, leader: str) -> None:
        """Answer a heartbeat where this router does not lead: without a lease, with the name of the leader."""
        self._tell(node, HeartbeatReply(beat.incarnation, beat.sent_at, 0.0, 0, leader))

    def arrived(self, now: float, node: str, beat: Heartbeat) -> None:
        """A heartbeat came to the leader."""
        self._leases.arrived(node, beat, now, fits=not self.contradictions.contradicts_map(beat))
        self._policy.heard(now, beat)

    def confirmed(self, now: float, context: int, cluster_map: ClusterMap) -> None:
        """A quorum round was confirmed: answer its heartbeats, by a map that has all that was committed before it."""
        self._policy.is_current = True
        settled = self._leases.settled_epoch(cluster_map)
        contradicts = self.contradictions.contradicts_map
        for peer, beat, granted in self._leases.round_done(now, context, cluster_map, contradicts):
            lease_s = self._lease_s if granted else 0.0
            epochs = cluster_map.epoch, self._policy.epoch
            reloads = self.contradictions.judge(beat)
            reply = HeartbeatReply(beat.incarnation, beat.sent_at, lease_s, settled, self._node, *epochs, *reloads)
            self._tell(peer, reply)
