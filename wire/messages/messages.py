"""Control messages between nodes: one msgspec struct each, in CONTROL frames, told apart by its tag.

Per-message traffic is not here (``wire/messages/batches.py``). A request carries ``request``, a number of its sender,
and the answer repeats it. Whatever depends on placement carries the epoch it was made under; the receiver acts only at
its own current one and otherwise answers ``Moved`` with the newer. Rules: docs/protocol.md.

``owner_epoch`` is one integer, partition_epoch << 32 | counter, so that it orders as the pair does. A session number is
partition << 48 | counter and is never used again. Lists are batches: all of one round to one node leaves together.
Ranges of what is decoded stand in the types (``wire/messages/ranges.py``).
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from wire.decoding import Payload, strictly
from wire.messages.cluster_map import MapDelta, NodeEntry
from wire.messages.ranges import (
    MAP_PAGE_BYTES,
    MEMBERS_MAX,
    NODES_MAX,
    PARTITIONS_MAX,
    ROUTES_MAX,
    U32,
    U64,
    Address,
    ClientId,
    Counted,
    Detail,
    Duration,
    Epoch,
    Incarnation,
    Members,
    NodeName,
    OpIndex,
    PacketIdentifier,
    PartitionNumber,
    PartitionOrEdge,
    Qos,
    ReasonCode,
    Seconds,
    ShardNumber,
    ShareBytes,
    ShareText,
    SomeNode,
    TopicName,
    TopicText,
    Verb,
    Word,
)

__all__ = ["Control", "decode_control", "encode_control"]

RELAYED_BYTES_MAX = 256 * 1024  # of a message that a router hands on: one client identifier and a few numbers


class Message(msgspec.Struct, omit_defaults=True):
    """Root of the control messages. The tag is the format: it stays when a class gets another name."""


# --- nodes and routers: registration, leases, the map ------------------------------------------------------------


class Register(Message, tag="Register"):
    """Any node to a router: let this incarnation in. A committed step; it ends the former incarnation."""

    request: U64
    entry: NodeEntry
    whole: bool = True  # storage: the store proved itself whole ("acknowledged up to" marker)
    ended_incarnation: Incarnation = 0  # proof from the same host that this former process is gone; 0: none


class Registered(Message, tag="Registered"):
    """The incarnation stands in the map at this epoch. The answer may come to the next life of its node."""

    request: U64
    incarnation: Incarnation
    map_epoch: Counted


class Refused(Message, tag="Refused"):
    """Why a request was not carried out, in one line; leader_hint where another router would do it."""

    request: U64
    code: Word  # "not_leader", "lease", "unavailable", "invalid"
    detail: Detail
    leader_hint: SomeNode = ""  # node id
    leader_address: Address = ""


class Heartbeat(Message, tag="Heartbeat"):
    """Node to leader, only while the node's main loop makes rounds. ``sent_at`` is the node's own clock, echoed."""

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


class HeartbeatReply(Message, tag="HeartbeatReply"):
    """The lease runs until sent_at + lease_s on the holder's clock; sent only after a later quorum round."""

    incarnation: Incarnation  # whose lease; the node's next life, which may get this, may have another clock
    sent_at: Seconds
    lease_s: Duration  # 0: not granted
    settled_epoch: Counted  # every live node has acknowledged this epoch
    leader: SomeNode
    leader_address: Address = ""
    map_epoch: Counted = 0  # the leader's: who stays behind it follows the map of a router that lags


class FollowMap(Message, tag="FollowMap"):
    """Send me the map, and its steps from then on; or the page at ``offset`` of the map that I am reading."""

    epoch: Counted  # of the sender's map
    page_of: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # epoch of the map that is being read; -1: the newest
    offset: Counted = 0


class MapPage(Message, tag="MapPage"):
    """Bytes of a whole map from ``offset`` on (``map_pages.py``); the next page is asked for with FollowMap."""

    epoch: Counted
    offset: Counted
    size: Counted  # of the whole map
    crc: U32  # CRC-32 of the whole map
    data: Annotated[bytes, Meta(max_length=MAP_PAGE_BYTES)]


class MapStep(Message, tag="MapStep"):
    """The next epoch; a step longer than a page comes as a whole map."""

    delta: MapDelta


