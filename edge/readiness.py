"""Readiness of this edge for clients: a lease, links to all primaries, and an answer of every partition."""

from dataclasses import dataclass

from edge.cluster.partition_requests import PartitionRequests
from edge.map_follower import EdgeMapFollower
from edge.node.node import EdgeNode
from wire.messages.control import Control
from wire.messages.retained import ReadRetained

__all__ = ["Readiness"]

UNANSWERED_MAX = 1_000  # questions: the edge renews its lease while thousands of partitions are asked


@dataclass(slots=True, frozen=True)
class _Probe:
    """A question to one partition."""

    unserved: set[int]
    partition: int

    def answered(self, answer: Control) -> None:
        """Note that the partition serves."""
        del answer
        self.unserved.discard(self.partition)


class Readiness:
    """Asks every partition once."""

    def __init__(self, node: EdgeNode, requests: PartitionRequests, follower: EdgeMapFollower) -> None:
        self._node = node
        self._requests = requests
        self._follower = follower
        self._unserved: set[int] | None = (
            None  # partitions that have not answered this incarnation yet; None: not asked
        )
        self._unasked: list[int] = []  # those of them that come later, the next one last

    def look(self) -> bool:
        """Return True once clients can be served: a lease, and every partition's primary has answered something.

        The first call that finds a lease and all links begins to ask; each one asks some more.
        """
        if not self._node.may_admit() or not self._follower.storage_linked():
            return False
        if self._unserved is None:
            self._unserved = set(range(len(self._node.map.partitions)))
            self._unasked = sorted(self._unserved, reverse=True)
        while self._unasked and len(self._unserved) - len(self._unasked) < UNANSWERED_MAX:
            number = self._unasked[-1]
            # A read without effect: it is answered when the partition serves, as the first CONNECT would be.
            question = ReadRetained(self._requests.next_number(), number, 0, "$SYS/ready", "", 1)
            if not self._requests.ask(question, _Probe(self._unserved, number).answered, self._node.now):
                break
            self._unasked.pop()
        return not self._unserved
