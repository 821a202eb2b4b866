"""Answers to a Resolve that fit into a frame, whatever is subscribed.

A frame holds what can be said of the first topics; the edge asks for the others again. One topic's answer can be too
long alone, through its shared groups: each needs one destination to be served, so long groups tell fewer, and those
that have no room for one, the longest names, are left out. A client may choose a name of 1 KiB for each of its groups.
"""

from collections.abc import Iterable

from wire.messages import Destinations, GroupDestinations

__all__ = ["ANSWER_BYTES", "PIECE_BYTES", "answers_that_fit", "shortened"]

PIECE_BYTES = 1024 * 1024  # of answers beyond which no further topic is answered in the same message
ANSWER_BYTES = 4 * 1024 * 1024  # of one topic's answer; with a piece before it well below FRAME_BYTES_MAX

_HEAD_BYTES = 32  # of an answer, or of a group, with the lengths of its lists
_ENTRY_BYTES = 12  # of a destination beside its name: lengths, a partition's number, the members


def answers_that_fit(answers: Iterable[Destinations]) -> tuple[list[Destinations], int]:
    """Return the answers from the first on that one message holds, one at least, and how many had to be shortened."""
    taken: list[Destinations] = []
    size = cut = 0
    for answer in answers:
        length = _bytes_of(answer)
        if length > ANSWER_BYTES:
            answer, cut = shortened(answer), cut + 1
        taken.append(answer)
        size += length
        if size > PIECE_BYTES:
            break
    return taken, cut


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
    names = 4 * len(group.share) + sum([len(edge) for edge, _ in group.edges])
    return _HEAD_BYTES + names + _ENTRY_BYTES * (len(group.edges) + len(group.partitions))
