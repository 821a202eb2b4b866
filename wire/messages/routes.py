"""Control messages about routes: look-ups, registrations, reports and invalidations, between nodes and shard owners."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    NODES_MAX,
    PARTITIONS_MAX,
    ROUTES_MAX,
    U32,
    U64,
    Counted,
    Epoch,
    Incarnation,
    Members,
    NodeName,
    PartitionNumber,
    PartitionOrEdge,
    ShardNumber,
    ShareText,
    TopicName,
    TopicText,
)

__all__ = [
    "AddRoutes",
    "Destinations",
    "GroupDestinations",
    "Invalidate",
    "Invalidated",
    "RemoveRoutes",
    "ReportRoutes",
    "Resolve",
    "Resolved",
    "RouteEntry",
    "RoutesAdded",
    "SenderReport",
]


class GroupDestinations(msgspec.Struct, array_like=True):
    """Nodes of a shared subscription's members, with the number at each."""

    share: ShareText  # "share name/topic filter"
    edges: Annotated[list[tuple[NodeName, Members]], Meta(max_length=NODES_MAX)] = []
    partitions: Annotated[list[tuple[PartitionNumber, Members]], Meta(max_length=PARTITIONS_MAX)] = []


class Destinations(msgspec.Struct, array_like=True):
    """Route of one topic: all destinations with a matching filter."""

    edges: Annotated[list[NodeName], Meta(max_length=NODES_MAX)] = []
    partitions: Annotated[list[PartitionNumber], Meta(max_length=PARTITIONS_MAX)] = []
    groups: Annotated[list[GroupDestinations], Meta(max_length=ROUTES_MAX)] = []


class RouteEntry(msgspec.Struct, array_like=True):
    """One filter of a sender; members is 0 for an ordinary filter, else the shared subscription's members there."""

    topic_filter: TopicText
    share_name: TopicText = ""
    members: Members = 0


class Resolve(ControlMessage, tag="Resolve"):
    """Edge to shard owner: destinations of these topics; ``kept``: a registration of cached topics at a new owner."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    topics: Annotated[list[TopicName], Meta(max_length=ROUTES_MAX)]
    kept: bool = False


class Resolved(ControlMessage, tag="Resolved"):
    """One answer per topic, in order, for the first ones that fit into a frame: the edge requests the others again.

    Most topics of a request have the same destinations, which are listed once. An answer is void if a matching
    invalidation arrived after the request was sent.
    """

    request: U64
    shard_epoch: Epoch
    destinations: Annotated[list[Destinations], Meta(max_length=ROUTES_MAX)]  # different ones
    answers: Annotated[list[U32], Meta(max_length=ROUTES_MAX)]  # of each topic: its index among the destinations


class AddRoutes(ControlMessage, tag="AddRoutes"):
    """Destination to shard owner. Answered when no edge has a cached route without these filters any more."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    partition: PartitionOrEdge  # -1: the sending edge itself is the destination
    sender_epoch: Incarnation  # partition_epoch, or the edge's incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]


class RoutesAdded(ControlMessage, tag="RoutesAdded"):
    """All matching cached routes are removed. The sender's next incarnation may receive this."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    sender_epoch: Incarnation  # of the AddRoutes


class RemoveRoutes(ControlMessage, tag="RemoveRoutes"):
    """Lazy; sent only after the removal is committed (partition) or the UNSUBACK is written (edge)."""

    shard: ShardNumber
    shard_epoch: Epoch
    partition: PartitionOrEdge
    sender_epoch: Incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]


class SenderReport(msgspec.Struct, array_like=True):
    """All filters of the sending edge (partition -1) or of one partition: replaces older state of that sender."""

    partition: PartitionOrEdge
    sender_epoch: Incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]
    first: bool = True  # a long report comes in pieces, in order
    last: bool = True


class ReportRoutes(ControlMessage, tag="ReportRoutes"):
    """Filters that a destination reports to a shard's new owner, of itself or of its partitions."""

    shard: ShardNumber
    shard_epoch: Epoch
    reports: Annotated[list[SenderReport], Meta(max_length=2 * PARTITIONS_MAX)]


class Invalidate(ControlMessage, tag="Invalidate"):
    """Owner to edge: remove all cached routes that match these filters. Valid in any epoch."""

    number: U64
    shard: ShardNumber
    shard_epoch: Epoch
    topic_filters: Annotated[list[TopicText], Meta(max_length=ROUTES_MAX)]


class Invalidated(ControlMessage, tag="Invalidated"):
    """Edge to owner, after the acknowledgement of retained writes that used the removed routes."""

    number: U64
    shard: ShardNumber
    shard_epoch: Epoch  # of the Invalidate: the numbers restart with it
