"""The ranges of values in messages: one named type each, checked by msgspec when a message is decoded.

Structs created locally are not checked. So these bounds are wider than those of our senders' settings
(``conf/*_settings.py``); a sender with more data splits it or stops at the bound here. Text has its bound in
characters. An integer without an upper bound has the one of msgpack, 64 bits.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from wire.messages.digests import DIGEST_BYTES

__all__ = [
    "INCARNATION_MAX",
    "MAP_PAGE_BYTES",
    "MEMBERS_MAX",
    "NODES_MAX",
    "NODE_NAME_MAX",
    "PARTITIONS_MAX",
    "ROUTES_MAX",
    "SYS_FILTERS_MAX",
    "U32",
    "U64",
    "Actor",
    "Address",
    "ClientId",
    "ClusterId",
    "Counted",
    "Detail",
    "Digest",
    "Duration",
    "Epoch",
    "Incarnation",
    "ListenerName",
    "Members",
    "NodeName",
    "OpIndex",
    "PacketIdentifier",
    "PartitionNumber",
    "PartitionOrEdge",
    "Qos",
    "ReasonCode",
    "Seconds",
    "ShardNumber",
    "ShareBytes",
    "ShareText",
    "SomeNode",
    "TierName",
    "TopicName",
    "TopicText",
    "UserName",
    "UserText",
    "Verb",
    "Weight",
    "Word",
    "Zone",
]

# --- counts

# Of router.partitions: the largest number with which a small host survived the death of a storage node (ADR 30).
# More than 1 << 15 is impossible: a session's number, partition << 48 | counter, is an int64 of SSTables.
PARTITIONS_MAX = 1 << 13
NODES_MAX = 4096  # in a map, or in a list of a message
ROUTES_MAX = 1_000_000  # filters, topics or answers in one message: the maximum of edge.filters_per_session_max
SYS_FILTERS_MAX = 16  # filters of a session under $SYS, in the reply to a CONNECT
MAP_PAGE_BYTES = 256 * 1024  # of a map in one message; also the largest step that is sent as one
MEMBERS_MAX = 10_000_000  # of a shared group at one node: the maximum of clients of an edge

# --- numbers

INCARNATION_MAX = 1 << 44  # ms since 1970; with NUMBERS_BITS below it, 64 bits
NODE_NAME_MAX = 64  # characters; so are the names of clusters and zones

U32: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 32)]
U64: TypeAlias = Annotated[int, Meta(ge=0)]
Counted: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]  # bytes, keys: sums of many still fit 64 bits
Epoch: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 32)]  # of a partition or shard; half of an owner_epoch
Incarnation: TypeAlias = Annotated[int, Meta(ge=0, lt=INCARNATION_MAX)]
OpIndex: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
PartitionOrEdge: TypeAlias = Annotated[int, Meta(ge=-1, lt=PARTITIONS_MAX)]  # -1: the edge itself
ShardNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]  # router.shards and the pinned prefixes after them
PacketIdentifier: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
Qos: TypeAlias = Annotated[int, Meta(ge=0, le=2)]
ReasonCode: TypeAlias = Annotated[int, Meta(ge=0, le=0xFF)]
Members: TypeAlias = Annotated[int, Meta(ge=0, le=MEMBERS_MAX)]
Weight: TypeAlias = Annotated[int, Meta(ge=1, le=100)]  # node.weight: the ring makes points in proportion to it
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]  # of a clock; neither infinite nor NaN
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=86_400)]

Digest: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST_BYTES)]  # b"": none

# --- names

NodeName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NODE_NAME_MAX)]
SomeNode: TypeAlias = Annotated[str, Meta(max_length=NODE_NAME_MAX)]  # "": none
ClusterId: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]  # "": unknown
TierName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=16)]
Zone: TypeAlias = Annotated[str, Meta(max_length=64)]
Address: TypeAlias = Annotated[str, Meta(max_length=255)]  # host:port; "": does not listen
ListenerName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=32)]
ClientId: TypeAlias = Annotated[str, Meta(max_length=65_535)]
UserName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]  # of the cluster's users
UserText: TypeAlias = Annotated[str, Meta(max_length=65_535)]  # "": no named user
TopicName: TypeAlias = Annotated[str, Meta(max_length=65_535, pattern=r"^[^\x00#+]+\Z")]
TopicText: TypeAlias = Annotated[str, Meta(max_length=65_535)]  # a filter, or a cursor among topics
ShareText: TypeAlias = Annotated[str, Meta(max_length=2 * 65_535 + 1)]  # "share name/topic filter"
ShareBytes: TypeAlias = Annotated[bytes, Meta(max_length=65_535)]  # its length has 16 bits in a record
Actor: TypeAlias = Annotated[str, Meta(max_length=256)]  # the user of an operator's service
Word: TypeAlias = Annotated[str, Meta(max_length=32)]  # one of a fixed set: a state, a code, a kind
Verb: TypeAlias = Annotated[str, Meta(max_length=64)]
Detail: TypeAlias = Annotated[str, Meta(max_length=16_384)]  # a few lines of text
