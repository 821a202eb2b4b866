"""Bounds of what one SUBSCRIBE may ask for before anything is decoded, and the pace of those that join groups."""

from access.limits.buckets import Buckets
from edge.clients.client import Client
from edge.node.node import NS, EdgeNode
from edge.node.ports import ClientIO

__all__ = ["Joins", "count_filters"]

WAIT_S = 5.0  # strangers who join without end hold up nobody for longer


class Joins:
    """The pace at which clients of one edge join a shared group: each join has all others choose a member anew.

    Nobody is refused: a client whose join came early is not read until its turn, WAIT_S at most.

    Args:
        node: This edge.
        loop: Where reading pauses.
    """

    def __init__(self, node: EdgeNode, loop: ClientIO) -> None:
        self._node = node
        self._loop = loop
        self._groups: Buckets | None = None  # by filter, its group included
        self.bound()

    def bound(self) -> None:
        """Go by the node's rate of now; each group begins anew."""
        rate = self._node.limits.share_join_rate_max
        self._groups = Buckets(rate, max(1.0, rate)) if rate else None

    def pace(self, client: Client, topic_filter: str) -> None:
        """Note that a client asks for a filter of a group."""
        if self._groups is None or topic_filter in client.subscriptions:
            return
        wait_s = self._groups.book(topic_filter, self._node.now, WAIT_S)
        if wait_s:
            self._loop.charge(client.conn, 1, int(wait_s * NS))


def count_filters(body: bytes, version: int, option_bytes: int, most: int) -> int:
    """Return how many filters a SUBSCRIBE or UNSUBSCRIBE has, counting no further than ``most`` + 1.

    What is malformed is left to be found by whoever decodes it.
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