class RequestChange(Message, tag="RequestChange"):
    """Storage or router to the leader: a compare-and-set on a partition's configuration."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    verb: Verb  # "drop_backup", "replace_copy", "add_joining", "promote_joining", "relinquish"
    node: NodeName


class Drain(Message, tag="Drain"):
    """Node to the leader: this life of mine stops, give its roles to others. It goes on meanwhile; the map answers."""


class Leave(Message, tag="Leave"):
    """Node to the leader: this life of mine is over, it decides nothing any more. Its lease need not run out."""


class Changed(Message, tag="Changed"):
    """The change is committed at this map epoch."""

    request: U64
    map_epoch: Counted


# --- routes ------------------------------------------------------------------------------------------------------


class GroupDestinations(msgspec.Struct, array_like=True):
    """Where a shared subscription's members are, with how many at each."""

    share: ShareText  # "share name/topic filter"
    edges: Annotated[list[tuple[NodeName, Members]], Meta(max_length=NODES_MAX)] = []
    partitions: Annotated[list[tuple[PartitionNumber, Members]], Meta(max_length=PARTITIONS_MAX)] = []


class Destinations(msgspec.Struct, array_like=True):
    """Answer for one topic: every delivery destination that a matching filter was registered for."""

    edges: Annotated[list[NodeName], Meta(max_length=NODES_MAX)] = []
    partitions: Annotated[list[PartitionNumber], Meta(max_length=PARTITIONS_MAX)] = []
    groups: Annotated[list[GroupDestinations], Meta(max_length=ROUTES_MAX)] = []


class RouteEntry(msgspec.Struct, array_like=True):
    """One filter of a sender; members is 0 for an ordinary filter, else the group's members there."""

    topic_filter: TopicText
    share_name: TopicText = ""
    members: Members = 0


class Resolve(Message, tag="Resolve"):
    """Edge to shard owner: destinations of these topics; ``kept``: a registration of cached topics at a new owner."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    topics: Annotated[list[TopicName], Meta(max_length=ROUTES_MAX)]
    kept: bool = False


class Resolved(Message, tag="Resolved"):
    """One answer per topic, in order, for the first ones that fit into a frame: the others are asked for again.

    Most topics of a question have the same destinations, so these stand here once. An answer is void if an invalidation
    that matches its topic came after the request left.
    """

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    destinations: Annotated[list[Destinations], Meta(max_length=ROUTES_MAX)]  # different ones
    answers: Annotated[list[U32], Meta(max_length=ROUTES_MAX)]  # of each topic: its place among the destinations


class AddRoutes(Message, tag="AddRoutes"):
    """Delivery node to shard owner. Answered when no edge holds a cached answer without these routes any more."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    partition: PartitionOrEdge  # -1: the sending edge itself is the destination
    sender_epoch: Incarnation  # partition_epoch, or the edge's incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]


class RoutesAdded(Message, tag="RoutesAdded"):
    """Every matching cached answer is gone everywhere. The sender's next life, whose numbers begin anew, may get it."""

    request: U64
    shard: ShardNumber
    shard_epoch: Epoch
    sender_epoch: Incarnation  # of the AddRoutes


class RemoveRoutes(Message, tag="RemoveRoutes"):
    """Lazy; sent only after the removal is committed (partition) or the UNSUBACK is written (edge)."""

    shard: ShardNumber
    shard_epoch: Epoch
    partition: PartitionOrEdge
    sender_epoch: Incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]


class SenderReport(msgspec.Struct, array_like=True):
    """All filters of the sending edge (partition -1) or of one partition: replaces everything older of that sender."""

    partition: PartitionOrEdge
    sender_epoch: Incarnation
    route_version: Counted
    routes: Annotated[list[RouteEntry], Meta(max_length=ROUTES_MAX)]
    first: bool = True  # a long report comes in pieces, in order
    last: bool = True


class ReportRoutes(Message, tag="ReportRoutes"):
    """Filters that a delivery node reports to a shard's new owner, of itself or of its partitions."""

    shard: ShardNumber
    shard_epoch: Epoch
    reports: Annotated[list[SenderReport], Meta(max_length=2 * PARTITIONS_MAX)]


class Invalidate(Message, tag="Invalidate"):
    """Owner to edge: drop every cached answer that these filters match. Honoured at any epoch."""

    number: U64
    shard: ShardNumber
    shard_epoch: Epoch
    topic_filters: Annotated[list[TopicText], Meta(max_length=ROUTES_MAX)]


