"""Answers to a Resolve that fit into a frame, whatever is subscribed.

A frame holds what can be said of the first topics; the edge asks for the others again. One topic's answer can be too
long alone, through its shared groups: each needs one destination to be served, so long groups tell fewer, and those
that have no room for one, the longest names, are left out. A client may choose a name of 1 KiB for each of its groups.
"""

from router.routes.trie import Value
from wire.messages.routes import Destinations, GroupDestinations

__all__ = ["ANSWER_BYTES", "PIECE_BYTES", "AnswerTable", "destinations_of", "shortened"]

PIECE_BYTES = 1024 * 1024  # of answers beyond which no further topic is answered in the same message
ANSWER_BYTES = 4 * 1024 * 1024  # of one topic's answer; with a piece before it well below FRAME_BYTES_MAX
STEPS_MAX = 300  # of one question, about a millisecond; a topic that takes more is answered alone
VALUES_PER_STEP = 300  # destinations of a topic whose answer is there already
NEW_VALUES_PER_STEP = 20

_PLACE_BYTES = 5
_HEAD_BYTES = 32  # of an answer, or of a group, with the lengths of its lists
_ENTRY_BYTES = 12  # of a destination beside its name: lengths, a partition's number, the members


class AnswerTable:
    """Answers to one question: different ones stand in it once.

    Attributes:
        destinations: Different answers.
        answers: Of each topic, the place of its answer.
        shortened: How many had to leave out destinations.
        steps: What it took to make them, each some microseconds.
    """

    def __init__(self) -> None:
        self.destinations: list[Destinations] = []
        self.answers: list[int] = []
        self.shortened = 0
        self.steps = 0
        self._places: dict[frozenset[int], int] = {}  # by the routes that match: equal routes, equal destinations
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the message, or what one may cost, has room for no further topic."""
        return self._bytes > PIECE_BYTES or self.steps >= STEPS_MAX

    def add(self, found: list[Value]) -> None:
        """Answer one more topic, which these routes match."""
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
    """Return where messages go that these routes match."""
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
    """Return an answer with less said of its groups: the short ones whole, the long ones share what is left."""
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
    """Return a group with the destinations that most members are at, as many as fit; None if not one does."""
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
    """Return at least how long an answer is in msgpack."""
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
