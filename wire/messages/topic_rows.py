"""Rows of looks about topics: who gets them, what is retained, and shared groups.

A field that is None is not known at the node that answers.
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
    payload: Payload | None = None  # role operator, where one topic is named


class ShareMemberRow(msgspec.Struct, omit_defaults=True):
    """A member of a shared group."""

    client_id: str = ""
    online: bool = False
    queued: int = 0
    oldest_s: float | None = None
    partition: int = -1  # -1: an ephemeral session at ``node``
    node: str = ""


class ShareRow(msgspec.Struct, omit_defaults=True):
    """A shared group, as far as one partition or one edge holds it."""

    group: str | None = None
    filter: str | None = None
    members: int | None = None
    online: int | None = None
    queued: int | None = None
    oldest_s: float | None = None
    delivered: int | None = None  # copies that members here were given, since the group has members at the node
    redispatched: int | None = None  # of them, those whose member ended before it acknowledged: another one got them
    queued_most: int | None = None  # of one member
    skew: float | None = None  # that, divided by the mean of all members: 1 is even; None: nothing is queued
    partition: int | None = None
    node: str | None = None
    who: list[ShareMemberRow] | None = None  # where group and filter are named in full


class RouteRow(msgspec.Struct, omit_defaults=True):
    """A topic's route that an edge holds, or a filter that a shard's owner holds."""

    topic: str | None = None
    filter: str | None = None  # at a router, in the place of a topic
    group: str | None = None
    shard: int | None = None
    node: str | None = None
    local: int | None = None  # ephemeral subscribers at this edge
    edges: list[str] | None = None
    partitions: list[int] | None = None
    groups: list[str] | None = None
    reason_code: int | None = None  # it is closed to all
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
    cached_at: list[str] | None = None  # edges that hold the answer
    invalidating: list[str] | None = None  # edges that have not dropped an older answer yet


class MatchRow(msgspec.Struct, omit_defaults=True):
    """A subscription that a topic meets, or nearly meets; ``why`` says why its client does not get the message."""

    client_id: str | None = None
    filter: str | None = None
    qos: int | None = None  # granted
    effective_qos: int | None = None  # of a message of the QoS that the question names
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
    why: str | None = None  # "": it gets it; "no_local", "access", "size", "level", "qos0_away", "window", "queue_full"
    detail: str | None = None