class Invalidated(Message, tag="Invalidated"):
    """Edge to owner; after the retained writes resolved with the dropped answers are acknowledged."""

    number: U64
    shard: ShardNumber
    shard_epoch: Epoch  # of the Invalidate: the numbers begin anew with it


class Moved(Message, tag="Moved"):
    """Not mine, or not at that epoch: wait for this epoch and ask again. ``what`` is "shard" or "partition"."""

    request: U64
    what: Word
    number: ShardNumber
    epoch: Epoch  # the answerer's shard_epoch or partition_epoch
    map_epoch: Counted


# --- sessions ----------------------------------------------------------------------------------------------------


class Will(msgspec.Struct, array_like=True):
    """A will message as the client gave it; properties without length, Will Delay Interval taken out."""

    topic: TopicName
    payload: bytes
    qos: Qos = 0
    retain: bool = False
    properties: bytes = b""
    delay_s: U32 = 0
    expiry_s: U32 = 0xFFFFFFFF


class Subscription(msgspec.Struct, array_like=True):
    """One subscription of a session; topic_filter as the client wrote it, $share included."""

    topic_filter: TopicText
    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Qos = 0
    identifier: U32 = 0  # 0: none


class OpenSession(Message, tag="OpenSession"):
    """Edge to the client ID's partition: this connection claims the client ID."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    client_id: ClientId
    connection: U64  # the edge's number of the connection, never reused within an incarnation
    clean_start: bool
    expiry_s: U32  # 0: ephemeral; 0xFFFFFFFF: never
    will: Will | None = None
    protocol_version: Annotated[int, Meta(ge=3, le=5)] = 5
    receive_maximum: PacketIdentifier = 64  # outbound window
    waited_s: Seconds = 0.0  # since the edge received CONNECT
    answered_below: U64 = 0  # the edge has the answers of all its requests to this partition below this one
    withdrawn: bool = False  # the connection is gone: end it where it was opened before, do not open it now
    may_create: bool = True  # a stored session; False: only one that exists may be resumed or replaced


class SessionOpened(Message, tag="SessionOpened"):
    """The claim is committed. Pushes for a durable session follow behind this on the same link."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    reason_code: ReasonCode  # 0, or why not (CONNACK codes)
    owner_epoch: U64 = 0
    session: U64 = 0  # 0: ephemeral
    session_present: bool = False
    subscriptions: Annotated[list[Subscription], Meta(max_length=ROUTES_MAX)] = []
    inbound: Annotated[
        list[PacketIdentifier], Meta(max_length=65_536)
    ] = []  # QoS 2 packet identifiers not yet released


class CloseSession(Message, tag="CloseSession"):
    """The connection ended. ``clean``: DISCONNECT 0x00 was read, so the will is discarded."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    client_id: ClientId
    owner_epoch: U64
    clean: bool
    expiry_s: Annotated[int, Meta(ge=-1, lt=1 << 32)] = -1  # changed at DISCONNECT; -1: as before


class SessionClosed(Message, tag="SessionClosed"):
    """Committed (durable, or with a will), or forgotten (ephemeral).

    ``accepted``: the connection owned the client ID until now, so a DISCONNECT 0x00 discarded its will.
    """

    request: U64
    accepted: bool = False


class KickSession(Message, tag="KickSession"):
    """Storage to the edge of an older connection: another one owns the client ID; send 0x8E, read no more."""

    request: U64
    client_id: ClientId
    connection: U64
    owner_epoch: U64  # of the older connection


class SessionKicked(Message, tag="SessionKicked"):
    """The older connection is gone. ``clean``: it had sent DISCONNECT 0x00 before."""

    request: U64
    client_id: ClientId
    clean: bool = False
    owner_epoch: U64 = 0  # of the question: answers that took another way may come late


class Relay(Message, tag="Relay"):
    """Any node to a router: hand this on, for the direct link is down. KickSession and SessionKicked only."""

    node: NodeName
    incarnation: Incarnation  # to this life and no other
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]  # of a CONTROL frame


class Relayed(Message, tag="Relayed"):
    """A message that a router hands on, as sent by this life of a node."""

    node: NodeName
    incarnation: Incarnation
    message: Annotated[bytes, Meta(max_length=RELAYED_BYTES_MAX)]


class SubscribeSession(Message, tag="SubscribeSession"):
    """SUBSCRIBE of a durable session; answered when committed and its routes stand everywhere."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    subscriptions: Annotated[list[Subscription], Meta(max_length=ROUTES_MAX)]
    read: U64 = 0  # first request of the same SUBSCRIBE, which names the retained read that follows; 0: this one


