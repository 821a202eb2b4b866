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


RELAYED_BYTES_MAX = 256 * 1024  # of a message that a router hands on: one client identifier and a few numbers


class RequestRefused(ControlMessage, tag="Refused"):
    """Why a request was not carried out, in one line; leader_hint where another router would do it."""

    request: U64
    code: Word  # "not_leader", "lease", "unavailable", "invalid"
    detail: Detail
    leader_hint: SomeNode = ""  # node id


class Moved(ControlMessage, tag="Moved"):
    """Not mine, or not at that epoch: wait for this epoch and ask again. ``what`` is "shard" or "partition"."""

    request: U64
    what: Word
    number: ShardNumber
    epoch: Epoch  # the answerer's shard_epoch or partition_epoch


class RegisterRequest(ControlMessage, tag="Register"):
    """Any node to a router: let this incarnation in. A committed step; it ends the former incarnation."""

    request: U64
    entry: NodeEntry
    whole: bool = True  # storage: the store proved itself whole ("acknowledged up to" marker)
    ended_incarnation: Incarnation = 0  # proof from the same host that this former process is gone; 0: none


class Registered(ControlMessage, tag="Registered"):
    """The incarnation stands in the map. The answer may come to the next incarnation of its node."""

    request: U64
    incarnation: Incarnation
    policy_epoch: Counted = 0  # at its place in the log: the node lets no client in before it is there


class Heartbeat(ControlMessage, tag="Heartbeat"):
    """Node to leader, only while the node's main loop makes turns. ``sent_at`` is the node's own clock, echoed."""

    node: NodeName
    incarnation: Incarnation
    sent_at: Seconds
    map_epoch: Counted  # acknowledged: every effect of this epoch is in force at the sender
    unreachable: Annotated[
        list[NodeName], Meta(max_length=NODES_MAX)
    ] = []  # peers whose link is down or whose oldest frame was not taken for L
    # Of own partitions or shards: (keys, bytes); only when it changed.
    sizes: Annotated[dict[ShardNumber, tuple[Counted, Counted]], Meta(max_length=PARTITIONS_MAX)] = {}
    stores_aside: Annotated[int, Meta(ge=0, le=64)] = 0  # damaged stores that a storage node keeps aside
    policy_received: Counted = 0  # newest policy_epoch that came; the sender may still be judging by it
    policy_epoch: Counted = 0  # acknowledged: nothing at the sender acts by an older one
    map_digest: Digest = b""  # at map_epoch
    policy_digest: Digest = b""  # at policy_received


class HeartbeatReply(ControlMessage, tag="HeartbeatReply"):
    """The lease runs until sent_at + lease_s on the holder's clock; sent only after a later quorum round."""

    incarnation: Incarnation  # whose lease; the node's next incarnation, which may get this, may have another clock
    sent_at: Seconds
    lease_s: Duration  # 0: not granted
    settled_epoch: Counted  # every live node has acknowledged this epoch
    leader: SomeNode
    map_epoch: Counted = 0  # the leader's: who stays behind it follows the map of a router that lags
    policy_epoch: Counted = 0  # the leader's, with the same use
    reload_map: bool = False  # the heartbeat's map is no state of the log: read it whole; no lease is granted meanwhile
    reload_policy: bool = False  # the same of its policy


class FollowMap(ControlMessage, tag="FollowMap"):
    """Send me the map, and its steps from then on; or the page at ``offset`` of the map that I am reading."""

    epoch: Counted  # of the sender's map
    page_of: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # epoch of the map that is being read; -1: the newest
    offset: Counted = 0


class MapPage(ControlMessage, tag="MapPage"):
    """Bytes of a whole map from ``offset`` on (``map_pages.py``); the next page is asked for with FollowMap."""

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
    """Node to the leader: my incarnation stops, give its roles to others. It goes on meanwhile; the map answers."""


class Leave(ControlMessage, tag="Leave"):
    """Node to the leader: this incarnation of mine is over, it decides nothing any more. Its lease need not run out."""


class Relay(ControlMessage, tag="Relay"):
    """Any node to a router: hand this on, for the direct link is down. KickSession and SessionKicked only."""

    node: NodeName
    incarnation: Incarnation  # to this incarnation and no other
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]  # of a CONTROL frame


class Relayed(ControlMessage, tag="Relayed"):
    """A message that a router hands on, as sent by this incarnation of a node."""

    node: NodeName
    incarnation: Incarnation
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]
