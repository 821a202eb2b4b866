"""Control messages between nodes: one msgspec struct each, tagged with its name, in CONTROL frames.

Per-message traffic is not here (``wire/batches.py``). A request carries ``request``, a number of its sender, and the
answer repeats it. Whatever depends on placement carries the epoch it was made under; the receiver acts only at its own
current one and otherwise answers ``Moved`` with the newer. Rules: docs/adr/0003 (map, leases), 0004 (origins).

``owner_epoch`` is one integer, partition_epoch << 32 | counter, so that it orders as the pair does. A session number is
partition << 48 | counter and is never used again. Lists are batches: all of one round to one node leaves together.
"""

import msgspec

from wire.cluster_map import ClusterMap, MapDelta, NodeEntry

__all__ = ["Control", "decode_control", "encode_control"]


class Message(msgspec.Struct, tag=True, omit_defaults=True):
    """Root of the control messages; the tag is the class name."""


# --- nodes and routers: registration, leases, the map ------------------------------------------------------------


class Register(Message):
    """Any node to a router: let this incarnation in. A committed step; it ends the former incarnation."""

    request: int
    entry: NodeEntry
    whole: bool = True  # storage: the store proved itself whole ("acknowledged up to" marker)
    ended_incarnation: int = 0  # proof from the same host that this former process is gone; 0: none


class Registered(Message):
    """The incarnation stands in the map at this epoch. The answer may come to the next life of its node."""

    request: int
    incarnation: int
    map_epoch: int


class Refused(Message):
    """Why a request was not carried out, in one line; leader_hint where another router would do it."""

    request: int
    code: str  # "not_leader", "lease", "unavailable", "invalid"
    detail: str
    leader_hint: str = ""  # node id
    leader_address: str = ""


class Heartbeat(Message):
    """Node to leader, only while the node's main loop makes rounds. ``sent_at`` is the node's own clock, echoed."""

    node: str
    incarnation: int
    sent_at: float
    map_epoch: int  # acknowledged: every effect of this epoch is in force at the sender
    unreachable: list[str] = []  # peers whose link is down or whose oldest frame was not taken for L
    sizes: dict[int, tuple[int, int]] = {}  # of own partitions or shards: (keys, bytes); only when it changed


class HeartbeatReply(Message):
    """The lease runs until sent_at + lease_s on the holder's clock; sent only after a later quorum round."""

    incarnation: int  # whose lease; the node's next life, which may get this, may have another clock
    sent_at: float
    lease_s: float  # 0: not granted
    settled_epoch: int  # every live node has acknowledged this epoch
    leader: str
    leader_address: str = ""
    map_epoch: int = 0  # the leader's: who stays behind it follows the map of a router that lags


class FollowMap(Message):
    """Send me the map from this epoch on (0: a snapshot first)."""

    epoch: int


class MapSnapshot(Message):
    """A whole map."""

    map: ClusterMap


class MapStep(Message):
    """The next epoch."""

    delta: MapDelta


class RequestChange(Message):
    """Storage or router to the leader: a compare-and-set on a partition's configuration."""

    request: int
    partition: int
    partition_epoch: int
    verb: str  # "drop_backup", "replace_copy", "add_joining", "promote_joining", "relinquish"
    node: str


class Changed(Message):
    """The change is committed at this map epoch."""

    request: int
    map_epoch: int


# --- routes ------------------------------------------------------------------------------------------------------


class GroupDestinations(msgspec.Struct, array_like=True):
    """Where a shared subscription's members are, with how many at each."""

    share: str  # "share name/topic filter"
    edges: list[tuple[str, int]] = []
    partitions: list[tuple[int, int]] = []


class Destinations(msgspec.Struct, array_like=True):
    """Answer for one topic: every delivery destination that a matching filter was registered for."""

    edges: list[str] = []
    partitions: list[int] = []
    groups: list[GroupDestinations] = []


class RouteEntry(msgspec.Struct, array_like=True):
    """One filter of a sender; members is 0 for an ordinary filter, else the group's members there."""

    topic_filter: str
    share_name: str = ""
    members: int = 0


