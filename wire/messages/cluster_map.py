"""The ClusterMap of every node: nodes, owners and epochs; and placement as pure functions.

The routers change it by committed commands (``router/map/machine.py``); every other node follows it as a stream of
``MapPage`` and ``MapStep``. Placement is a table with epochs: a lookup is one hash and one list index. The hash is
CRC-32, so that Spark, SQL or a short script can verify it. Decision: docs/adr/0003.
"""

from typing import Annotated, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Meta

from wire.messages.digests import digest_of
from wire.messages.ranges import (
    NODES_MAX,
    PARTITIONS_MAX,
    Address,
    ClusterId,
    Counted,
    Detail,
    Digest,
    Duration,
    Epoch,
    Incarnation,
    ListenerName,
    NodeName,
    PartitionNumber,
    PartitionOrEdge,
    ShardNumber,
    SomeNode,
    TierName,
    TopicText,
    Weight,
    Word,
    Zone,
)

__all__ = [
    "ClusterMap",
    "Delegation",
    "MapDelta",
    "NodeEntry",
    "NodeIncarnation",
    "NodeState",
    "PartitionEntry",
    "ShardEntry",
    "partition_of",
]

HASH_NAME = "crc32/ISO-HDLC of utf-8, modulo"  # part of the map and of every manifest


LISTENERS_MAX = 64  # of one edge
COPIES_MAX = 64  # of one partition, joining and leaving ones included
DELEGATIONS_MAX = 4096
Copies: TypeAlias = Annotated[tuple[NodeName, ...], Meta(max_length=COPIES_MAX)]
CopiesWanted: TypeAlias = Annotated[int, Meta(ge=1, le=COPIES_MAX)]
NodeIncarnation: TypeAlias = tuple[str, int]  # node, incarnation
Levels: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]


class NodeState:
    """State of a node's current incarnation in the map."""

    JOINING = "joining"
    ACTIVE = "active"
    DRAINING = "draining"
    DEAD = "dead"


_ALIVE = (NodeState.ACTIVE, NodeState.DRAINING)


class NodeEntry(msgspec.Struct, frozen=True):
    """One node and its current incarnation."""

    node: NodeName
    tier: TierName
    incarnation: Incarnation
    address: Address  # of the node's links, host:port
    # Listener name -> host:port, edges only.
    clients: Annotated[dict[ListenerName, Address], Meta(max_length=LISTENERS_MAX)] = {}
    zone: Zone = ""
    weight: Weight = 1
    state: Word = NodeState.JOINING
    admin_state: Word = ""  # "draining" while an operator empties the node
    fence_close_s: Duration = 0.0  # for which an edge may serve its own clients after the end of its lease

    @property
    def alive(self) -> bool:
        """True while this incarnation may act."""
        return self.state in _ALIVE

    @property
    def stops(self) -> bool:
        """True once this incarnation is draining: it acts until it leaves, without new roles."""
        return self.state == NodeState.DRAINING


class PartitionEntry(msgspec.Struct, frozen=True, array_like=True):
    """Placement of one storage partition."""

    epoch: Epoch = 0  # partition_epoch; 0: never placed
    primary: SomeNode = ""  # "" while no in-sync replica is alive
    in_sync: Copies = ()  # replicas that hold every acknowledged operation, the primary among them; some dead
    joining: Copies = ()  # catching up; counts for acknowledging, never for promotion


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """Placement of one route shard."""

    epoch: Epoch = 0  # shard_epoch
    owner: SomeNode = ""


class Delegation(msgspec.Struct, frozen=True):
    """A subtree of the topic hierarchy with a jurisdiction of its own."""

    prefix: TopicText  # whole levels, without wildcard: "devices" or "plant-7/line-1"
    depth: Levels  # levels of the route key under this prefix; at least the prefix's own
    pin: SomeNode = ""  # router that owns the subtree; "": the ring decides
    shard: PartitionOrEdge = -1  # a pinned prefix is a shard of its own, numbered from S up


Delegations: TypeAlias = Annotated[tuple[Delegation, ...], Meta(max_length=DELEGATIONS_MAX)]


_encoder = msgspec.msgpack.Encoder()


class MapDelta(msgspec.Struct, frozen=True, tag="MapDelta"):
    """Changes of one committed step: from epoch - 1 to epoch. ``before`` is the digest of the map before the step."""

    epoch: Counted
    nodes: Annotated[tuple[NodeEntry, ...], Meta(max_length=NODES_MAX)] = ()
    forgotten: Annotated[tuple[NodeName, ...], Meta(max_length=NODES_MAX)] = ()
    partitions: Annotated[dict[PartitionNumber, PartitionEntry], Meta(max_length=PARTITIONS_MAX)] = {}
    shards: Annotated[dict[ShardNumber, ShardEntry], Meta(max_length=PARTITIONS_MAX)] = {}
    delegations: Delegations | None = None
    before: Digest = b""


