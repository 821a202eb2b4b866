"""Shared subscriptions at a publishing edge: selection of a destination per message.

The shard's owner names the destinations with their member counts. The edge picks one per message, round robin by weight
or sticky by topic. A destination that refuses is replaced by another. Only when none is left does a durable member's
partition queue the message. Topics with the same share and destinations use one rotation.
Source: MQTT 5.0 section 4.8.2; docs/protocol.md section 5.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary
from zlib import crc32

from edge.loop.state import LoopPeer, Remote, ShareGroup
from wire.messages.redispatch import SharePick
from wire.messages.routes import GroupDestinations

__all__ = ["HERE", "RecordedPick", "SharedGroup", "SharedGroups"]

HERE = -2  # marks this edge among the destinations

Place = tuple[str, int, int]  # edge or "", partition or -1, members


class SharedGroup(ShareGroup):
    """One group as Routes name it."""

    def __init__(self, share: str, places: Sequence[Place], groups: "SharedGroups", position: int = 0) -> None:
        self.share = share.encode()
        self.sticky = groups.sticky
        self.position = position  # in the rotation: messages sent, modulo the members
        self._places = places
        self._all = groups
        self._resolved_at = -1
        self._choices: list[Remote | int] = []
        self._ends: list[int] = []  # exclusive upper bounds of the choices' positions
        self._edges: list[str] = []  # of the choices, "" for a partition

    def _resolve(self) -> None:
        """Resolve the destinations to peers; skip edges without one."""
        groups = self._all
        if self._resolved_at == groups.peers_version:
            return
        self._resolved_at = groups.peers_version
        self._choices, self._ends, self._edges = [], [], []
        end = 0
        for edge, partition, members in self._places:
            choice: Remote | int
            if not edge:
                choice = Remote(None, partition, self.share)
            elif edge == groups.node:
                choice = HERE
            else:
                peer = groups.peer_of(edge)
                if peer is None:
                    continue
                choice = Remote(peer, -1, self.share)
            end += max(1, members)
            self._choices.append(choice)
            self._ends.append(end)
            self._edges.append(edge)

    def next(self, topic: bytes) -> Remote | int | None:
        """Return the next destination: a Remote, HERE, or None where there is none."""
        self._resolve()
        if not self._choices:
            return None
        members = self._ends[-1]
        if self.sticky:
            return self._choices[bisect_right(self._ends, crc32(topic) % members)]
        self.position = (self.position + 1) % members
        return self._choices[bisect_right(self._ends, self.position)]

    def others(self, refused: Sequence[Remote | int]) -> list[Remote | int]:
        """Return the other destinations, each once; queues for disconnected members are last."""
        self._resolve()
        refused_places = {_place(destination) for destination in refused}
        return sorted(
            (choice for choice in self._choices if _place(choice) not in refused_places),
            key=lambda destination: isinstance(destination, Remote) and destination.partition >= 0,
        )

    def to_record(self, choice: Remote | int, incarnation: int, attempt: int) -> SharePick:
        """Return a choice as its record; ``incarnation`` is this edge's."""
        if isinstance(choice, int):
            return SharePick(self.share, -1, self._all.node, incarnation, attempt)
        if choice.peer is None:
            return SharePick(self.share, choice.partition, attempt=attempt)
        place = _place(choice)
        node = next(edge for edge, other in zip(self._edges, self._choices, strict=True) if _place(other) == place)
        return SharePick(self.share, -1, node, choice.peer.incarnation, attempt)

    def from_record(self, pick: SharePick, incarnation: int, peer: LoopPeer | None) -> Remote | int | None:
        """Return a recorded pick as a destination; None if the recorded incarnation of an edge has ended.

        Args:
            pick: The record.
            incarnation: This edge's.
            peer: The recorded edge's current peer.
        """
        if pick.partition >= 0:
            return Remote(None, pick.partition, self.share, pick.attempt)
        if pick.edge == self._all.node:
            return HERE if pick.incarnation == incarnation else None
        if peer is None or peer.dead or peer.incarnation != pick.incarnation:
            return None
        return Remote(peer, -1, self.share, pick.attempt)


class RecordedPick(ShareGroup):
    """A group of one message with a recorded pick: the copy is sent to that destination only.

    Attributes:
        group: The group as Routes name it.
        choice: The destination; None: no copy is sent.
    """

    def __init__(self, group: SharedGroup, choice: Remote | int | None) -> None:
        self.share = group.share
        self.group = group
        self.choice = choice


class SharedGroups:
    """The groups of all Routes.

    Args:
        node: This edge.
        sticky: Members are selected by topic.
        peer_of: Returns the current peer of an edge.
    """

    def __init__(self, node: str, sticky: bool, peer_of: Callable[[str], LoopPeer | None]) -> None:
        self.node = node
        self.sticky = sticky
        self.peer_of = peer_of
        self.peers_version = 0
        self._groups: WeakValueDictionary[tuple[str, tuple[Place, ...]], SharedGroup] = WeakValueDictionary()
        self._newest: WeakValueDictionary[str, SharedGroup] = WeakValueDictionary()  # by share

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, destinations: GroupDestinations) -> SharedGroup:
        """Return the group of a share with exactly these destinations."""
        places: list[Place] = [(edge, -1, members) for edge, members in destinations.edges]
        places += [("", partition, members) for partition, members in destinations.partitions]
        key = (destinations.share, tuple(places))
        group = self._groups.get(key)
        if group is None:
            former = self._newest.get(destinations.share)
            # A new set of members continues the rotation; otherwise the first member would be favoured.
            position = former.position if former is not None else 0
            group = SharedGroup(destinations.share, key[1], self, position)
            self._groups[key] = self._newest[destinations.share] = group
        return group

    def peers_changed(self) -> None:
        """Invalidate resolved peers after edges were linked or retired: a group resolves them at its next use."""
        self.peers_version += 1


def _place(destination: Remote | int) -> tuple[int, int]:
    """Return the key that distinguishes two destinations."""
    if isinstance(destination, int):
        return destination, 0
    return destination.partition, id(destination.peer)