class Resolve(Message):
    """Edge to shard owner: destinations of these topics; ``kept``: a registration of cached topics at a new owner."""

    request: int
    shard: int
    shard_epoch: int
    topics: list[str]
    kept: bool = False


class Resolved(Message):
    """One answer per topic, in order. Void if an invalidation that matches the topic came after the request left."""

    request: int
    shard: int
    shard_epoch: int
    answers: list[Destinations]


class AddRoutes(Message):
    """Delivery node to shard owner. Answered when no edge holds a cached answer without these routes any more."""

    request: int
    shard: int
    shard_epoch: int
    partition: int  # -1: the sending edge itself is the destination
    sender_epoch: int  # partition_epoch, or the edge's incarnation
    route_version: int
    routes: list[RouteEntry]


class RoutesAdded(Message):
    """Every matching cached answer is gone everywhere. The sender's next life, whose numbers begin anew, may get it."""

    request: int
    shard: int
    shard_epoch: int
    sender_epoch: int  # of the AddRoutes


class RemoveRoutes(Message):
    """Lazy; sent only after the removal is committed (partition) or the UNSUBACK is written (edge)."""

    shard: int
    shard_epoch: int
    partition: int
    sender_epoch: int
    route_version: int
    routes: list[RouteEntry]


class SenderReport(msgspec.Struct, array_like=True):
    """All filters of the sending edge (partition -1) or of one partition: replaces everything older of that sender."""

    partition: int
    sender_epoch: int
    route_version: int
    routes: list[RouteEntry]
    first: bool = True  # a long report comes in pieces, in order
    last: bool = True


class ReportRoutes(Message):
    """What a delivery node wants a shard's new owner to know, of itself or of its partitions."""

    shard: int
    shard_epoch: int
    reports: list[SenderReport]


class Invalidate(Message):
    """Owner to edge: drop every cached answer that these filters match. Honoured at any epoch."""

    number: int
    shard: int
    shard_epoch: int
    topic_filters: list[str]


class Invalidated(Message):
    """Edge to owner; after the retained writes resolved with the dropped answers are acknowledged."""

    number: int
    shard: int
    shard_epoch: int  # of the Invalidate: the numbers begin anew with it


class Moved(Message):
    """Not mine, or not at that epoch: wait for this epoch and ask again. ``what`` is "shard" or "partition"."""

    request: int
    what: str
    number: int
    epoch: int  # the answerer's shard_epoch or partition_epoch
    map_epoch: int


# --- sessions ----------------------------------------------------------------------------------------------------


class Will(msgspec.Struct, array_like=True):
    """A will message as the client gave it; properties without length, Will Delay Interval taken out."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    delay_s: int = 0
    expiry_s: int = 0xFFFFFFFF


class Subscription(msgspec.Struct, array_like=True):
    """One subscription of a session; topic_filter as the client wrote it, $share included."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0  # 0: none


class OpenSession(Message):
    """Edge to the client ID's partition: this connection claims the client ID."""

    request: int
    partition: int
    partition_epoch: int
    client_id: str
    connection: int  # the edge's number of the connection, never reused within an incarnation
    clean_start: bool
    expiry_s: int  # 0: ephemeral; 0xFFFFFFFF: never
    will: Will | None = None
    protocol_version: int = 5
    receive_maximum: int = 64  # outbound window
    waited_s: float = 0.0  # since the edge received CONNECT
    answered_below: int = 0  # the edge has the answers of all its requests to this partition below this one
    withdrawn: bool = False  # the connection is gone: end it where it was opened before, do not open it now


class SessionOpened(Message):
    """The claim is committed. Pushes for a durable session follow behind this on the same link."""

    request: int
    partition: int
    partition_epoch: int
    reason_code: int  # 0, or why not (CONNACK codes)
    owner_epoch: int = 0
    session: int = 0  # 0: ephemeral
    session_present: bool = False
    subscriptions: list[Subscription] = []
    inbound: list[int] = []  # QoS 2 packet identifiers not yet released