class ClusterMap(msgspec.Struct, tag="ClusterMap"):
    """One epoch of the map. Followers mutate theirs only through ``apply``."""

    cluster: SomeNode  # its name has the form of a node's; "" before the bootstrap
    epoch: Counted = 0
    nodes: Annotated[dict[NodeName, NodeEntry], Meta(max_length=NODES_MAX)] = {}
    partitions: Annotated[list[PartitionEntry], Meta(max_length=PARTITIONS_MAX)] = []
    shards: Annotated[list[ShardEntry], Meta(max_length=PARTITIONS_MAX)] = []
    delegations: Delegations = ()
    replicas: CopiesWanted = 1
    min_in_sync: CopiesWanted = 1
    lease_s: Duration = 2.0
    base_shards: ShardNumber = 0  # S; shards from here up are pinned prefixes
    hash_name: Detail = HASH_NAME
    cluster_id: ClusterId = ""  # random, made at the bootstrap: two clusters may have one name
    digest: Digest = b""  # covers all steps so far (``digests.py``)

    def apply(self, delta: MapDelta) -> None:
        """Move to ``delta.epoch``.

        Raises:
            ValueError: If the delta does not follow this epoch or this state, or refers to unknown entries; the map is
                unchanged.
        """
        if delta.epoch != self.epoch + 1:
            raise ValueError(f"delta to epoch {delta.epoch} does not follow epoch {self.epoch}")
        if delta.before != self.digest:
            raise ValueError(f"delta to epoch {delta.epoch} is one of another map")
        if not all(0 <= number < len(self.partitions) for number in delta.partitions):
            raise ValueError(f"delta to epoch {delta.epoch} names a partition that is none")
        if not all(0 <= number < len(self.shards) + len(delta.shards) for number in delta.shards):
            raise ValueError(f"delta to epoch {delta.epoch} names a shard that is none")
        shards = max(len(self.shards), *(number + 1 for number in delta.shards), 0)
        if any(rule.shard >= shards for rule in delta.delegations or ()):
            raise ValueError(f"delta to epoch {delta.epoch} delegates to a shard that is none")
        for entry in delta.nodes:
            self.nodes[entry.node] = entry
        for node in delta.forgotten:
            self.nodes.pop(node, None)
        for number, placement in delta.partitions.items():
            self.partitions[number] = placement
        for number, shard in delta.shards.items():
            while len(self.shards) <= number:
                self.shards.append(ShardEntry())
            self.shards[number] = shard
        if delta.delegations is not None:
            self.delegations = delta.delegations
        self.epoch, self.digest = delta.epoch, digest_of(_encoder.encode(delta))

    def begin(self) -> None:
        """Set the digest of a first state, which no step has made."""
        self.digest = digest_of(_encoder.encode(self))

    def is_alive(self, node: str, incarnation: int) -> bool:
        """True if the map lists this incarnation as one that may act."""
        entry = self.nodes.get(node)
        return entry is not None and entry.incarnation == incarnation and entry.state in _ALIVE

    def has_live(self, node: str) -> bool:
        """True if some incarnation of this node may act."""
        entry = self.nodes.get(node)
        return entry is not None and entry.alive

    def stays(self, node: str) -> bool:
        """True if a node may act and does not stop: only such a node takes over roles."""
        entry = self.nodes.get(node)
        return entry is not None and entry.alive and not entry.stops

    def live_in_sync(self, placement: PartitionEntry) -> list[str]:
        """Return the live replicas in sync."""
        return [name for name in placement.in_sync if self.has_live(name)]

    def under_replicated(self) -> int:
        """Return the number of partitions with fewer live copies in sync than required."""
        alive = {name for name, entry in self.nodes.items() if entry.alive}
        return sum(len(alive.intersection(placement.in_sync)) < self.replicas for placement in self.partitions)

    def live(self, tier: str) -> list[NodeEntry]:
        """Return the live nodes of a tier, by name."""
        return [
            self.nodes[name] for name in sorted(self.nodes) if self.nodes[name].tier == tier and self.nodes[name].alive
        ]

    def partition_for(self, key: str) -> int:
        """Return the partition of a client ID, or of a topic's retained message."""
        return partition_of(key, len(self.partitions))

    def jurisdiction(self, levels: list[str]) -> tuple[int, int]:
        """Return (depth of the route key, pinned shard or -1) for a topic or a filter's concrete head."""
        best: Delegation | None = None
        for delegation in self.delegations:
            prefix = delegation.prefix.split("/")
            if levels[: len(prefix)] == prefix and (best is None or len(prefix) > len(best.prefix.split("/"))):
                best = delegation
        if best is None:
            return 1, -1
        return best.depth, best.shard if best.pin else -1

    def shard_for_topic(self, topic: str) -> int:
        """Return the shard that knows the destinations of a topic."""
        levels = topic.split("/")
        depth, pinned = self.jurisdiction(levels) if self.delegations else (1, -1)
        if pinned >= 0:
            return pinned
        return crc32("/".join(levels[:depth]).encode()) % self.base_shards

    def shards_for_filter(self, topic_filter: str) -> list[int]:
        """Return the shards a filter is registered at: one, or all when it is broad (a wildcard in its route key)."""
        levels = topic_filter.split("/")
        head = levels
        for index, level in enumerate(levels):
            if level in ("+", "#"):
                head = levels[:index]
                break
        if head:
            depth, pinned = self.jurisdiction(head) if self.delegations else (1, -1)
            # A prefix below the concrete head may have a jurisdiction of its own: then the filter is broad.
            below = head is not levels and any(
                len(parts := delegation.prefix.split("/")) > len(head) and parts[: len(head)] == head
                for delegation in self.delegations
            )
            if not below:
                if pinned >= 0:
                    return [pinned]
                if len(head) >= depth or head is levels:
                    return [crc32("/".join(head[:depth]).encode()) % self.base_shards]
        return list(range(len(self.shards)))


def partition_of(key: str, partitions: int) -> int:
    """Return crc32(utf-8 key) mod P."""
    return crc32(key.encode()) % partitions
