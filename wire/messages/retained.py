"""Control messages about retained messages: reads of them, and copies for a durable session."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    PARTITIONS_MAX,
    ROUTES_MAX,
    U32,
    U64,
    Counted,
    Epoch,
    PartitionNumber,
    PartitionOrEdge,
    Qos,
    ReasonCode,
    Seconds,
    TopicName,
    TopicText,
    UserText,
)

__all__ = [
    "DeliverRetained",
    "ReadRetained",
    "ReadRetainedAll",
    "RetainedDelivered",
    "RetainedMessage",
    "RetainedNone",
    "RetainedPage",
]


class RetainedMessage(msgspec.Struct, array_like=True):
    """One retained message: committed state with its origin."""

    topic: TopicName
    payload: bytes
    qos: Qos
    properties: bytes = b""
    expiry_s: U32 = 0xFFFFFFFF  # remaining
    origin_kind: ReasonCode = 0
    origin_a: U64 = 0
    origin_b: U64 = 0
    owner: UserText = ""  # its publisher's user, whom the delivering edge authorizes
    owner_made: Counted = 0  # policy_epoch at which that user was created


class ReadRetained(ControlMessage, tag="ReadRetained"):
    """Edge to a partition's primary: retained messages that match a filter, sorted by topic, after a topic."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    topic_filter: TopicText
    after: TopicText = ""
    limit: Counted = 100
    waits_s: Seconds = 60.0  # the edge's timeout


class ReadRetainedAll(ControlMessage, tag="ReadRetainedAll"):
    """Edge to a storage node: the first page of each of its primary partitions, for a wildcard filter."""

    request: U64
    topic_filter: TopicText
    limit: Counted = 100
    waits_s: Seconds = 60.0


class RetainedPage(ControlMessage, tag="RetainedPage"):
    """One partition's retained messages; ``more``: request that partition again after the last topic."""

    request: U64
    messages: Annotated[list[RetainedMessage], Meta(max_length=ROUTES_MAX)]
    more: bool = False
    partition: PartitionOrEdge = -1


class RetainedNone(ControlMessage, tag="RetainedNone"):
    """These partitions of the requested node have no matching retained message."""

    request: U64
    partitions: Annotated[list[PartitionNumber], Meta(max_length=PARTITIONS_MAX)]


class DeliverRetained(ControlMessage, tag="DeliverRetained"):
    """Retained copies for a durable session: enqueue them at the session's primary, before the held live messages.

    The last one (``done``) ends the holding of live messages of its ``read``.
    """

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    messages: Annotated[
        list[RetainedMessage], Meta(max_length=ROUTES_MAX)
    ]  # qos already limited, properties with the subscription identifier
    done: bool = True
    read: U64 = 0  # request of the SubscribeSession that started the read; this one's own: it starts (again) here
    identifier: U32 = 0  # of the subscription of the read


class RetainedDelivered(ControlMessage, tag="RetainedDelivered"):
    """Committed; or not done (``again``): the read started under a former primary.

    ``taken``: number of messages, from the first on, that are queued or were sent; the others do not fit now.
    """

    request: U64
    again: bool = False
    taken: Counted = 0
