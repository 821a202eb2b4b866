"""Control messages that redispatch a shared subscription's unacknowledged messages from an ended member to another."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.batches import OriginKind
from wire.messages.message import ControlMessage
from wire.messages.ranges import U32, U64, Epoch, Incarnation, PartitionNumber, PartitionOrEdge, ShareBytes, SomeNode
from wire.messages.wills import SessionWill

__all__ = ["HOPS_MAX", "RedispatchOrder", "RedispatchReply", "SharePick", "handed_sender", "hops_of"]

HOPS_MAX = 16  # redispatches of a copy between members without access; then too few members have access
_NO_SESSION = (1 << 48) - 1  # with the partition's number: the sender of its orders, never a session's number


class SharePick(msgspec.Struct, array_like=True):
    """Destination of the copy of one QoS 2 message for one shared subscription: a partition, or an edge."""

    share: ShareBytes  # "share name/topic filter"
    partition: PartitionOrEdge  # -1: an edge
    edge: SomeNode = ""
    incarnation: Incarnation = 0
    attempt: U32 = 0  # a higher one replaces a lower one, whose destination refused or was a dead edge


class RedispatchOrder(ControlMessage, tag="HandOn"):
    """Primary to one live edge: redispatch an ended member's unacknowledged message to another member.

    Without ``pick`` the edge answers with the pick. The primary records it and sends it back, and then the edge
    forwards the message. The primary repeats the order, with the same origin, to another edge after lost frames, or
    when the edge answers ``again``.
    """

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    number: U64  # of the partition's messages that are redispatched; part of the origin
    share: ShareBytes
    message: SessionWill
    pick: SharePick | None = None
    hops: Annotated[int, Meta(ge=0, lt=HOPS_MAX)] = 0  # number of earlier redispatches; part of the origin


class RedispatchReply(ControlMessage, tag="HandedOn"):
    """With ``pick``: record this pick. Without: a member has the message, or the shared subscription has ended.

    With ``again``: no member could take it now; the primary retries the order later.
    """

    request: U64
    partition: PartitionNumber
    number: U64
    pick: SharePick | None = None
    again: bool = False


def handed_sender(partition: int, hops: int) -> int:
    """Return the sender in origins of copies that a partition redispatches."""
    return partition << 48 | _NO_SESSION - hops


def hops_of(origin_kind: int, sender: int) -> int:
    """Return the number of redispatches of a message with this origin."""
    below = _NO_SESSION - (sender & _NO_SESSION)
    return below + 1 if origin_kind == OriginKind.SESSION and below < HOPS_MAX else 0
