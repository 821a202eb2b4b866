"""Readiness of this edge for clients: a lease, links to all primaries, and a response of every partition."""

from dataclasses import dataclass

from edge.cluster.partition_requests import PartitionRequests
from edge.map_follower import EdgeMapFollower
from edge.node.node import EdgeNode
from wire.messages.control import Control
from wire.messages.retained import ReadRetained

__all__ = ["Readiness"]

UNANSWERED_MAX = 1_000  # probes: the edge renews its lease while thousands of partitions are probed


@dataclass(slots=True, frozen=True)
class _Probe:
    """A probe of one partition."""

    unserved: set[int]
    partition: int

    def answered(self, answer: Control) -> None:
        """Mark the partition as serving."""
        del answer
        self.unserved.discard(self.partition)


class Readiness:
    """Probes every partition once."""

    def __init__(self, node: EdgeNode, requests: PartitionRequests, follower: EdgeMapFollower) -> None:
        self._node = node
        self._requests = requests
        self._follower = follower
        self._unserved: set[int] | None = (
            None  # partitions that have not answered this incarnation yet; None: not asked
        )
        self._unprobed: list[int] = []  # those without a probe yet, the next one last

    def look(self) -> bool:
        """Return True once clients can be served: a lease, and a response of every partition's primary.

        The first call with a lease and all links starts the probes; each call sends more.
        """
        if not self._node.may_admit() or not self._follower.storage_linked():
            return False
        if self._unserved is None:
            self._unserved = set(range(len(self._node.map.partitions)))
            self._unprobed = sorted(self._unserved, reverse=True)
        while self._unprobed and len(self._unserved) - len(self._unprobed) < UNANSWERED_MAX:
            number = self._unprobed[-1]
            # A read without effect: like the first CONNECT it is answered once the partition serves.
            question = ReadRetained(self._requests.next_number(), number, 0, "$SYS/ready", "", 1)
            if not self._requests.ask(question, _Probe(self._unserved, number).answered, self._node.now):
                break
            self._unprobed.pop()
        return not self._unserved
