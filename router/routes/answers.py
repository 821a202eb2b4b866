"""Answers to a Resolve that fit a frame, for any number of subscriptions.

A frame holds the answers for the first topics; the edge requests the others again. One topic's answer can exceed a
frame through its shared groups. Each group needs one destination, so long groups list fewer, and groups without space
for one, those with the longest names, are left out. A client may choose a name of 1 KiB for each of its groups.
"""

from router.routes.trie import Value
from wire.messages.routes import Destinations, GroupDestinations

__all__ = ["ANSWER_BYTES", "PIECE_BYTES", "AnswerTable", "destinations_of", "shortened"]

PIECE_BYTES = 1024 * 1024  # of answers, after which no further topic is answered in the same message
ANSWER_BYTES = 4 * 1024 * 1024  # of one topic's answer; with the rest of the message below FRAME_BYTES_MAX
STEPS_MAX = 300  # of one request, about a millisecond; a topic that takes more is answered alone
VALUES_PER_STEP = 300  # destinations of a topic whose answer is in the table already
NEW_VALUES_PER_STEP = 20

_PLACE_BYTES = 5
_HEAD_BYTES = 32  # of an answer, or of a group, with the lengths of its lists
_ENTRY_BYTES = 12  # of a destination besides its name: lengths, partition number, members


class AnswerTable:
    """Answers to one request; equal answers are stored once.

    Attributes:
        destinations: Distinct answers.
        answers: Index of each topic's answer.
        shortened: Number of answers with omitted destinations.
        steps: Cost so far, some microseconds each.
    """

    def __init__(self) -> None:
        self.destinations: list[Destinations] = []
        self.answers: list[int] = []
        self.shortened = 0
        self.steps = 0
        self._places: dict[frozenset[int], int] = {}  # by matching routes: equal routes, equal destinations
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the message size or the cost limit is reached."""
        return self._bytes > PIECE_BYTES or self.steps >= STEPS_MAX

    def add(self, found: list[Value]) -> None:
        """Add the answer for a topic with these matching routes."""
        key = frozenset(map(id, found))
        place = self._places.get(key)
        self.steps += 1 + len(found) // VALUES_PER_STEP
        if place is None:
            place = self._places[key] = len(self.destinations)
            self.steps += len(found) // NEW_VALUES_PER_STEP
            answer = destinations_of(found)
            size = _bytes_of(answer)
            if size > ANSWER_BYTES:
                answer = shortened(answer)
                self.shortened += 1
            self.destinations.append(answer)
            self._bytes += size
        self.answers.append(place)
        self._bytes += _PLACE_BYTES


def destinations_of(found: list[Value]) -> Destinations:
    """Return the destinations of these routes."""
    edges: set[str] = set()
    partitions: set[int] = set()
    groups: dict[str, GroupDestinations] = {}
    for value in found:
        if len(value) == 2:
            if value[0]:
                edges.add(value[0])
            else:
                partitions.add(value[1])
            continue
        edge, partition, name, members = value
        group = groups.get(name)
        if group is None:
            group = groups[name] = GroupDestinations(name, [], [])
        if edge:
            group.edges.append((edge, members))
        else:
            group.partitions.append((partition, members))
    for group in groups.values():
        if len(group.edges) > 1:
            group.edges.sort()
        if len(group.partitions) > 1:
            group.partitions.sort()
    return Destinations(sorted(edges), sorted(partitions), [groups[name] for name in sorted(groups)])


def shortened(answer: Destinations) -> Destinations:
    """Return an answer with fewer group destinations: short groups whole, long groups share the remaining bytes."""
    left = ANSWER_BYTES - _plain_bytes(answer)
    kept = []
    groups = sorted(answer.groups, key=lambda group: (_group_bytes(group), group.share))
    for position, group in enumerate(groups):
        part = _cut(group, left // (len(groups) - position))
        if part is not None:
            kept.append(part)
            left -= _group_bytes(part)
    kept.sort(key=lambda group: group.share)
    return Destinations(answer.edges, answer.partitions, kept)


def _cut(group: GroupDestinations, allowed: int) -> GroupDestinations | None:
    """Return a group with the destinations of most members that fit; None if none fits."""
    if _group_bytes(group) <= allowed:
        return group
    allowed -= _HEAD_BYTES + 4 * len(group.share)
    part = GroupDestinations(group.share, [], [])
    entries = [(-members, -1, edge) for edge, members in group.edges]
    entries += [(-members, partition, "") for partition, members in group.partitions]
    for members, partition, edge in sorted(entries):
        allowed -= _ENTRY_BYTES + len(edge)
        if allowed < 0:
            break
        if edge:
            part.edges.append((edge, -members))
        else:
            part.partitions.append((partition, -members))
    part.edges.sort()
    part.partitions.sort()
    return part if part.edges or part.partitions else None


def _bytes_of(answer: Destinations) -> int:
    """Return a lower bound of an answer's length in msgpack."""
    return _plain_bytes(answer) + sum(map(_group_bytes, answer.groups))


def _plain_bytes(answer: Destinations) -> int:
    names = sum(map(len, answer.edges))
    return _HEAD_BYTES + names + _ENTRY_BYTES * len(answer.edges) + 5 * len(answer.partitions)


def _group_bytes(group: GroupDestinations) -> int:
    edges = group.edges
    size = _HEAD_BYTES + 4 * len(group.share) + _ENTRY_BYTES * (len(edges) + len(group.partitions))
    for edge, _ in edges:
        size += len(edge)
    return size
