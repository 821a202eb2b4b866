"""Control messages that give what a shared group's ended member did not acknowledge to another member."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.batches import OriginKind
from wire.messages.message import ControlMessage
from wire.messages.ranges import U32, U64, Epoch, Incarnation, PartitionNumber, PartitionOrEdge, ShareBytes, SomeNode
from wire.messages.wills import SessionWill

__all__ = ["HOPS_MAX", "RedispatchOrder", "RedispatchReply", "SharePick", "handed_sender", "hops_of"]

HOPS_MAX = 16  # members that may not receive a copy and hand it on; then nobody may, or too few
_NO_SESSION = (1 << 48) - 1  # with the partition's number: the sender of what it orders, no session's number


class SharePick(msgspec.Struct, array_like=True):
    """Where the copy of one QoS 2 message for one shared group goes: a partition, or an edge."""

    share: ShareBytes  # "share name/topic filter"
    partition: PartitionOrEdge  # -1: an edge
    edge: SomeNode = ""
    incarnation: Incarnation = 0
    attempt: U32 = 0  # a higher one replaces a lower one: its destination refused, or was an edge and died


class RedispatchOrder(ControlMessage, tag="HandOn"):
    """Primary to one live edge: what an ended member of a group did not acknowledge goes to another member.

    Without ``pick`` the edge answers where it would go; that is recorded and comes back, and then the edge sends it
    there. The primary sends it again, with the same origin, to another edge, after frames were lost, or when the edge
    answers ``again``.
    """

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    number: U64  # of the partition's messages that are redispatched; part of the origin
    share: ShareBytes
    message: SessionWill
    pick: SharePick | None = None
    hops: Annotated[int, Meta(ge=0, lt=HOPS_MAX)] = 0  # times that it was handed on before; part of the origin


class RedispatchReply(ControlMessage, tag="HandedOn"):
    """With ``pick``: record that the message goes there. Without: a member has it, or the group has ended.

    With ``again``: no member could take it now; the primary sends the order again later.
    """

    request: U64
    partition: PartitionNumber
    number: U64
    pick: SharePick | None = None
    again: bool = False


def handed_sender(partition: int, hops: int) -> int:
    """Return the sender, as origins name it, of copies that a partition hands on."""
    return partition << 48 | _NO_SESSION - hops


def hops_of(origin_kind: int, sender: int) -> int:
    """Return how often a message with this origin was handed on, 0 for never."""
    below = _NO_SESSION - (sender & _NO_SESSION)
    return below + 1 if origin_kind == OriginKind.SESSION and below < HOPS_MAX else 0
