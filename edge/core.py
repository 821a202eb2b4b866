"""The edge's core: what the hot loop hands over, decided. Sans-IO, synchronous, one object per edge process.

It answers packets that are not per-message traffic, keeps the route cache, follows the map, and talks to routers and
partitions. Desks do the work (``connect``, ``subscribe``, ``retained_reads`` ...); this file joins them and routes.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from edge.answers import Answer, Answers
from edge.audience import Account
from edge.authentication import AuthenticationDesk, Method
from edge.claims import claims_in_pieces
from edge.client import Client, Phase
from edge.connect import ConnectDesk
from edge.ephemeral_sessions import EphemeralSubscriptions, identifier_properties
from edge.handing_on import HandOnDesk
from edge.held_live import HeldLive
from edge.hot.centre import Hot
from edge.hot.handler import Closed
from edge.hot.options import HotLimits
from edge.hot.state import Conn, Group, Inbound, Message, Peer, Remote, Route, Sub
from edge.ledger import EdgeLedger
from edge.map_follower import MapFollower
from edge.memory_guard import MemoryGuard, available_bytes
from edge.partition_requests import PartitionRequests
from edge.peer_table import PeerTable
from edge.publishing import PublishDesk
from edge.retained_reads import RetainedReads
from edge.route_cache import RouteCache
from edge.settings import EdgeLimits
from edge.shared_groups import HERE, SharedGroup, SharedGroups
from edge.stopping import Stopping
from edge.subscribe import SubscribeDesk
from edge.sys_topics import SysTopics
from mqtt.codec import encode_packet
from mqtt.errors import MqttError
from mqtt.packets import Disconnect
from mqtt.reasons import ALLOWED_REASON_CODES, PacketType, ReasonCode
from wire.allowed import CELLS, IDENTITY, TIER, Rule, Standing, fault_of, may_send, standing
from wire.cluster_map import ClusterMap, NodeEntry
from wire.frames import FRAME_BYTES_MAX, FrameKind
from wire.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, NodeIdentity, PeerKey
from wire.lease_holder import LeaseHolder
from wire.link import LinkFull
from wire.messages import (
    Claim,
    Control,
    FireWill,
    HandOn,
    Invalidate,
    KickSession,
    Moved,
    PollClaims,
    ReadRetained,
    Relay,
    Relayed,
    Resolved,
    RetainedNone,
    RetainedPage,
    RoutesAdded,
    SessionOpened,
    Subscription,
    decode_control,
    encode_control,
)
from wire.refusals import Refusals
from wire.route_registrar import RouteRegistrar
from wire.unreached import Unreached

__all__ = ["EdgeCore"]

logger = logging.getLogger(__name__)

NS = 1_000_000_000
TICK_S = 0.05  # between looks at timers while some desk waits for an answer
SWEEP_S = 1.0
FORGOTTEN_MAX = 16  # topics that were forwarded here first, for a new one when Routes have no room


class EdgeCore:
    """One edge; the ``Handler`` of its loop."""

    def __init__(
        self,
        identity: NodeIdentity,
        entry: NodeEntry,
        limits: EdgeLimits,
        hot_limits: HotLimits,
        *,
        version: str = "",
        ended_incarnation: int = 0,
        certify: Callable[[Conn], tuple[str, str, str] | None] = lambda _: None,
        identify: Callable[[Conn], str | None] = lambda _: "",
        peer_of: Callable[[int], str] = lambda _: "",
        methods: Sequence[Method] = (),
        new_client_id: Callable[[], str] | None = None,
    ) -> None:
        self.limits = limits
        self.node = identity.node
        self.incarnation = identity.incarnation
        self.counts: dict[str, int] = {}
        self._refusals = Refusals(self.count)
        self.hot = Hot(self, identity.incarnation, hot_limits)
        self.peers = PeerTable(self.hot, identity, certify, self._peer_over, self.count)
        self.unreached = Unreached(identity.node)
        self.follower = MapFollower(self)
        self.lease = LeaseHolder(entry, self.tell, self._map_moved, ended_incarnation=ended_incarnation)
        self.memory = MemoryGuard(self.hot, limits.memory_max or available_bytes() // 2, self._cut)
        self.requests = PartitionRequests(lambda: self.lease.map, self.tell, limits.requests_max, identity.incarnation)
        self.shared_bytes = Account()  # of what Routes share
        self.answers = Answers(
            self.node,
            self.peers.get,
            SharedGroups(self.node, limits.sticky_shares, self.peers.get),
            self.shared_bytes,
        )
        self.cache = RouteCache(
            lambda: self.lease.map,
            self.tell,
            self.answers,
            self._install,
            lambda topic: self.hot.drop_route(topic.encode()),
            lambda topic: self.hot.route(topic.encode()),
            self.hot.refresh_routes,
            hot_limits.routes_max,
            self._has_room,
            self.requests.next_number,
        )
        self.subscribing = SubscribeDesk(self)
        self.registrar = RouteRegistrar(
            -1, identity.incarnation, self._tell_owner, lambda: self.lease.map, self.subscribing.standing
        )
        self.ephemeral = EphemeralSubscriptions(self._local_changed, self.shared_bytes)
        self.connecting = ConnectDesk(self, new_client_id)
        self.authentication = AuthenticationDesk(self, methods)
        self.identify = identify
        self.peer_of = peer_of  # a socket's peer address
        self.publishing = PublishDesk(self)
        self.handing_on = HandOnDesk(self)
        self.held = HeldLive(self)
        self.retained = RetainedReads(self)
        self.stopping = Stopping(self)
        self._orders: dict[type, Callable[[str, Any], None]] = {  # of partitions; anything else answers a request
            KickSession: self._kick,
            PollClaims: self._claims,
            FireWill: self.publishing.fire_will,
            HandOn: self.handing_on.order,
            Moved: self._moved,
            RetainedNone: self._retained_none,
            RetainedPage: self._retained_page,
            SessionOpened: self._session_opened,
        }
        self.sys = SysTopics(version, identity.node)
        self.ledger: EdgeLedger | None = None
        self._clients: dict[int, Client] = {}
        self._by_partition: dict[int, dict[int, Client]] = {}  # those that asked for their claim, by number
        self._polled: dict[int, int] = {}  # partition -> highest partition_epoch of a claims poll
        self._fenced: list[Conn] = []
        self._had_lease = False
        self._fenced_since = float("inf")
        self._next_tick = 0.0
        self._next_sweep = 0.0
        self._next_sys = 0.0
        self._started = 0.0
        self._unserved: set[int] | None = None  # partitions that have not answered this life yet; None: not asked
        self.accept: Callable[[object, int], None] = lambda *_: None
        self.relinked: Callable[[], None] = lambda: None  # the map or a link changed: look whom to dial

    # --- what desks ask

    @property
    def now(self) -> float:
        """Time of the current round, s on CLOCK_BOOTTIME."""
        return self.hot.now_ns / NS

    @property
    def map(self) -> ClusterMap:
        """The map as this node has it."""
        return self.lease.map

    def keep_ledger(self, ledger: EdgeLedger) -> None:
        """Record from here on what is acknowledged."""
        self.ledger = self.hot.ledger = ledger
        self.hot.ledger_offset_ns = ledger.offset_ns()

    def has_lease(self) -> bool:
        """True while this edge may decide."""
        return self.lease.has_lease(self.now)

    def client(self, number: int) -> Client | None:
        """Return a connection by its number."""
        return self._clients.get(number)

    def clients(self) -> list[Client]:
        """Return all connections."""
        return list(self._clients.values())

    def place(self, client: Client) -> int:
        """Find the partition that a connection's claim belongs to, and return it."""
        client.partition = self.map.partition_for(client.client_id)
        self._by_partition.setdefault(client.partition, {})[client.number] = client
        return client.partition

    def clients_of(self, partition: int) -> list[Client]:
        """Return the connections whose claims belong to a partition: a dead primary leaves many to look through."""
        return list(self._by_partition.get(partition, {}).values())

    def primary_peer(self, partition: int) -> Peer | None:
        """Return the peer of a partition's primary, None while there is none or no link to it was ever made."""
        placements = self.map.partitions
        return self.peers.get(placements[partition].primary) if partition < len(placements) else None

    def tell(self, node: str, message: Control) -> bool:
        """Send a control message; False when there is no link or no room."""
        peer = self.peers.get(node)
        if peer is None:
            return False
        payload = encode_control(message)
        if len(payload) > FRAME_BYTES_MAX:
            self.count("control_too_long")
            return False
        try:
            self.hot.control(peer, FrameKind.CONTROL, payload)
        except LinkFull:
            self.count("control_no_room")
            return False
        return True

    def _tell_owner(self, node: str, message: Control) -> None:
        self.tell(node, message)  # what could not be sent is asked again by time

    def count(self, what: str, amount: int = 1) -> None:
        """Count an event of this edge."""
        self.counts[what] = self.counts.get(what, 0) + amount

    def count_connect(self, reason_code: int) -> None:
        """Count a CONNECT by its outcome."""
        self.count(f"connects_{reason_code:#04x}")

    def count_disconnect(self, reason: str) -> None:
        """Count the end of a connection by its reason."""
        self.count(f"disconnects_{reason}")

    @property
    def client_count(self) -> int:
        """Connections of clients, with those that have not sent CONNECT."""
        return len(self._clients)

    def opened(self, client: Client) -> None:
        """A session is open on a connection."""
        self.count("connects_0x00")

    def _map_moved(self, cluster_map: ClusterMap) -> None:
        self.follower.moved(cluster_map)
        self.relinked()

    # --- ending connections

    def end(self, client: Client, last: bytes = b"") -> None:
        """Write the last bytes, stop reading, flush, half-close: the client reads the reason."""
        self.hot.close(client.conn, last)

    def disconnect(self, client: Client, reason_code: int) -> None:
        """Tell a v5 client why, and close [MQTT-4.13.2-1]; a 3.1.1 client only sees the close."""
        if reason_code not in ALLOWED_REASON_CODES[PacketType.DISCONNECT]:  # [MQTT-3.14.2-1]
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        last = encode_packet(Disconnect(reason_code, {}), 5) if client.version == 5 else b""
        self.end(client, last)

    def _cut(self, conn: Conn) -> None:
        """End a connection for which too much is held."""
        client = conn.owner
        last = b""
        if isinstance(client, Client) and client.phase == Phase.OPEN and client.version == 5:
            last = encode_packet(Disconnect(ReasonCode.QUOTA_EXCEEDED, {}), 5)
        self.count_disconnect("memory")
        self.hot.cut(conn, last)

    def memory_exceeded(self) -> None:
        """Clients make this edge hold too much."""
        self.hot.round_end_ns = 0
        self.memory.exceeded()

    # --- Handler: packets

    def packet(self, conn: Conn, first_byte: int, body: bytes) -> None:
        """A packet that the loop does not handle."""
        self.hot.round_end_ns = 0
        client = conn.owner
        assert isinstance(client, Client)
        kind = first_byte >> 4
        if client.version == 3 and kind in (8, 10):
            first_byte &= 0xF7  # MQTT 3.1 sets DUP on a repeated SUBSCRIBE or UNSUBSCRIBE
        try:
            if client.phase == Phase.NEW:
                self.connecting.connect(client, first_byte, body)
            elif client.phase == Phase.AUTHENTICATING and kind == 15:
                self.authentication.auth(client, first_byte, body)
            elif client.phase != Phase.OPEN:
                self.error(conn, ReasonCode.PROTOCOL_ERROR)
            elif kind == 8:
                self.subscribing.subscribe(client, first_byte, body)
            elif kind == 10:
                self.subscribing.unsubscribe(client, first_byte, body)
            elif kind == 14:
                self.connecting.disconnect(client, first_byte, body)
            elif kind == 15 and client.version == 5:
                self.authentication.auth(client, first_byte, body)
            else:  # a second CONNECT [MQTT-3.1.0-2], or a packet that only servers send
                self.error(conn, ReasonCode.PROTOCOL_ERROR)
        except MqttError as error:
            self.error(conn, error.reason_code)

    def inbound(self, conn: Conn, publish: Inbound) -> None:
        """A retained PUBLISH, or QoS 2 of a durable session."""
        self.hot.round_end_ns = 0
        self.publishing.inbound(conn, publish)

    def pubrel(self, conn: Conn, packet_identifier: int, reason_code: int) -> None:
        """PUBREL of a durable session."""
        self.hot.round_end_ns = 0
        self.publishing.pubrel(conn, packet_identifier)

    def miss(self, conn: Conn, topic: bytes) -> None:
        """A topic without a cached Route."""
        self.hot.round_end_ns = 0
        self.publishing.miss(conn, topic)

    def fenced(self, conn: Conn) -> None:
        """A QoS >= 1 PUBLISH without a lease waits for one."""
        self.hot.round_end_ns = 0
        self._fenced.append(conn)

    def error(self, conn: Conn, reason_code: int) -> None:
        """The client broke the protocol, or a bound."""
        self.hot.round_end_ns = 0
        client = conn.owner
        if not isinstance(client, Client):
            self.hot.close(conn, linger=False)
            return
        self.count_disconnect(f"{int(reason_code):#04x}")
        if client.phase in (Phase.NEW, Phase.OPENING, Phase.AUTHENTICATING):
            if client.phase == Phase.NEW or reason_code in (0x80, 0x8D):
                self.end(client)
            else:
                self.connecting.refuse(client, reason_code)
            return
        self.disconnect(client, reason_code)

    def closed(self, conn: Conn, why: int) -> None:
        """A connection is gone."""
        self.hot.round_end_ns = 0
        client = conn.owner
        if not isinstance(client, Client):
            self.peers.strangers.left(conn)
            self.relinked()  # a link that may not have stood yet
            return
        if self._clients.pop(conn.number, None) is None:
            return
        if client.partition >= 0:
            self._by_partition[client.partition].pop(conn.number, None)
        if client.subscriptions:
            self.subscribing.ended(client)
        self.connecting.ended(client)
        if why != Closed.SHUTDOWN:
            for share, publish in self.hot.take_picks(conn):
                self.publishing.redispatch(share, publish)
        conn.owner = None  # or the two keep each other until the collector looks at every connection
        refusal = getattr(client.stream_filter, "refusal", "")
        if refusal:
            self.count(refusal)
        if client.first_bytes is not None and client.first_bytes.outcome:
            self.count(client.first_bytes.outcome)  # there was no client
            return
        self.count("closed_by_peer" if why == 0 else "closed_by_us" if why == 1 else "closed_failed")

    def adopt(self, client: Client) -> None:
        """A socket was accepted and attached."""
        self._clients[client.number] = client

    def accepted(self, listener: object, fd: int) -> None:
        """A new socket: the service attaches or refuses it."""
        self.hot.round_end_ns = 0
        self.accept(listener, fd)

    def authorize(self, conn: Conn, topic: bytes) -> int:
        """No access lists yet: everything that a listener lets in may publish."""
        return 0

    # --- Handler: links

    def secured(self, conn: Conn) -> None:
        """A link's certificate is known."""
        self.peers.secured(conn)

    def hello(self, conn: Conn, payload: bytes) -> None:
        """A link's first frame."""
        self.hot.round_end_ns = 0
        key = self.peers.hello(conn, payload)
        if key is None:
            return
        self.unreached.link_up(key)
        if key.tier == TIER_ROUTER:
            self.lease.router_up(key.node, self.now)
        elif key.tier == TIER_STORAGE:
            self.follower.storage_up(key.node)
        else:
            self.peers_changed()

    def broke(self, peer: Peer, why: str) -> None:
        """A frame cannot be read: another life of that node may come, not this one."""
        self.count("frames_unreadable")
        key = self.peers.key(peer)
        logger.warning("%s %s broke the protocol: %s", key.tier, key.node, why)
        self.peers.condemn(peer)

    def link_lost(self, peer: Peer) -> None:
        """A link's connection ended; it resumes after a reconnect."""
        self._peer_over(self.peers.key(peer))

    def _peer_over(self, key: PeerKey) -> None:
        """A link's connection ended, or the peer's life: of a struck peer no end of a connection is told."""
        self.hot.round_end_ns = 0
        self.relinked()
        self.unreached.link_down(key)
        if key.tier == TIER_ROUTER:
            self.lease.router_down(key.node)

    def frame(self, peer: Peer, kind: int, payload: bytes) -> None:
        """A frame that the loop does not take itself.

        Raises:
            Unreadable: It is none.
        """
        key = peer.owner
        assert isinstance(key, PeerKey)
        if kind != FrameKind.CONTROL or not may_send(key.tier, TIER_EDGE, kind):
            self.violated(peer, f"frame kind {kind}", TIER)
            return
        message = decode_control(payload)
        fault = fault_of(key, TIER_EDGE, message)
        if fault:
            self.violated(peer, type(message).__name__, fault)
        elif key.tier == TIER_ROUTER:
            self._router_message(key.node, message)
        elif key.tier == TIER_STORAGE:
            self._storage_message(key.node, message)

    def violated(self, peer: Peer, what: str, reason: str) -> None:
        """A node said what it may not say; one that no honest node says closes its link until it starts again."""
        key = self.peers.key(peer)
        self._refusals.refuse(self.now, key, what, reason)
        if reason in (TIER, IDENTITY):
            self.peers.condemn(peer)
            if peer.conn is not None:
                self.hot.close(peer.conn, linger=False)

    def _router_message(self, node: str, message: Control) -> None:
        self.hot.round_end_ns = 0
        if isinstance(message, Resolved):
            self.cache.resolved(message)
        elif isinstance(message, RoutesAdded):
            self.registrar.added(message)
        elif isinstance(message, Invalidate):
            self.cache.invalidate(node, message, self.now)
        elif isinstance(message, Moved):
            if message.request:
                self.cache.moved(message, self.now)
            else:
                self.follower.report_again(message.number)
        elif isinstance(message, Relayed):
            self._relayed(node, message)
        elif not self.lease.handle(self.now, message):
            self.count("messages_unknown")

    def _storage_message(self, node: str, message: Control) -> None:
        self.hot.round_end_ns = 0
        if CELLS[type(message)].rule is Rule.PRIMARY and not self._is_primary(node, message):
            self._misplaced(node, message)  # a primary repeats what this edge's map is too old for
            return
        take = self._orders.get(type(message))
        if take is None:
            self._answer(node, message)
        else:
            take(node, message)

    def _is_primary(self, node: str, message: Control) -> bool:
        """Whether this edge's map names the node as the primary for which it speaks."""
        placements = self.map.partitions
        if isinstance(message, KickSession):
            number, epoch = (self.map.partition_for(message.client_id), 0) if placements else (0, 0)
        else:
            assert isinstance(message, PollClaims | FireWill | HandOn)
            number, epoch = message.partition, message.partition_epoch
        return standing(self.map, node, number, epoch, 0) is Standing.PRIMARY

    def _misplaced(self, node: str, message: Control) -> None:
        peer = self.peers.get(node)
        if peer is not None:
            self.violated(peer, type(message).__name__, "placement")

    def _answer(self, node: str, message: Control) -> None:
        if not self.requests.answered(getattr(message, "request", 0), message, node):
            self.count("answers_unknown")

    def _kick(self, node: str, order: KickSession) -> None:
        self.tell(node, self.connecting.kick(order))

    def _moved(self, node: str, moved: Moved) -> None:
        self.requests.moved(moved.request, self.now, node)

    def _retained_none(self, node: str, answer: RetainedNone) -> None:
        self.retained.none(answer, node)

    def _retained_page(self, node: str, page: RetainedPage) -> None:
        if not self.retained.page(page, node):
            self._answer(node, page)

    def _session_opened(self, node: str, opened: SessionOpened) -> None:
        if opened.partition_epoch < self._polled.get(opened.partition, 0):
            self.requests.moved(opened.request, self.now, node)  # of a primary that another one has followed
        else:
            self._answer(node, opened)

    def _relayed(self, router: str, relayed: Relayed) -> None:
        """A partition's primary cannot reach this edge, or hears no answer: the answer goes back the same way."""
        entry = self.map.nodes.get(relayed.node)
        message = decode_control(relayed.message)
        storage = entry is not None and entry.tier == TIER_STORAGE
        alive = storage and self.map.is_alive(relayed.node, relayed.incarnation)
        if alive and isinstance(message, KickSession) and self._is_primary(relayed.node, message):
            answer = encode_control(self.connecting.kick(message))
            self.tell(router, Relay(relayed.node, relayed.incarnation, answer))
        else:
            self.count("relays_refused")

    def _claims(self, node: str, poll: PollClaims) -> None:
        self._polled[poll.partition] = max(poll.partition_epoch, self._polled.get(poll.partition, 0))
        claims = [
            Claim(
                client.client_id,
                client.number,
                client.owner_epoch,
                client.session,
            )
            for client in self.clients_of(poll.partition)
            # One that is still opening has owner_epoch 0: its CONNECT may be committed, and is asked again.
            if client.phase in (Phase.OPEN, Phase.OPENING)
        ]
        for answer in claims_in_pieces(poll, claims):
            if not self.tell(node, answer):
                return  # without the last piece none counts, and the poll comes again

    # --- Handler: routes and groups

    def _has_room(self, topics_bytes: int) -> bool:
        return topics_bytes + self.shared_bytes.bytes <= self.limits.routes_bytes_max

    def _install(self, topic: str, answer: Answer) -> Route:
        route = self._route(topic.encode(), topic, answer)
        self.hot.install_route(route.topic, route)
        return route

    def _route(self, name: bytes, topic: str, answer: Answer) -> Route:
        audience = self.ephemeral.subscribers(topic)
        return Route(name, audience.subs, answer.edges, answer.partitions, answer.groups, 0, audience)

    def refresh(self, route: Route) -> Route | None:
        """A Route of an older generation is about to be used."""
        if route.reason_code:
            self.hot.keep_route(route)
            return route
        topic = route.topic.decode()
        answer = self.cache.answer(topic)
        if answer is None:
            self.hot.drop_route(route.topic)
            return None
        fresh = self._route(route.topic, topic, answer)
        if (
            fresh.subs is route.subs
            and fresh.edges is route.edges
            and fresh.partitions is route.partitions
            and fresh.groups is route.groups
        ):
            self.hot.keep_route(route)
            return route
        self.hot.replace_route(fresh)
        return fresh

    def _local_changed(self, topic_filter: str) -> None:
        """Subscribers of a filter at this edge changed."""
        if "+" in topic_filter or "#" in topic_filter:
            self.hot.refresh_routes()
            self.cache.look_again()
        else:
            self.hot.refresh_route(topic_filter.encode())

    def peers_changed(self) -> None:
        """Edges were linked or struck off: Routes name them."""
        self.answers.peers_changed()
        self.hot.refresh_routes()
        self.cache.look_again()

    def local(self, topic: bytes) -> Route:
        """Return a Route of this edge's own subscribers of a topic."""
        if not self._has_room(self.cache.bytes):
            self.hot.drop_oldest_local(FORGOTTEN_MAX)
        audience = self.ephemeral.subscribers(topic.decode())
        return Route(topic, audience.subs, owner=audience)

    def pick(self, group: Group, route: Route, conn: Conn | None, topic: bytes, qos: int) -> Sub | Remote | None:
        """Choose a shared group's destination for one message."""
        assert isinstance(group, SharedGroup)
        recorded = self.publishing.recorded
        choice = recorded.get(group.share) if recorded is not None else self.choose(group, topic)
        return self._member(group, choice, topic if group.sticky else None)

    def _member(
        self, group: SharedGroup, choice: Remote | int | None, sticky_to: bytes | None = None
    ) -> Sub | Remote | None:
        if isinstance(choice, Remote):
            return choice
        return self.ephemeral.pick(group.share, sticky_to) if choice == HERE else None

    def choose(self, group: SharedGroup, topic: bytes, refused: Sequence[Remote | int] = ()) -> Remote | int | None:
        """Return the next destination of a group that can take a message; None if there is none."""
        first = None if refused else group.next(topic)
        if first is not None and self._takes(group, first):
            return first
        return next((choice for choice in group.others(refused) if self._takes(group, choice)), None)

    def _takes(self, group: SharedGroup, choice: Remote | int) -> bool:
        if isinstance(choice, Remote):
            return choice.peer is None or not choice.peer.struck
        return self.ephemeral.has_member(group.share)

    def picked(self, peer: Peer, share: bytes, topic: bytes, qos: int) -> Sub | None:
        """Another edge picked us for a message of a group: choose the member."""
        return self.ephemeral.pick(share, topic if self.limits.sticky_shares else None)

    def refused(self, message: Message, remote: Remote, reason_code: int) -> Sub | Remote | Message | None:
        """A picked destination refused or died: choose another, each at most once."""
        group = message.group
        if not isinstance(group, SharedGroup):
            return None
        if self.handing_on.refused(message):
            return None
        message.tried = [*(message.tried or ()), remote]
        if self.publishing.is_recorded(message):
            self.publishing.pick_again(message, group)
            return message
        return self._member(group, self.choose(group, b"", message.tried))

    # --- $SYS

    def deliver_sys(self, client: Client, subscription: Subscription) -> None:
        """A client subscribed to $SYS: give it the current values."""
        identifiers = identifier_properties([subscription])
        for topic, value in self.sys.matching(subscription.topic_filter):
            self.hot.deliver(client.conn, Inbound(topic.encode(), value, 0, True), 0, identifiers)

    def _publish_sys(self) -> None:
        counters = self.hot.counters()
        counters["clients"] = sum(1 for client in self._clients.values() if client.phase == Phase.OPEN)
        counters["subscriptions"] = len(self.ephemeral)
        for topic, value in self.sys.update(self.now - self._started, counters, self.map.epoch):
            route = self.local(topic.encode())
            if route.subs:
                self.hot.publish(route, Inbound(topic.encode(), value))

    # --- time

    def round_end(self, now_ns: int) -> None:
        """Before the flush of a round: batched requests leave, the lease is renewed, timers run."""
        now = now_ns / NS
        if not self._started:
            self._started = now
        if self.stopping.step(now):
            self._next_tick = now
        self.lease.beat(now)
        self._lease_state(now)
        self.connecting.claim_waiting(now)
        self.subscribing.next_round()
        self.cache.flush(now)
        if self._next_tick > now + TICK_S and self._waits():
            self._next_tick = now + TICK_S
        if now < self._next_tick:
            # What changes anything before then comes through a method of ``Handler``, and each of those sets it to 0.
            self.hot.round_end_ns = now_ns if self.busy else int(self.next_deadline() * NS)
            return
        self.hot.round_end_ns = now_ns + 1  # timers make work: look again after the next round
        if self.ledger is not None:
            self.hot.ledger_offset_ns = self.ledger.offset_ns()
        self.follower.report()
        self.requests.tick(now)
        self.registrar.tick(now)
        self.cache.tick(now)
        self.retained.tick(now)
        self.held.tick(now)
        self.connecting.tick(now)
        if now >= self._next_sweep:
            self._next_sweep = (now // SWEEP_S + 1) * SWEEP_S  # with a heartbeat: one wake-up for both
            self.peers.keep_alive()
            self.lease.unreachable = self.unreached.nodes(now, self.map)
        if self.limits.sys_interval_s and now >= self._next_sys:
            self._next_sys = now + self.limits.sys_interval_s
            self._publish_sys()
        # A node that nobody asks anything sleeps: a look at timers costs a wake-up with cold caches.
        self._next_tick = now + TICK_S if self._waits() else self._next_sweep
        if self.limits.sys_interval_s:
            self._next_tick = min(self._next_tick, self._next_sys)

    @property
    def busy(self) -> bool:
        """Whether work is under way that the next round goes on with."""
        return self.cache.busy or self.subscribing.busy

    def _waits(self) -> bool:
        """Whether some desk waits for an answer, or for a time of its own: then timers are looked at every TICK_S."""
        return bool(
            len(self.requests)
            or self.cache.waits
            or self.registrar.waits
            or self.follower.waits
            or self.retained.waits
            or len(self.held)
            or self.connecting.waits
            or self.stopping.order.begun
            or self.ledger is not None  # whose clock is set by the tick
        )

    def _lease_state(self, now: float) -> None:
        leased = self.lease.has_lease(now)
        self.hot.set_lease(int(self.lease.lease_until * NS) if leased else 0)
        if leased and not self._had_lease:
            self._fenced_since = float("inf")
            self.connecting.claim_at = now
            fenced, self._fenced = self._fenced, []
            for conn in fenced:
                if not conn.closed:
                    self.hot.resume(conn)
        elif not leased and self._had_lease:
            self._fenced_since = now
        self._had_lease = leased
        if now - self._fenced_since > self.limits.fence_close_s:
            self._fenced_since = float("inf")
            self.close_clients(ReasonCode.SERVER_BUSY)  # DISCONNECT has no 0x88

    def stop(self) -> None:
        """End in order: the shell has closed the listeners, and waits until ``stopping.order`` has ended."""
        self.stopping.begin(self.now)
        self._next_tick = 0.0
        self.hot.round_end_ns = 0

    def close_clients(self, reason_code: int) -> None:
        """Close every client: the node is fenced for too long, drained, or begins a new incarnation."""
        for client in self.clients():
            if client.phase == Phase.OPEN:
                self.disconnect(client, reason_code)
            elif not client.leaves_at:  # to close that one would say that its DISCONNECT was accepted
                self.end(client)

    def next_deadline(self) -> float:
        """Return when ``round_end`` wants to be called next."""
        fenced_at = self.lease.lease_until if self._had_lease else float("inf")
        return min(
            self._next_tick,
            self.lease.next_deadline(),
            self.connecting.next_deadline(),
            self.cache.next_deadline(),
            fenced_at,
        )

    @property
    def ready(self) -> bool:
        """True once clients can be served: a lease, and every partition's primary has answered something."""
        if not self.has_lease() or not self.follower.storage_linked():
            return False
        if self._unserved is None:
            self._unserved = set(range(len(self.map.partitions)))
            for number in range(len(self.map.partitions)):
                # A read without effect: it is answered when the partition serves, as the first CONNECT would be.
                question = ReadRetained(self.requests.next_number(), number, 0, "$SYS/ready", "", 1)
                self.requests.ask(question, lambda _, served=number: self._served(served), self.now)  # type: ignore[misc]
        return not self._unserved

    def _served(self, partition: int) -> None:
        assert self._unserved is not None
        self._unserved.discard(partition)
