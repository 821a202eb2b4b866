"""The records of the loop: connections, routes, messages, peers. Data only: the sibling files act.

Each class is a C struct when compiled (``state.pxd`` has the C types) and an ordinary class otherwise. The edge core
reads attributes without a leading underscore. It changes them through ``BrokerLoop`` only, unless the attribute's
comment allows it. Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cython

from edge.loop.buffers import Buffer, Pool
from edge.loop.counters import Counters
from edge.loop.durations import Durations
from edge.loop.read_ahead import ReadAhead
from edge.loop.round_trips import RoundTrips
from edge.loop.shared_rate_limits import SharedRateLimit
from wire.links.allowed import may_send
from wire.links.link import LinkCore
from wire.messages.batches import NO_EXPIRY
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, first_number
from wire.messages.origin_window import OriginWindow

if TYPE_CHECKING:
    from edge.loop.options import ConnOptions, HotLimits, StreamFilter

__all__ = [
    "CLIENT",
    "LINK",
    "LISTENER",
    "InboundPublish",
    "LoopConnection",
    "LoopPeer",
    "PendingAck",
    "Remote",
    "Route",
    "ShareGroup",
    "Sub",
]

CLIENT, LINK, LISTENER = 0, 1, 2  # LoopConnection.kind

if not cython.compiled:  # compiled, these are C constants: state.pxd
    PARK_HANDLER = 1  # a Handler call must answer
    PARK_SLOW = 2  # subscribers are above the output limit
    PARK_PEER = 4  # a link or the outboxes are full
    PARK_QUOTA = 8  # too many messages of the client are not finished
    PARK_RATE = 32  # it published more than publish_rate_max allows
    PARK_OUTPUT = 16  # it does not read the answers that it requested
    PARK_PIPELINE = 64  # earlier retained messages are not stored yet
    UNREGISTERED = 0x40000000  # LoopConnection.armed before the loop has registered it
    # LoopConnection.received: without PUBREC yet; PUBREL received and not recorded yet. Else PUBREC's code.
    ANSWER_PENDING, RELEASE_PENDING = -1, -2


class LoopConnection:
    """One socket: a client or a link. The core creates it by ``BrokerLoop.attach`` only.

    Attributes:
        fd: Its descriptor, -1 in simulation and after the close.
        number: Counts connections of this loop from 1, never reused: compare it after a wait (``closed`` works too).
        context: The core's own record; the core may set it at any time.
        version: 3, 4 or 5 once a session is open, 0 before.
        session: Number of the durable session, 0 for an ephemeral one; with owner_epoch.
        closed: No later packet is read or written.
    """

    def __init__(self, fd: cython.int, kind: cython.int, number: cython.longlong) -> None:
        self.context: object = None
        self.fd = fd
        self.kind = kind
        self.is_link = kind == LINK
        self.version = 0
        self.closed = False
        self.parked = 0  # PARK_* bits: not parsed while any is set
        self.number = self.authz_key = number  # the latter: key of its own verdicts on Routes
        self.slot = 0  # index in LoopState.conns
        self.session = self.owner_epoch = 0
        self.parsing = self.ready = self.dirty = False  # ready: in LoopState.ready; dirty: in the chain of dirty_first
        self.next_dirty: LoopConnection | None = None
        self.hearing, self.pipelining = True, False  # false after end of file; retained messages are in flight
        self.half_closed = False
        self.lingering = False  # in LoopState.lingering
        self.partial = b""  # bytes read and not parsed
        self.needed = 0  # length of the packet that partial begins, 0 if unknown
        self.ahead: ReadAhead | None = None  # bytes read behind partial
        self.packet_bytes_max = 0
        self.last_topic = b""
        self.last_route: Route | None = None
        self.last_version = -1  # routes_version of last_route
        self.permissions: dict[bytes, int] | None = None
        self.rights_bit = 0  # of its class of rights, in Route.decided and Route.allowed; 0: none
        self.rights_epoch = 0  # LoopState.rights_epoch of its bit and verdicts
        self.judge_pushes = False  # the core authorizes each PUSH before it is written
        self.traced = False  # a trace includes it; set by the core, like that of a Route
        self.dropped = self.denied_ns = 0  # messages to it or of it; time of the latest reported denial
        self.aliases: list[bytes | None] | None = None
        self.alias_max = 0
        self.quota = 0  # QoS 1/2 PUBLISH of the client that are not finished
        self.quota_max = 0
        self.fresh = self.excess = False  # a new session that has resent no message; was above quota_max lately
        self.excess_bytes = 0  # read above it and not answered by us
        self.excess_since_ns = 0  # since when its excess waits for its PUBRELs alone, 0 if it does not
        self.received: dict[int, int] | None = None  # QoS 2 identifiers received on this connection, before PUBCOMP
        self.resumed = False  # a durable session: it may have identifiers of earlier connections
        self.refused: dict[bytes, tuple[int, int]] | None = None  # topics refused by a full disk: first time, last time
        self.ack_queue: deque[PendingAck] | None = None  # messages whose acknowledgement has not been written, in order
        self.origins: dict[int, bytes] | None = None  # by identifier, for its PUBACK or PUBREC; None: not requested
        self.retain_available, self.qos_max = True, 2
        self.out: Buffer | None = None
        # high: in LoopState.high, its output is above the limit; reports_capacity: to ``Handler.has_room``, once
        self.has_acks = self.lagging = self.high = self.reports_capacity = False
        self.waits = 0  # number of subscribers that this publisher waits for
        self.waiters: list[LoopConnection] | None = None
        self.high_since_ns = 0
        self.client_packet_max = 0
        self.outbound: OutboundWindow | None = None
        self.window = 0  # QoS 1/2 packets that may be unacknowledged at the client
        self.outbound_aliases: dict[bytes, int] | None = None  # topic: alias known to the client; None: not allowed
        self.outbound_aliases_max = 0
        self.heard_ns = 0
        self.silence_ns = self.connect_ns = 0  # timeouts of silence, and of the first packet; 0: none
        # Times until which its messages, its bytes and the core's charges have consumed its rates.
        self.next_message_ns = self.next_byte_ns = self.next_filter_ns = 0
        self.metered = 0  # whether the core counts its bytes
        self.publish_gap_ns = self.byte_gap_ps = 0  # of its rates, 0: none
        self.purse: SharedRateLimit | None = None  # shared with other clients of its address
        self.packet_begun_ns = self.close_at_ns = self.why = 0  # first: arrival of the packet that partial begins
        self.peer: LoopPeer | None = None  # of a link; of a durable session its primary
        self.push_epoch = 0  # highest partition_epoch of a PUSH: a former primary's are outdated
        self.tls: Any = None  # OpenSSL's object for the socket, as inside ``ssl.SSLSocket``
        self.filter: StreamFilter | None = None
        self.options: ConnOptions | None = None  # until the loop has read its first bytes and set up its TLS
        self.armed = UNREGISTERED  # epoll events
        self.tls_state = 0  # 0 none, 1 first bytes, 2 handshake reads, 3 handshake writes, 4 done
        self.unsent: bytes | None = None
        self.written = self.wrapped = 0  # bytes of its output: sent, and passed to a filter as ``unsent``
        self.held_bytes = 0  # its part of LoopState.held_bytes


class Sub:
    """One local ephemeral subscriber of a Route: one connection with its matching subscriptions [MQTT-3.3.4-2].

    It gets one copy of a message, or those of ``copies``, where its subscriptions overlap.
    """

    def __init__(
        self,
        conn: LoopConnection,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        held: bool = False,
        own_only: bool = False,
        copies: "tuple[Sub, ...]" = (),
    ) -> None:
        """Create a subscriber.

        Args:
            conn: The receiver; skipped once closed.
            qos: Highest granted QoS of the matching subscriptions.
            no_local: Not to its own publisher [MQTT-3.8.3-3].
            retain_as_published: Keep the RETAIN flag [MQTT-3.3.1-13].
            identifiers: Encoded Subscription Identifier properties (0x0B, varint, ...), all of them [MQTT-3.3.4-4].
            held: Its copies are passed to ``Handler.hold``, while retained messages are read for it.
            own_only: Only messages of its own connection: another copy, which is No Local, covers the others.
            copies: Several copies of each message, by the options of each of these.
        """
        self.conn = conn
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.held = held
        self.own_only = own_only
        self.copies = copies
        self.conditional = no_local or held or own_only or bool(copies)  # more than one unconditional copy


class Remote:
    """One remote destination selected by ``Handler.pick``: an edge, or a storage partition."""

    def __init__(self, peer: "LoopPeer | None", partition: int, share: bytes, attempt: int = 0) -> None:
        """``peer`` for an edge (partition -1), else None and the partition; share: b"share name/topic filter".

        attempt: The core's, of a recorded pick.
        """
        self.peer = peer
        self.partition = partition
        self.share = share
        self.attempt = attempt


class ShareGroup:
    """A shared group of a Route: ``Handler.pick`` selects. The core subclasses it and sets ``share``."""

    def __init__(self) -> None:
        self.share = b""  # b"share name/topic filter"


class Route:
    """The destinations of one topic's messages. Immutable; the core replaces it after subscriptions or peers changed.

    A topic closed to all clients has a ``reason_code``. The core handles clients' messages on a ``named`` one.
    """

    def __init__(
        self,
        topic: bytes,
        subs: "tuple[Sub, ...]" = (),
        edges: "tuple[LoopPeer, ...]" = (),
        partitions: tuple[int, ...] = (),
        groups: tuple[ShareGroup, ...] = (),
        reason_code: int = 0,
        audience: object = None,
    ) -> None:
        """Create a route.

        Args:
            topic: The topic name, valid UTF-8.
            subs: Local ephemeral subscribers, one per connection; neighbours share an encoding, so that a run is
                converted once per class. Routes with equal subscribers share one tuple.
            edges: Other edges with ephemeral subscribers; never this one.
            partitions: Partitions with durable subscribers; their primaries are found when a message is sent.
            groups: Shared groups, one pick each per message.
            reason_code: 0x80 or more refuses messages: QoS 0 dropped, v5 acknowledged with it, v3 acknowledged.
            audience: The core's record of ``subs``, which lives as long as a Route uses them.
        """
        self.topic = topic
        self.subs = subs
        self.edges = edges
        self.partitions = partitions
        self.groups = groups
        self.reason_code = reason_code
        self.remote = bool(edges or partitions or groups)
        self.empty = not (subs or edges or partitions or groups)
        self.copies = len(subs)  # of a message, for ``subs``; the core sets a higher number
        self.audience = audience
        self.named = False
        self.traced = False  # a trace includes the topic
        self.generation = 0  # LoopState.generation of its last check; an older one: Handler.refresh
        self.targets: list[tuple[LoopPeer, tuple[int, ...]]] = []  # partitions by primary
        self.targets_version = -1  # LoopState.primaries_version of targets
        self.recorded = b""  # its part of ledger rows, once there is one
        self.decided = 0  # a bit for each class of rights with a decision about plain publishing here
        self.allowed = 0  # a bit for each class that may publish
        self.cached_authz_key = self.cached_verdict = 0  # of the last client with its own decision
        self.rights_epoch = self.uses = 0  # LoopState.rights_epoch of all of them; uses by messages, up to 2


class InboundPublish:
    """A PUBLISH of the core: received by ``Handler.inbound``, or created (will, $SYS, HTTP)."""

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        version: int = 5,
        expiry_s: int = NO_EXPIRY,
        packet_identifier: int = 0,
        dup: bool = False,
        conn: LoopConnection | None = None,
    ) -> None:
        """properties: MQTT 5 block without length, Topic Alias and Message Expiry Interval; b"" of a v3 client."""
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.version = version
        self.expiry_s = expiry_s
        self.packet_identifier = packet_identifier
        self.dup = dup
        self.conn = conn
        self.traced = False
        self.reserved_ack: PendingAck | None = None


class BackloggedMessage:
    """A message that is pending for the windows of some clients."""

    def __init__(self, count: cython.Py_ssize_t) -> None:
        self.bytes = count
        self.holders = 0
        self.origin: tuple[int, int, int] | None = None  # of a traced message


# Packet, positions of its identifier and its expiry (0: none), arrival; share and record of a shared group's copy;
# record of held bytes.
PendingMessage = tuple[bytes, int, int, int, bytes, bytes, BackloggedMessage]


class OutboundWindow:
    """QoS 1/2 to one client: created with its first message.

    Ephemeral: ``states`` and ``identifiers`` are indexed by packet identifier & mask. Durable: ``pushes``.
    """

    def __init__(self, window: cython.int) -> None:
        slots: cython.int = 1
        while slots < 2 * window:
            slots *= 2
        self.window = window
        self.mask = slots - 1
        self.next_identifier, self.inflight = 1, 0
        self.states = bytearray(slots)
        self.identifiers = bytearray(2 * slots)  # u16 each
        self.pending: deque[PendingMessage] | None = None
        self.picks: dict[int, tuple[bytes, bytes, int]] | None = None  # identifier: share, record, arrival
        self.pending_bytes = self.picks_bytes = 0  # second: of their records, pending ones included
        self.trips = RoundTrips()
        self.pushes: dict[int, tuple[int, int, int]] | None = None  # identifier: session_seq, partition_epoch, state
        self.answered: dict[int, int] | None = None  # session_seq: last packet type of the client
        self.unsent_acks: deque[bytes] | None = None
        self.traced: dict[int, Any] | None = None  # of traced packets; identifier: topic, origin, session_seq, marked


class PendingAck:
    """An accepted QoS 1/2 message that destinations have not acknowledged yet.

    Attributes:
        tag: This edge's counter for it, from 1.
        waiting: Number of unacknowledged destinations.
        reason_code: Worst of the answers so far; 0x10 without subscribers.
    """

    def __init__(
        self, tag: cython.ulonglong, qos: cython.int, conn: LoopConnection | None, packet_identifier: cython.int
    ) -> None:
        self.tag = tag
        self.qos = qos
        self.waiting = 0
        self.reason_code = 0
        self.conn = conn
        self.packet_identifier = packet_identifier
        self.done = False
        self.counted = False  # in the publisher's quota
        self.delivered = False  # a destination may have it: no answer may deny that it was accepted
        self.traced = False
        self.on_done: Callable[[int], object] | None = None
        self.record: bytes = b""  # MSG without partitions and share, for outboxes
        self.at_ns = 0
        self.excess_bytes = 0  # counted in the publisher's
        self.pick: Remote | None = None  # destination of a shared group's copy
        self.parent: PendingAck | None = None  # the message that it is a copy of
        self.group: ShareGroup | None = None
        self.tried: list[Remote] | None = None  # destinations that refused it, for the core
        self.route: Route | None = None  # with a ledger, once it is sent: this and all below
        self.retained_partition = -1  # that retains the message, -1 for none
        self.origin_kind = self.origin_a = self.origin_b = 0


class PartitionOutbox:
    """Unacknowledged messages to one partition, by tag in the order sent."""

    def __init__(self) -> None:
        self.messages: dict[int, PendingAck] = {}
        self.unsent: deque[PendingAck] = deque()
        self.held = False  # new messages queue in unsent: no primary, or a replay is in progress
        self.target: LoopPeer | None = None
        self.former: dict[LoopPeer, int] | None = None  # former primaries: highest tag that they were sent


class LoopPeer:
    """Another node: its link, this iteration's batch, its acknowledgements. Created by ``BrokerLoop.add_peer``."""

    def __init__(self, node: int, tier: str, incarnation: int, link: LinkCore, low_bytes: int) -> None:
        """node: its number in the ClusterMap; low_bytes: free bytes of the link below which publishers to it wait."""
        self.node = node
        self.tier = tier
        self.incarnation = incarnation
        self.link = link
        self.conn: LoopConnection | None = None
        self.dead = False
        self.key: object = None
        self.is_edge = tier == TIER_EDGE
        self.may_publish = may_send(tier, TIER_EDGE, FrameKind.PUBLISH)
        self.may_acknowledge = may_send(tier, TIER_EDGE, FrameKind.PUBLISH_ACK)
        self.may_push = may_send(tier, TIER_EDGE, FrameKind.PUSH)
        self.batch: Buffer | None = None
        self.batch_messages: list[PendingAck] = []
        self.inflight: deque[tuple[int, list[PendingAck]]] = deque()
        self.picks: dict[int, PendingAck] = {}  # shared copies at this edge, by tag, until PUBLISH_ACK
        self.publish_acks: Buffer | None = None
        self.push_acks: Buffer | None = None
        self.room = link.room()
        self.low_bytes = low_bytes
        self.unacked_bytes = 0  # bytes received since its last wakeup for a TAKEN
        self.full = False
        self.waiters: list[LoopConnection] = []
        self.blocked: deque[tuple[int, bytes, list[PendingAck] | None]] = deque()
        self.listed = False