class CloseSession(Message):
    """The connection ended. ``clean``: DISCONNECT 0x00 was read, so the will is discarded."""

    request: int
    partition: int
    partition_epoch: int
    client_id: str
    owner_epoch: int
    clean: bool
    expiry_s: int = -1  # changed at DISCONNECT; -1: as before


class SessionClosed(Message):
    """Committed (durable, or with a will), or forgotten (ephemeral).

    ``accepted``: the connection owned the client ID until now, so a DISCONNECT 0x00 discarded its will.
    """

    request: int
    accepted: bool = False


class KickSession(Message):
    """Storage to the edge of an older connection: another one owns the client ID; send 0x8E, read no more."""

    request: int
    client_id: str
    connection: int
    owner_epoch: int  # of the older connection


class SessionKicked(Message):
    """The older connection is gone. ``clean``: it had sent DISCONNECT 0x00 before."""

    request: int
    client_id: str
    clean: bool = False
    owner_epoch: int = 0  # of the question: answers that took another way may come late


class Relay(Message):
    """Any node to a router: hand this on, for the direct link is down. KickSession and SessionKicked only."""

    node: str
    incarnation: int  # to this life and no other
    message: bytes  # of a CONTROL frame


class Relayed(Message):
    """What a router hands on, as sent by this life of a node."""

    node: str
    incarnation: int
    message: bytes


class SubscribeSession(Message):
    """SUBSCRIBE of a durable session; answered when committed and its routes stand everywhere."""

    request: int
    partition: int
    partition_epoch: int
    session: int
    owner_epoch: int
    subscriptions: list[Subscription]


class SessionSubscribed(Message):
    """One reason code per subscription; ``existed`` tells which filters the session had before (retain handling 1)."""

    request: int
    reason_codes: list[int]
    existed: list[bool]


class UnsubscribeSession(Message):
    """UNSUBSCRIBE of a durable session."""

    request: int
    partition: int
    partition_epoch: int
    session: int
    owner_epoch: int
    topic_filters: list[str]


class SessionUnsubscribed(Message):
    """One reason code per filter (0x00 or 0x11)."""

    request: int
    reason_codes: list[int]


class SharePick(msgspec.Struct, array_like=True):
    """Where the copy of one QoS 2 message for one shared group goes: a partition, or an edge."""

    share: bytes  # "share name/topic filter"
    partition: int  # -1: an edge
    edge: str = ""
    incarnation: int = 0
    attempt: int = 0  # a higher one replaces a lower one: its destination refused, or was an edge and died


class RecordInbound(Message):
    """QoS 2 PUBLISH of a durable publisher, before any fan-out; the same origin and picks again until released."""

    request: int
    partition: int
    partition_epoch: int
    session: int
    owner_epoch: int
    packet_identifier: int
    picks: list[SharePick] = []  # kept where none of that group and attempt, or of a higher one, is recorded


class InboundRecorded(Message):
    """The origin is (session, counter); committed."""

    request: int
    counter: int
    reason_code: int = 0
    picks: list[SharePick] = []  # all that are recorded: send there, wherever else one would pick now


class ReleaseInbound(Message):
    """PUBREL, or a PUBREC of 0x80 and above is about to leave: delete the record durably first."""

    request: int
    partition: int
    partition_epoch: int
    session: int
    owner_epoch: int
    packet_identifier: int


class InboundReleased(Message):
    """Committed. ``known``: the identifier had a record."""

    request: int
    known: bool


class RetainedMessage(msgspec.Struct, array_like=True):
    """One register as read: committed state with its origin."""

    topic: str
    payload: bytes
    qos: int
    properties: bytes = b""
    expiry_s: int = 0xFFFFFFFF  # remaining
    origin_kind: int = 0
    origin_a: int = 0
    origin_b: int = 0


class ReadRetained(Message):
    """Edge to a partition's primary: registers that a filter matches, sorted by topic, after a topic."""

    request: int
    partition: int
    partition_epoch: int
    topic_filter: str
    after: str = ""
    limit: int = 100


