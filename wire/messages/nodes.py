"""Control messages between nodes and routers: refusals, registration, leases, the map and its changes, relays."""

from typing import Annotated

from msgspec import Meta

from wire.messages.cluster_map import MapDelta, NodeEntry
from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    MAP_PAGE_BYTES,
    NODES_MAX,
    PARTITIONS_MAX,
    U32,
    U64,
    Counted,
    Detail,
    Digest,
    Duration,
    Epoch,
    Incarnation,
    NodeName,
    PartitionNumber,
    Seconds,
    ShardNumber,
    SomeNode,
    Verb,
    Word,
)

__all__ = [
    "Changed",
    "DrainNode",
    "FollowMap",
    "Heartbeat",
    "HeartbeatReply",
    "Leave",
    "MapPage",
    "MapStep",
    "Moved",
    "RegisterRequest",
    "Registered",
    "Relay",
    "Relayed",
    "RequestChange",
    "RequestRefused",
]


RELAYED_BYTES_MAX = 256 * 1024  # of a message that a router forwards: one client identifier and a few numbers


class RequestRefused(ControlMessage, tag="Refused"):
    """Reason why a request was refused, in one line; ``leader_hint`` names a router that may accept it."""

    request: U64
    code: Word  # "not_leader", "lease", "unavailable", "invalid"
    detail: Detail
    leader_hint: SomeNode = ""  # node id


class Moved(ControlMessage, tag="Moved"):
    """Sender does not own it in that epoch: wait for this epoch and retry. ``what`` is "shard" or "partition"."""

    request: U64
    what: Word
    number: ShardNumber
    epoch: Epoch  # the sender's shard_epoch or partition_epoch


class RegisterRequest(ControlMessage, tag="Register"):
    """Any node to a router: register this incarnation. A committed step; it ends the former incarnation."""

    request: U64
    entry: NodeEntry
    whole: bool = True  # storage: the store was verified complete ("acknowledged up to" marker)
    ended_incarnation: Incarnation = 0  # former process that provably ended on the same host; 0: none


class Registered(ControlMessage, tag="Registered"):
    """The incarnation is registered in the map. The answer may arrive at the node's next incarnation."""

    request: U64
    incarnation: Incarnation
    policy_epoch: Counted = 0  # at registration: the node accepts no client before it has this policy


class Heartbeat(ControlMessage, tag="Heartbeat"):
    """Node to leader, sent only by a running main loop. ``sent_at`` is the node's own clock, echoed."""

    node: NodeName
    incarnation: Incarnation
    sent_at: Seconds
    map_epoch: Counted  # acknowledged: all effects of this epoch are in force at the sender
    unreachable: Annotated[
        list[NodeName], Meta(max_length=NODES_MAX)
    ] = []  # peers whose link is down or whose oldest frame is untaken for L
    # Of own partitions or shards: (keys, bytes); only when it changed.
    sizes: Annotated[dict[ShardNumber, tuple[Counted, Counted]], Meta(max_length=PARTITIONS_MAX)] = {}
    stores_aside: Annotated[int, Meta(ge=0, le=64)] = 0  # quarantined stores that a storage node keeps
    policy_received: Counted = 0  # newest received policy_epoch; the sender may still apply an older one
    policy_epoch: Counted = 0  # acknowledged: no part of the sender uses an older one
    map_digest: Digest = b""  # at map_epoch
    policy_digest: Digest = b""  # at policy_received


class HeartbeatReply(ControlMessage, tag="HeartbeatReply"):
    """The lease runs until sent_at + lease_s on the holder's clock; sent only after a later quorum round."""

    incarnation: Incarnation  # of the lease; a later incarnation may receive this and have another clock
    sent_at: Seconds
    lease_s: Duration  # 0: not granted
    settled_epoch: Counted  # every live node has acknowledged this epoch
    leader: SomeNode
    map_epoch: Counted = 0  # the leader's: a node that stays behind it follows a lagging router
    policy_epoch: Counted = 0  # the leader's, with the same use
    reload_map: bool = False  # the heartbeat's map is not a state of the log: reload it; no lease is granted meanwhile
    reload_policy: bool = False  # the same of its policy


class FollowMap(ControlMessage, tag="FollowMap"):
    """Request for the map and its later steps; or for the page at ``offset`` of a map being read."""

    epoch: Counted  # of the sender's map
    page_of: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # epoch of the map that is being read; -1: the newest
    offset: Counted = 0


class MapPage(ControlMessage, tag="MapPage"):
    """Bytes of a whole map from ``offset`` on (``map_pages.py``); FollowMap requests the next page."""

    epoch: Counted
    offset: Counted
    size: Counted  # of the whole map
    crc: U32  # CRC-32 of the whole map
    data: Annotated[bytes, Meta(max_length=MAP_PAGE_BYTES)]


class MapStep(ControlMessage, tag="MapStep"):
    """The next epoch; a step longer than a page comes as a whole map."""

    delta: MapDelta


class RequestChange(ControlMessage, tag="RequestChange"):
    """Storage or router to the leader: a compare-and-set on a partition's configuration."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    verb: Verb  # "drop_backup", "replace_copy", "add_joining", "promote_joining", "relinquish"
    node: NodeName


class Changed(ControlMessage, tag="Changed"):
    """The change is committed: of a partition for storage, of a user's record for an edge."""

    request: U64


class DrainNode(ControlMessage, tag="Drain"):
    """Node to the leader: this incarnation stops; move its roles. It serves meanwhile; the map shows the result."""


class Leave(ControlMessage, tag="Leave"):
    """Node to the leader: this incarnation has ended and makes no decisions. Its lease need not expire."""


class Relay(ControlMessage, tag="Relay"):
    """Any node to a router: forward this, because the direct link is down. KickSession and SessionKicked only."""

    node: NodeName
    incarnation: Incarnation  # to this incarnation and no other
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]  # of a CONTROL frame


class Relayed(ControlMessage, tag="Relayed"):
    """A message that a router forwards for this incarnation of a node."""

    node: NodeName
    incarnation: Incarnation
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]