class PublishView:
    """The current PUBLISH, as positions into ``data``: parsed, forwarded, or loaded from an InboundPublish."""

    def __init__(self) -> None:
        if cython.compiled:  # pragma: no cover
            self.data = cython.NULL
        else:
            self.data = b""
        self.keep = b""  # owner of data outside the receive buffer
        self.version, self.qos = 4, 0
        self.retain = self.dup = self.traced = False
        self.has_reserved = False  # it has a user property that only an edge may write
        self.packet_identifier = 0
        self.expiry_s = NO_EXPIRY
        self.alias = 0
        self.alias_at = -1  # position of the property, -1 for none
        self.expiry_at = -1
        self.properties_at = 0
        self.properties_bytes = 0
        self.plain_bytes = 0  # without alias and expiry
        self.payload_at = self.payload_bytes = 0
        self.topic = b""
        self.origin_kind = 0
        self.origin_a = self.origin_b = 0
        self.session = self.owner_epoch = 0
        self.pending: PendingMessage | None = None  # shared by the sessions of one encoding
        self.pending_key = -1


class LoopState(Counters):
    """State that all modules of the loop share; ``BrokerLoop`` adds the methods."""

    def __init__(self, handler: object, incarnation: cython.ulonglong, limits: "HotLimits") -> None:
        Counters.__init__(self)
        self.handler: Any = handler
        self.incarnation = incarnation
        self.origin_prefix = b"edge/%d/" % incarnation  # prefix of this edge's origins as texts
        self.now_ns = self.turn_end_ns = 0
        self.authorizing = False
        self.ledger: Any = None
        self.ledger_rows = Buffer(4096)
        self.ledger_count = self.ledger_offset_ns = 0  # rows in it; UTC minus the loop's clock
        self.delivered = Durations()  # iterations, from first byte to last send, for each PUBLISH to a client
        self.acks_in = Durations()  # from PUBLISH to PUBACK or PUBREC, if not answered at once
        self.journal: Any = None
        self.trace: Any = None
        self.noted_ns = self.notes = self.lease_until_ns = 0  # first: time of the last note; its iteration's notes
        self.leased = False
        self.fence_ns = 0  # time of the ``Handler.fence_over`` call before any other work; 0: never
        self.lease_ns = 2_000_000_000  # length of a lease in the map
        self.reading = True  # from clients; false once this edge stops
        self.pool = Pool()
        self.packet, self.second = PublishView(), PublishView()  # second: for a message during another one
        self.scratch, self.converted = Buffer(4096), Buffer(4096)
        self.numbers = 0
        self.conns: list[LoopConnection] = []  # each at its ``slot``: the last one replaces a removed one
        self.dirty_first: LoopConnection | None = None  # linked in the order of marking: saves a list per iteration
        self.dirty_last: LoopConnection | None = None
        self.ready: list[LoopConnection] = []
        self.conns_with_capacity: list[
            LoopConnection
        ] = []  # ``Handler.has_room`` is called for them in the next iteration
        self.closed_conns: list[LoopConnection] = []
        self.close_reports_left = 0  # how many more of them are reported to the core in this iteration
        self.high, self.lingering = list[LoopConnection](), list[LoopConnection]()
        self.sessions: dict[int, LoopConnection] = {}
        self.direct = False  # sockets: a long run may be sent from the receive buffer
        self.routes: dict[bytes, Route] = {}
        self.local_routes: dict[bytes, Route] = {}
        self.routes_version, self.missed = 0, False  # first: connections find their Route again
        self.rights_epoch = 1  # of rules: verdicts of another epoch are void; initially there are none
        self.generation = 0  # of the Routes' sources: older Routes are refreshed at their next use
        self.routes_max = limits.routes_max
        self.tags = first_number(incarnation)
        self.origin_tag = 0  # the current message's origin is this tag, 0: its own
        self.owner_block = b""  # user of the current message, for the partition that retains it; b"": none
        self.peers: list[LoopPeer] = []
        self.busy_peers: list[LoopPeer] = []  # with output in this iteration
        self.full_peers = 0
        self.primaries: list[LoopPeer | None] = [None] * limits.partitions
        self.primaries_version = 0
        self.epochs: list[int] = [0] * limits.partitions  # partition_epoch of each, for records
        self.outboxes: list[PartitionOutbox | None] = [None] * limits.partitions
        self.pumping: dict[int, bool] = {}  # partitions whose outbox is being replayed, in order
        self.outbox_bytes = 0
        self.outbox_waiters: list[LoopConnection] = []
        self.peer_low_bytes = limits.peer_low_bytes
        self.will_origins: OrderedDict[int, OriginWindow] = OrderedDict()  # partition: wills delivered here
        self.session_origins: OrderedDict[int, OriginWindow] = OrderedDict()  # publishing session: counters
        self.picked_origins: OrderedDict[tuple[bytes, int], OriginWindow] = OrderedDict()  # share, session: counters
        self.held_bytes = 0  # partial packets, outputs and pending messages of all clients
        self.held_bytes_max, self.read_ahead_bytes = 1 << 62, 0
        self.iteration_bytes = self.run_payload = self.converted_payload = 0  # payloads: of a run, of ``converted``
        self.iteration_bytes_max = limits.iteration_bytes_max
        self.permissions_max = limits.permissions_max
        self.received_max = limits.received_max
        self.bound_by(limits)
        self.paced: list[LoopConnection] = []  # parked with PARK_RATE
        self.paced_at_ns = 0  # time of their last check

    def bound_by(self, limits: "HotLimits") -> None:
        """Set the limits; a connection keeps those of the start of its session."""
        self.limits = limits
        self.outbox_bytes_max, self.window_max = limits.outbox_bytes_max, limits.outbound_window_max
        self.output_high, self.output_low = limits.output_high_bytes, limits.output_low_bytes
        self.drop_above = 2 * limits.output_high_bytes  # QoS 0 is dropped; output_high for forwarded messages
        self.lag_after_ns, self.excess_wait_ns = limits.lag_after_ns, limits.receive_excess_wait_ns
        self.pending_max, self.pending_bytes_max = limits.pending_messages_max, limits.pending_bytes_max
        self.excess_max, self.excess_bytes_max = limits.receive_excess_messages_max, limits.receive_excess_bytes_max
        self.publish_gap_ns = int(1e9 / limits.publish_rate_max) if limits.publish_rate_max else 0
        self.packet_timeout_ns, self.packet_rate_min = limits.packet_timeout_ns, limits.packet_rate_min
        self.read_ahead_max = limits.read_ahead_bytes_max
        self.user_bytes_max = limits.user_property_bytes_max
        self.users_max = limits.user_properties_max or self.user_bytes_max  # none is shorter than four bytes
