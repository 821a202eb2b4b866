"""Rows of queries about topics: destinations, retained messages, and shared subscriptions.

A field is None if the answering node does not know it.
"""

from typing import TypeAlias

import msgspec

__all__ = ["MatchRow", "ResolvedRouteRow", "RetainedMessageRow", "RouteRow", "ShareMemberRow", "ShareRow"]

Payload: TypeAlias = bytes  # a column below is called bytes


class RetainedMessageRow(msgspec.Struct, omit_defaults=True):
    """A retained message."""

    topic: str | None = None
    bytes: int | None = None
    qos: int | None = None
    age_s: float | None = None
    expires_in_s: float | None = None
    publisher: str | None = None  # user
    partition: int | None = None
    storage: str | None = None
    origin: str | None = None
    content_type: str | None = None
    payload: Payload | None = None  # role operator, for a single topic


class ShareMemberRow(msgspec.Struct, omit_defaults=True):
    """A member of a shared subscription."""

    client_id: str = ""
    online: bool = False
    queued: int = 0
    oldest_s: float | None = None
    partition: int = -1  # -1: an ephemeral session at ``node``
    node: str = ""


class ShareRow(msgspec.Struct, omit_defaults=True):
    """A shared subscription at one partition or one edge."""

    group: str | None = None
    filter: str | None = None
    members: int | None = None
    online: int | None = None
    queued: int | None = None
    oldest_s: float | None = None
    delivered: int | None = None  # copies given to members at this node
    redispatched: int | None = None  # of them, those redispatched because their member ended without an acknowledgement
    queued_most: int | None = None  # of one member
    skew: float | None = None  # that, divided by the mean of all members: 1 is even; None: all queues are empty
    partition: int | None = None
    node: str | None = None
    who: list[ShareMemberRow] | None = None  # if group and filter are given in full


class RouteRow(msgspec.Struct, omit_defaults=True):
    """A cached route of an edge, or a filter at its shard's owner."""

    topic: str | None = None
    filter: str | None = None  # at a router, instead of a topic
    group: str | None = None
    shard: int | None = None
    node: str | None = None
    local: int | None = None  # ephemeral subscribers at this edge
    edges: list[str] | None = None
    partitions: list[int] | None = None
    groups: list[str] | None = None
    reason_code: int | None = None  # denied to all clients
    traced: bool | None = None


class ResolvedRouteRow(msgspec.Struct, omit_defaults=True):
    """A topic at the owner of its shard."""

    topic: str | None = None
    shard: int | None = None
    route_key: str | None = None
    pinned: bool | None = None  # by a prefix that an operator delegated
    owner: str | None = None
    shard_epoch: int | None = None
    state: str | None = None  # "collecting", "registering", "serving"
    missing: list[str] | None = None  # nodes that have not reported their routes
    edges: list[str] | None = None
    partitions: list[int] | None = None
    groups: list[ShareRow] | None = None
    cached_at: list[str] | None = None  # edges with the cached route
    invalidating: list[str] | None = None  # edges that have not removed an older route yet


class MatchRow(msgspec.Struct, omit_defaults=True):
    """A subscription that matches a topic, fully or nearly; ``why`` is the reason why its client misses the message."""

    client_id: str | None = None
    filter: str | None = None
    qos: int | None = None  # granted
    effective_qos: int | None = None  # for the QoS of the query
    share: str | None = None
    turn: bool | None = None  # of a shared group: this member is the next one
    no_local: bool | None = None
    retain_as_published: bool | None = None
    retain_handling: int | None = None
    identifier: int | None = None
    online: bool | None = None
    node: str | None = None
    durable: bool | None = None
    partition: int | None = None
    session: int | None = None
    queued: int | None = None
    window: int | None = None
    inflight: int | None = None
    why: str | None = None  # "": delivered; "no_local", "access", "size", "level", "qos0_away", "window", "queue_full"
    detail: str | None = None