class SessionSubscribed(Message, tag="SessionSubscribed"):
    """One reason code per subscription; ``existed`` tells which filters the session had before (retain handling 1)."""

    request: U64
    reason_codes: Annotated[list[ReasonCode], Meta(max_length=ROUTES_MAX)]
    existed: Annotated[list[bool], Meta(max_length=ROUTES_MAX)]


class UnsubscribeSession(Message, tag="UnsubscribeSession"):
    """UNSUBSCRIBE of a durable session."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    topic_filters: Annotated[list[TopicText], Meta(max_length=ROUTES_MAX)]


class SessionUnsubscribed(Message, tag="SessionUnsubscribed"):
    """One reason code per filter (0x00 or 0x11)."""

    request: U64
    reason_codes: Annotated[list[ReasonCode], Meta(max_length=ROUTES_MAX)]


class SharePick(msgspec.Struct, array_like=True):
    """Where the copy of one QoS 2 message for one shared group goes: a partition, or an edge."""

    share: ShareBytes  # "share name/topic filter"
    partition: PartitionOrEdge  # -1: an edge
    edge: SomeNode = ""
    incarnation: Incarnation = 0
    attempt: U32 = 0  # a higher one replaces a lower one: its destination refused, or was an edge and died


class RecordInbound(Message, tag="RecordInbound"):
    """QoS 2 PUBLISH of a durable publisher, before any fan-out; the same origin and picks again until released."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    packet_identifier: PacketIdentifier
    picks: Annotated[
        list[SharePick], Meta(max_length=ROUTES_MAX)
    ] = []  # kept where none of that group and attempt, or of a higher one, is recorded


class InboundRecorded(Message, tag="InboundRecorded"):
    """The origin is (session, counter); committed."""

    request: U64
    counter: U64
    reason_code: ReasonCode = 0
    picks: Annotated[
        list[SharePick], Meta(max_length=ROUTES_MAX)
    ] = []  # all that are recorded: send there, wherever else one would pick now


class ReleaseInbound(Message, tag="ReleaseInbound"):
    """PUBREL, or a PUBREC of 0x80 and above is about to leave: delete the record durably first."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    packet_identifier: PacketIdentifier


class InboundReleased(Message, tag="InboundReleased"):
    """Committed. ``known``: the identifier had a record."""

    request: U64
    known: bool


class RetainedMessage(msgspec.Struct, array_like=True):
    """One register as read: committed state with its origin."""

    topic: TopicName
    payload: bytes
    qos: Qos
    properties: bytes = b""
    expiry_s: U32 = 0xFFFFFFFF  # remaining
    origin_kind: ReasonCode = 0
    origin_a: U64 = 0
    origin_b: U64 = 0


class ReadRetained(Message, tag="ReadRetained"):
    """Edge to a partition's primary: registers that a filter matches, sorted by topic, after a topic."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    topic_filter: TopicText
    after: TopicText = ""
    limit: Counted = 100
    waits_s: Seconds = 60.0  # so long the edge waits for it


class ReadRetainedAll(Message, tag="ReadRetainedAll"):
    """Edge to a storage node: the first page of every partition that it is the primary of, for a wildcard filter."""

    request: U64
    topic_filter: TopicText
    limit: Counted = 100
    waits_s: Seconds = 60.0


class RetainedPage(Message, tag="RetainedPage"):
    """One partition's registers; ``more``: ask that partition again after the last topic."""

    request: U64
    messages: Annotated[list[RetainedMessage], Meta(max_length=ROUTES_MAX)]
    more: bool = False
    partition: PartitionOrEdge = -1


class RetainedNone(Message, tag="RetainedNone"):
    """These partitions of the asked node have no register that matches."""

    request: U64
    partitions: Annotated[list[PartitionNumber], Meta(max_length=PARTITIONS_MAX)]


class DeliverRetained(Message, tag="DeliverRetained"):
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
    retain_flags: Annotated[list[bool], Meta(max_length=ROUTES_MAX)]
    done: bool = True
    read: U64 = 0  # request of the SubscribeSession that began the read; this one's own: it begins (again) here


