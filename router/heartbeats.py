"""Heartbeats at one router: the leader answers after a quorum round, other routers return the leader's name.

A heartbeat's map and policy epochs count on arrival, unless they contradict the log. ``LeaseTable`` grants the lease
when a round that began after the heartbeat is confirmed. Sans-IO. Rules: docs/protocol.md section 2.
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
    """Heartbeat processing for all nodes.

    Args:
        node: This router.
        leases: Of every live incarnation, at the leader.
        policy: Receives the policy state of heartbeats.
        send_message: Sends a message to a node.
        lease_s: Duration of a granted lease.
        count: Counts an event by name.

    Attributes:
        contradictions: Nodes whose map or policy is not a state of the log.
    """

    def __init__(
        self,
        node: str,
        leases: LeaseTable,
        policy: PolicyService,
        send_message: Callable[[str, Control], None],
        lease_s: float,
        count: Callable[[str], None],
    ) -> None:
        self._node = node
        self._leases = leases
        self._policy = policy
        self._send_message = send_message
        self._lease_s = lease_s
        self.contradictions = Contradictions(count, policy.verdict)

    def answer_with_leader(self, node: str, beat: Heartbeat, leader: str) -> None:
        """Reply to a heartbeat at a router that does not lead: no lease, and the leader's name."""
        self._send_message(node, HeartbeatReply(beat.incarnation, beat.sent_at, 0.0, 0, leader))

    def add_heartbeat(self, now: float, node: str, beat: Heartbeat) -> None:
        """Process a heartbeat that arrived at the leader."""
        self._leases.add_heartbeat(node, beat, now, fits=not self.contradictions.contradicts_map(beat))
        self._policy.record_heartbeat(now, beat)

    def confirmed(self, now: float, context: int, cluster_map: ClusterMap) -> None:
        """Answer the heartbeats of a confirmed quorum round, from a map with all commits before that round."""
        self._policy.is_current = True
        settled = self._leases.settled_epoch(cluster_map)
        contradicts = self.contradictions.contradicts_map
        for peer, beat, granted in self._leases.round_done(now, context, cluster_map, contradicts):
            lease_s = self._lease_s if granted else 0.0
            epochs = cluster_map.epoch, self._policy.epoch
            reloads = self.contradictions.check(beat)
            reply = HeartbeatReply(beat.incarnation, beat.sent_at, lease_s, settled, self._node, *epochs, *reloads)
            self._send_message(peer, reply)
