"""Bounds of a SUBSCRIBE before its decoding, and the rate limit of joins to shared subscriptions."""

from access.limits.buckets import Buckets
from edge.clients.client import Client
from edge.node.node import NS, EdgeNode
from edge.node.ports import ClientIO

__all__ = ["ShareJoinLimit", "count_filters"]

WAIT_S = 5.0  # largest pause for the joins of other clients


class ShareJoinLimit:
    """The rate limit of joins to shared subscriptions at one edge, because each join reassigns all other members.

    Joins are not refused: reading of a client pauses after an early join, for at most WAIT_S.

    Args:
        node: This edge.
        loop: Pauses reading.
    """

    def __init__(self, node: EdgeNode, loop: ClientIO) -> None:
        self._node = node
        self._loop = loop
        self._groups: Buckets | None = None  # by filter with its share name
        self.bound()

    def bound(self) -> None:
        """Apply the node's current rate; all buckets start full."""
        rate = self._node.limits.share_join_rate_max
        self._groups = Buckets(rate, max(1.0, rate)) if rate else None

    def pace(self, client: Client, topic_filter: str) -> None:
        """Charge a client's join to a shared subscription."""
        if self._groups is None or topic_filter in client.subscriptions:
            return
        wait_s = self._groups.book(topic_filter, self._node.now, WAIT_S)
        if wait_s:
            self._loop.charge(client.conn, 1, int(wait_s * NS))


def count_filters(body: bytes, version: int, option_bytes: int, most: int) -> int:
    """Return the number of filters of a SUBSCRIBE or UNSUBSCRIBE, at most ``most`` + 1.

    The decoder finds malformed packets later.
    """
    at = 2
    if version == 5:
        length = shift = 0
        while at < len(body) and shift < 28:
            length |= (body[at] & 0x7F) << shift
            shift += 7
            at += 1
            if body[at - 1] < 0x80:
                break
        at += length
    count = 0
    while at + 2 <= len(body) and count <= most:
        at += 2 + (body[at] << 8 | body[at + 1]) + option_bytes
        count += 1
    return count