class RetainedDelivered(Message, tag="RetainedDelivered"):
    """Committed; or not done (``again``): the read began under a former primary."""

    request: U64
    again: bool = False


class PollClaims(Message, tag="PollClaims"):
    """New primary to every live edge: which connections of this partition do you hold?"""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch


class Claim(msgspec.Struct, array_like=True):
    """One live connection of an edge, and what is open on it."""

    client_id: ClientId
    connection: U64
    owner_epoch: U64
    session: U64 = 0
    # (packet identifier, partition_epoch, session_seq) really written
    outbound: Annotated[list[tuple[PacketIdentifier, Epoch, U64]], Meta(max_length=65_536)] = []


class Claims(Message, tag="Claims"):
    """After this the edge takes no SessionOpened of a lower partition_epoch. Many come in pieces, in order."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    claims: Annotated[list[Claim], Meta(max_length=MEMBERS_MAX)]
    first: bool = True  # what came before it is void
    last: bool = True  # only now nobody else is claimed


class FireWill(Message, tag="FireWill"):
    """Primary to one live edge: fan this out; repeated to another edge until one says WillFired."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    op_index: OpIndex
    will: Will
    client_id: ClientId = ""


class WillFired(Message, tag="WillFired"):
    """The fan-out is complete."""

    request: U64
    partition: PartitionNumber
    op_index: OpIndex


class HandOn(Message, tag="HandOn"):
    """Primary to one live edge: what an ended member of a group did not acknowledge goes to another member.

    Without ``pick`` the edge answers where it would go; that is recorded and comes back, and then the edge sends it
    there. Repeated, with the same origin, until HandedOn says that it is done.
    """

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    number: U64  # of the partition's messages that are handed on; part of the origin
    share: ShareBytes
    message: Will
    pick: SharePick | None = None


class HandedOn(Message, tag="HandedOn"):
    """With ``pick``: record that the message goes there. Without: a member has it, or the group has ended."""

    request: U64
    partition: PartitionNumber
    number: U64
    pick: SharePick | None = None


# --- operators ---------------------------------------------------------------------------------------------------


class Admin(Message, tag="Admin"):
    """Operator to a node: one verb of the command line ("ring show", "cluster status", ...).

    ``order`` is the same in each repeat of a question, so that the routers carry out once what it asks for.
    ``repeated``: a router may have taken it already.
    """

    request: U64
    verb: Verb
    arguments: Annotated[dict[Verb, object], Meta(max_length=64)] = {}
    order: Verb = ""
    repeated: bool = False


class AdminReply(Message, tag="AdminReply"):
    """``error`` is one line: what, where, what to do. ``result`` is what ``-o json`` prints."""

    request: U64
    ok: bool
    result: object = None
    error: Detail = ""
    exit_code: ReasonCode = 0


Control = (
    Register
    | Registered
    | Refused
    | Heartbeat
    | HeartbeatReply
    | FollowMap
    | MapPage
    | MapStep
    | RequestChange
    | Drain
    | Leave
    | Changed
    | Resolve
    | Resolved
    | AddRoutes
    | RoutesAdded
    | RemoveRoutes
    | ReportRoutes
    | Invalidate
    | Invalidated
    | Moved
    | OpenSession
    | SessionOpened
    | CloseSession
    | SessionClosed
    | KickSession
    | SessionKicked
    | Relay
    | Relayed
    | SubscribeSession
    | SessionSubscribed
    | UnsubscribeSession
    | SessionUnsubscribed
    | RecordInbound
    | InboundRecorded
    | ReleaseInbound
    | InboundReleased
    | ReadRetained
    | ReadRetainedAll
    | RetainedPage
    | RetainedNone
    | DeliverRetained
    | RetainedDelivered
    | PollClaims
    | Claims
    | FireWill
    | WillFired
    | HandOn
    | HandedOn
    | Admin
    | AdminReply
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)
_read: Callable[[Payload], Control] = strictly(_decoder.decode, "CONTROL")


def encode_control(message: Control) -> bytes:
    """Return the payload of a CONTROL frame."""
    return _encoder.encode(message)


def decode_control(payload: Payload) -> Control:
    """Return the message of a CONTROL frame.

    Raises:
        Unreadable: The payload is not one of the messages (an unknown tag included), or a value is out of its range.
    """
    return _read(payload)
