"""Shared subscriptions at a publishing edge: which destination gets a message.

The shard's owner names the destinations with their member counts; here one is picked per message, round robin by weight
or sticky by topic. A destination that refuses is replaced by another; only when none is left does a durable member's
partition queue it. Source: MQTT 5.0 section 4.8.2; docs/adr/0003.
"""

from zlib import crc32

from edge.hot.state import Group, Peer, Remote
from wire.messages import GroupDestinations

__all__ = ["HERE", "SharedGroup"]

HERE = -2  # marks this edge among the destinations


class SharedGroup(Group):
    """One group as a Route names it."""

    def __init__(self, destinations: GroupDestinations, node: str, peers: dict[str, Peer], sticky: bool) -> None:
        self.share = destinations.share.encode()
        self.sticky = sticky
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

    def others(self, refused: Remote | int | None) -> list[Remote | int]:
        """Return the other destinations, each once, those that queue for the absent last."""
        seen: list[Remote | int] = []
        for destination in self._wheel:
            if destination is not refused and destination not in seen:
                seen.append(destination)
        return sorted(seen, key=lambda destination: isinstance(destination, Remote) and destination.partition >= 0)
