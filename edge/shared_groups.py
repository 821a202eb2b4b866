"""Shared subscriptions at a publishing edge: which destination gets a message.

The shard's owner names the destinations with their member counts; here one is picked per message, round robin by weight
or sticky by topic. A destination that refuses is replaced by another; only when none is left does a durable member's
partition queue it. Source: MQTT 5.0 section 4.8.2; docs/adr/0003.
"""

from collections.abc import Sequence
from zlib import crc32

from edge.hot.state import Group, Peer, Remote
from wire.messages import GroupDestinations, SharePick

__all__ = ["HERE", "SharedGroup"]

HERE = -2  # marks this edge among the destinations


class SharedGroup(Group):
    """One group as a Route names it."""

    def __init__(self, destinations: GroupDestinations, node: str, peers: dict[str, Peer], sticky: bool) -> None:
        self.share = destinations.share.encode()
        self.sticky = sticky
        self._node = node
        self._peers = peers
        self._wheel: list[Remote | int] = []  # each destination as often as it has members
        self._turn = 0
        for edge, members in destinations.edges:
            if edge == node:
                self._wheel.extend([HERE] * max(1, members))
            elif edge in peers:
                self._wheel.extend([Remote(peers[edge], -1, self.share)] * max(1, members))
        for partition, members in destinations.partitions:
            self._wheel.extend([Remote(None, partition, self.share)] * max(1, members))

    def next(self, topic: bytes) -> Remote | int | None:
        """Return the next destination: a Remote, HERE, or None where there is none."""
        if not self._wheel:
            return None
        if self.sticky:
            return self._wheel[crc32(topic) % len(self._wheel)]
        self._turn = (self._turn + 1) % len(self._wheel)
        return self._wheel[self._turn]

    def others(self, refused: Sequence[Remote | int]) -> list[Remote | int]:
        """Return the other destinations, each once, those that queue for the absent last."""
        gone = {_place(destination) for destination in refused}
        seen = {_place(choice): choice for choice in self._wheel if _place(choice) not in gone}
        return sorted(
            seen.values(), key=lambda destination: isinstance(destination, Remote) and destination.partition >= 0
        )

    def written(self, choice: Remote | int, incarnation: int, attempt: int) -> SharePick:
        """Return a choice as it is recorded; ``incarnation`` is this edge's."""
        if isinstance(choice, int):
            return SharePick(self.share, -1, self._node, incarnation, attempt)
        if choice.peer is None:
            return SharePick(self.share, choice.partition, attempt=attempt)
        node = next(node for node, peer in self._peers.items() if peer is choice.peer)
        return SharePick(self.share, -1, node, choice.peer.incarnation, attempt)

    def read(self, pick: SharePick, incarnation: int, peer: Peer | None) -> Remote | int | None:
        """Return what was recorded as a destination; None if it was a life of an edge that is over.

        Args:
            pick: What was recorded.
            incarnation: This edge's.
            peer: The edge that it names, as this one is linked to it now.
        """
        if pick.partition >= 0:
            return Remote(None, pick.partition, self.share, pick.attempt)
        if pick.edge == self._node:
            return HERE if pick.incarnation == incarnation else None
        if peer is None or peer.struck or peer.incarnation != pick.incarnation:
            return None
        return Remote(peer, -1, self.share, pick.attempt)


def _place(destination: Remote | int) -> tuple[int, int]:
    """Return what tells two destinations apart, however often they stand in a wheel."""
    if isinstance(destination, int):
        return destination, 0
    return destination.partition, id(destination.peer)