class ReadRetainedAll(Message):
    """Edge to a storage node: the first page of every partition that it is the primary of, for a wildcard filter."""

    request: int
    topic_filter: str
    limit: int = 100


class RetainedPage(Message):
    """One partition's registers; ``more``: ask that partition again after the last topic."""

    request: int
    messages: list[RetainedMessage]
    more: bool = False
    partition: int = -1


class RetainedNone(Message):
    """These partitions of the asked node have no register that matches."""

    request: int
    partitions: list[int]


class DeliverRetained(Message):
    """Retained copies for a durable session: enqueue them at the session's primary, before the held live messages.

    The last one (``done``) ends the holding of live messages of its ``read``.
    """

    request: int
    partition: int
    partition_epoch: int
    session: int
    owner_epoch: int
    messages: list[RetainedMessage]  # qos already limited, properties with the subscription identifier
    retain_flags: list[bool]
    done: bool = True
    read: int = 0  # request of the SubscribeSession that began the read; this one's own: it begins (again) here


class RetainedDelivered(Message):
    """Committed; or not done (``again``): the read began under a former primary."""

    request: int
    again: bool = False


class PollClaims(Message):
    """New primary to every live edge: which connections of this partition do you hold?"""

    request: int
    partition: int
    partition_epoch: int


class Claim(msgspec.Struct, array_like=True):
    """One live connection of an edge, and what is open on it."""

    client_id: str
    connection: int
    owner_epoch: int
    session: int = 0
    outbound: list[tuple[int, int, int]] = []  # (packet identifier, partition_epoch, session_seq) really written


class Claims(Message):
    """After this the edge takes no SessionOpened of a lower partition_epoch."""

    request: int
    partition: int
    partition_epoch: int
    claims: list[Claim]


class FireWill(Message):
    """Primary to one live edge: fan this out; repeated to another edge until one says WillFired."""

    request: int
    partition: int
    partition_epoch: int
    op_index: int
    will: Will
    client_id: str = ""


class WillFired(Message):
    """The fan-out is complete."""

    request: int
    partition: int
    op_index: int


class HandOn(Message):
    """Primary to one live edge: what an ended member of a group did not acknowledge goes to another member.

    Without ``pick`` the edge answers where it would go; that is recorded and comes back, and then the edge sends it
    there. Repeated, with the same origin, until HandedOn says that it is done.
    """

    request: int
    partition: int
    partition_epoch: int
    number: int  # of the partition's messages that are handed on; part of the origin
    share: bytes
    message: Will
    pick: SharePick | None = None


class HandedOn(Message):
    """With ``pick``: record that the message goes there. Without: a member has it, or the group has ended."""

    request: int
    partition: int
    number: int
    pick: SharePick | None = None


# --- operators ---------------------------------------------------------------------------------------------------


class Admin(Message):
    """Operator to a node: one verb of the command line ("ring show", "cluster status", ...)."""

    request: int
    verb: str
    arguments: dict[str, object] = {}


class AdminReply(Message):
    """``error`` is one line: what, where, what to do. ``result`` is what ``-o json`` prints."""

    request: int
    ok: bool
    result: object = None
    error: str = ""
    exit_code: int = 0


Control = (
    Register
    | Registered
    | Refused
    | Heartbeat
    | HeartbeatReply
    | FollowMap
    | MapSnapshot
    | MapStep
    | RequestChange
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


def encode_control(message: Control) -> bytes:
    """Return the payload of a CONTROL frame."""
    return _encoder.encode(message)


def decode_control(payload: bytes) -> Control:
    """Return the message of a CONTROL frame.

    Raises:
        msgspec.ValidationError: If the payload is not one of the messages (an unknown tag included).
    """
    try:
        return _decoder.decode(payload)
    except UnicodeDecodeError as error:  # msgspec lets the one of a tag or key through
        raise msgspec.ValidationError(str(error)) from None
