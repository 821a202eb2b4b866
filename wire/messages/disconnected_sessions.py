"""Control messages about filters of stored sessions without a connection: an edge reads, authorizes and removes them.

A partition does not authorize. Decision: docs/adr/0131-filters-of-the-absent.md.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    ROUTES_MAX,
    U32,
    U64,
    ClientId,
    Counted,
    Epoch,
    PartitionNumber,
    Qos,
    TopicText,
    UserText,
)

__all__ = [
    "AWAY_USERS_MAX",
    "DisconnectedListed",
    "DisconnectedRevoked",
    "DisconnectedSession",
    "HeldFilter",
    "ListDisconnected",
    "RevokeDisconnected",
]

AWAY_USERS_MAX = 64  # in one request; for more users, all are requested


class HeldFilter(msgspec.Struct, array_like=True):
    """A filter of a session; $share included."""

    topic_filter: TopicText
    qos: Qos = 0


class DisconnectedSession(msgspec.Struct, array_like=True):
    """A stored session without a connection, and some of its filters."""

    session: U64
    owner_epoch: U64  # the next CONNECT raises it and authorizes its filters
    client_id: ClientId
    owner: UserText
    owner_made: Counted
    filters: Annotated[list[HeldFilter], Meta(max_length=ROUTES_MAX)] = []


class ListDisconnected(ControlMessage, tag="ListAway"):
    """Edge to a partition: list the filters of disconnected sessions of the cluster's users."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    first: U64 = 0  # session; lower numbers were listed before
    skip: U32 = 0  # filters of that session listed before
    users: Annotated[list[UserText], Meta(max_length=AWAY_USERS_MAX)] = []  # only these users; empty: all


class DisconnectedListed(ControlMessage, tag="AwayListed"):
    """A page, in the order of session numbers."""

    request: U64
    sessions: Annotated[list[DisconnectedSession], Meta(max_length=ROUTES_MAX)] = []
    next_first: U64 = 0  # 0: these were the last
    next_skip: U32 = 0


class RevokeDisconnected(ControlMessage, tag="RevokeAway"):
    """Edge to a partition: the owner of this session lost the right to these filters; void once it connects."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    away: U64  # session
    owner_epoch: U64
    topic_filters: Annotated[list[TopicText], Meta(max_length=ROUTES_MAX)]


class DisconnectedRevoked(ControlMessage, tag="AwayRevoked"):
    """Committed."""

    request: U64
    removed: U32 = 0
