"""Replies to partitions' orders, retried until the link accepts them: a partition never repeats an in-flight order."""

import math

from edge.node.node import EdgeNode
from wire.messages.redispatch import RedispatchReply
from wire.messages.wills import WillFired

__all__ = ["OrderAnswers"]

RETRY_S = 0.1


class OrderAnswers:
    """Replies of one edge. A partition bounds its orders in flight, and so the unsent replies here."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        self._unsent: list[tuple[str, RedispatchReply | WillFired]] = []
        self._next_at = math.inf

    def send(self, node: str, answer: RedispatchReply | WillFired) -> None:
        """Send a reply to a primary, or queue it until its link has capacity."""
        if not self._node.tell(node, answer):
            self._unsent.append((node, answer))
            self._next_at = min(self._next_at, self._node.now + RETRY_S)
            self._node.wake()

    def step(self, now: float) -> None:
        """Retry unsent replies; drop those to nodes that are no longer primary."""
        if now < self._next_at:
            return
        unsent, self._unsent, self._next_at = self._unsent, [], math.inf
        placements = self._node.map.partitions
        for node, answer in unsent:
            if answer.partition < len(placements) and placements[answer.partition].primary == node:
                self.send(node, answer)

    def next_deadline(self) -> float:
        """Return the time of the next retry."""
        return self._next_at
