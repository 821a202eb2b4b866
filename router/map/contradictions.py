"""Nodes whose heartbeats name a map or policy that is not a state of the routers' log.

No honest node gets there by itself: a step was forged, a router of the group is faulty, or the log was restored from a
backup. Such a node must reload the whole state (``wire/node/lease_holder.py``). Its acknowledgements do not count for
settling. Operators see it until one of its heartbeats agrees. Sans-IO. Rules: docs/protocol.md rules 2.12 to 2.15.
"""

import logging
from collections.abc import Callable

from conf.events import say
from wire.messages.cluster_map import ClusterMap, NodeIncarnation
from wire.messages.digests import DigestLog, Verdict
from wire.messages.nodes import Heartbeat

__all__ = ["Contradictions"]

logger = logging.getLogger(__name__)


class Contradictions:
    """Nodes whose last heartbeat contradicts this router's log, at the leader.

    Args:
        count: Counts an event by name.
        policy_verdict: Compares the policy of a heartbeat with the log.
    """

    def __init__(self, count: Callable[[str], None], policy_verdict: Callable[[Heartbeat], Verdict]) -> None:
        self.map_digests = DigestLog()
        self._count = count
        self._policy_verdict = policy_verdict
        self._nodes: dict[NodeIncarnation, tuple[str, ...]] = {}

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Return node -> its contradicting states: "map", "policy"."""
        return {node: what for (node, _), what in sorted(self._nodes.items())}

    def contradicts_map(self, beat: Heartbeat) -> bool:
        """Return whether the map of a heartbeat is not a state of the log as applied here now."""
        return self._map_verdict(beat).contradicts

    def _map_verdict(self, beat: Heartbeat) -> Verdict:
        return self.map_digests.verdict(beat.map_epoch, beat.map_digest)

    def check(self, beat: Heartbeat) -> tuple[bool, bool]:
        """Check a heartbeat after a quorum round; return whether its map, and its policy, contradict the log."""
        verdicts = {"map": self._map_verdict(beat), "policy": self._policy_verdict(beat)}
        for what, verdict in verdicts.items():
            if verdict.contradicts:
                self._count(f"heartbeats_{what}_{verdict.name.lower()}")
        wrong = tuple(what for what, verdict in verdicts.items() if verdict.contradicts)
        incarnation = (beat.node, beat.incarnation)
        if wrong and self._nodes.get(incarnation) != wrong:
            say(
                logger, "map.contradicted", peer=beat.node, what=" and ".join(wrong),
                map_epoch=beat.map_epoch, policy_epoch=beat.policy_received,
            )  # fmt: skip
        if wrong:
            self._nodes[incarnation] = wrong
        else:
            self._nodes.pop(incarnation, None)
        return "map" in wrong, "policy" in wrong

    def retain_live(self, cluster_map: ClusterMap) -> None:
        """Drop incarnations that are not alive."""
        for incarnation in [each for each in self._nodes if not cluster_map.is_alive(*each)]:
            del self._nodes[incarnation]

    def clear(self) -> None:
        """Drop all nodes, when leadership starts or ends."""
        self._nodes.clear()
