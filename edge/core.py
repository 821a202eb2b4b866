"""Core of an edge process: one synchronous sans-IO object that handles calls of the loop and messages of nodes.

It handles packets other than per-message traffic, caches routes, follows the map, and sends messages to routers and
partitions. This file connects its parts. Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from collections.abc import Callable
from typing import ClassVar

from edge.access import EdgeAccess
from edge.client_packets import ClientPackets
from edge.clients.abuse_limits import AbuseLimits
from edge.clients.claims import ClaimsPolls
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.connect import Connecting
from edge.clients.disconnecting import Disconnecting
from edge.clients.fence import Fence
from edge.clients.limit_updater import LimitUpdater
from edge.clients.memory_guard import MemoryGuard
from edge.clients.stopping import Stopping
from edge.cluster.partition_requests import PartitionRequests
from edge.cluster.peer_table import PeerTable
from edge.cluster_policy import ClusterPolicy
from edge.disconnected_filters import DisconnectedFilterChecks
from edge.ledger import EdgeLedger
from edge.links import EdgeLinks
from edge.login.certificate_facts import CertificateReader, shown_facts
from edge.login.chains import Chains
from edge.login.logins import ClientLogins
from edge.loop.broker_loop import BrokerLoop
from edge.loop.handler import ClosedReason
from edge.loop.options import HotLimits
from edge.loop.state import InboundPublish, LoopConnection, LoopPeer, PendingAck, Remote, Route, ShareGroup, Sub
from edge.map_follower import EdgeMapFollower
from edge.node.limits import EdgeLimits
from edge.node.node import NS, EdgeCounters, EdgeNode
from edge.node_messages import NodeMessages
from edge.publishing.cluster_events import ClientEventPublisher
from edge.publishing.operator_messages import OperatorMessages
from edge.publishing.order_answers import OrderAnswers
from edge.publishing.picking import Picking
from edge.publishing.publishing import EdgePublishing
from edge.publishing.recording import Recording
from edge.publishing.redispatch import Redispatch, Redispatching
from edge.publishing.sending import MessageSender
from edge.queries.sources import edge_operators
from edge.readiness import Readiness
from edge.rights.absent import AbsentUserChecks
from edge.rights.client_rights import ClientRights
from edge.rights.sources import RuleBook
from edge.rights.sweep import ReauthorizationPass
from edge.routes.shared_groups import RecordedPick, SharedGroup
from edge.session_filter_reads import SessionFilterReads
from edge.subscriptions.live_message_holds import LiveMessageHolds
from edge.subscriptions.retained_reads import RetainedReads
from edge.subscriptions.subscribe import SubscribeHandler
from edge.subscriptions.sys_metrics import SysMetrics
from edge.subscriptions.sys_topics import SysTopics
from edge.subscriptions.topic_routes import TopicRoutes
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.hello import NodeIdentity, PeerKey
from wire.node.route_registrar import RouteRegistrar

__all__ = ["EdgeCore"]

TICK_S = 0.05  # between timer checks while a part waits for a response
SWEEP_S = 1.0


class EdgeCore:
    """One edge; the ``Handler`` of its loop.

    Args:
        identity: This edge, as in its HELLO.
        entry: This edge, as it registers.
        limits: Bounds and announcements.
        hot_limits: Bounds of the loop.
        version: Of the program, for $SYS.
        ended_incarnation: A former incarnation of this node that has surely ended; 0 for none.
        certify: (cluster, tier, node) of a link's certificate; None on a plaintext link.
        peer_of: Returns the peer's address of a socket; peer_name: with the port.
        chains: Authenticators by listener; None: clients are not authenticated.
        read_certificate: Returns the facts of a client's certificate.
        utc: Seconds since the epoch, by this machine's clock.
        rules: Rules of the clients; None: no authorization, all clients may do all.
        new_client_id: Makes a client ID.
        accept: Attaches or refuses a new socket of a listener.
        relinked: Called when the map or a link changed: dials may be due.
    """

    node_type: ClassVar[type[EdgeNode]] = EdgeNode

    def __init__(
        self,
        identity: NodeIdentity,
        entry: NodeEntry,
        limits: EdgeLimits,
        hot_limits: HotLimits,
        *,
        version: str = "",
        ended_incarnation: int = 0,
        certify: Callable[[LoopConnection], tuple[str, str, str] | None] = lambda _: None,
        peer_of: Callable[[int], str] = lambda _: "",
        peer_name: Callable[[int], str] = lambda _: "",
        chains: Chains | None = None,
        read_certificate: CertificateReader = shown_facts,
        utc: Callable[[], float] = lambda: 0.0,
        rules: RuleBook | None,
        new_client_id: Callable[[], str] | None = None,
        accept: Callable[[object, int, str, int], None] = lambda *_: None,
        has_received: Callable[[LoopConnection], bool] = lambda _: True,
        relinked: Callable[[], None] = lambda: None,
    ) -> None:
        self.ledger: EdgeLedger | None = None
        self._accept, self._relinked = accept, relinked
        self._next_tick = self._next_sweep = self._next_full = 0.0  # look: next full iteration
        counts = EdgeCounters()
        hot = self.hot = BrokerLoop(self, identity.incarnation, hot_limits)
        hot.origin_prefix = f"{identity.node}/{identity.incarnation}/".encode()
        peers = self.peers = PeerTable(hot, identity, certify, self._peer_retired, counts.add, has_received)
        node = self.node = self.node_type(
            identity, entry, limits, hot, counts, peers.get, self._map_moved, ended_incarnation
        )
        self.lease = node.lease
        clients = self.clients = Clients(node, hot)
        self.rights = ClientRights(hot, rules, limits, lambda record: node.audit(record))
        chains = chains or Chains(bytes(16))
        self.logins = ClientLogins(node, hot, chains, clients.get, clients.all, read_certificate, utc)
        self.policy = ClusterPolicy(node, chains.bans, self.logins, self.rights, clients.all, utc)
        self._absent = AbsentUserChecks(self.rights, self.policy.look_up, lambda: chains.bans.view, utc)
        requests = self.requests = PartitionRequests(node)
        routes = self.routes = TopicRoutes(node, hot, requests.next_number, hot_limits.routes_max, self.rights)
        self.cache = routes.cache
        self.registrar = RouteRegistrar(-1, node.incarnation, node.tell, lambda: node.map, self._routes_confirmed)
        self.follower = EdgeMapFollower(node, hot, peers, clients, requests, routes, self.registrar)
        self.links = EdgeLinks(
            node, hot, peers, self.follower, routes, self.policy, relinked, lambda key: self.operators.gone(key)
        )
        self._fence = Fence(node, hot, clients)
        self._readiness = Readiness(node, requests, self.follower)
        self.memory = MemoryGuard(hot, limits.memory_max, clients.cut)
        self.conduct = AbuseLimits(node, clients, utc)
        self.limit_updater = LimitUpdater(hot, self.rights, self.conduct)
        self.sent: Callable[[LoopConnection, int], None] = self.conduct.sent  # of Handler
        self.leaving = Disconnecting(node, clients, requests, self.conduct)
        self.stopping = Stopping(node, hot, clients, requests, self.leaving, relinked)
        self.connecting = Connecting(
            node,
            hot,
            clients,
            requests,
            self.leaving,
            self.logins,
            self.memory,
            self.conduct,
            self.rights,
            peer_of,
            new_client_id,
        )
        self.events = ClientEventPublisher(node, hot, clients, routes, peer_of, utc)
        self._join_subscriptions(SysTopics(version, node.name))
        self._join_publishing()
        self.claims = ClaimsPolls(node, clients)
        self.operators = edge_operators(node, hot, peers, clients, self.held, routes, self.rights, utc, peer_name)
        self.messages = self._join_messages()
        look, away = self.limit_updater.look, DisconnectedFilterChecks(node, requests, self._absent)
        self.sweep = ReauthorizationPass(
            self.rights, clients.all, self.subscribing.revoke, look, hot, clients.drop_unauthorized, away.left
        )
        self.policy.is_applied, self.policy.on_permissions_removed = self.sweep.is_applied, away.taken
        self.subscribing.durable.on_left = away.left
        self.rights.revoke_shares, self.held_filters = (
            self.sweep.revoke_shares,
            SessionFilterReads(node, requests, self.sweep),
        )
        parts = away, self.policy, self.logins, self.rights, self.sweep, self.held_filters, self.publishing
        self.access = EdgeAccess((*parts, self.connecting.turns), (self.logins, self.rights, self.conduct))

    def _join_subscriptions(self, sys: SysTopics) -> None:
        node, hot, local = self.node, self.hot, self.routes.local
        self.figures = SysMetrics(node, hot, self.clients, self.routes, sys, self.rights)
        self.held = LiveMessageHolds(node, hot, local, self.rights)
        self.retained = RetainedReads(node, hot, self.requests, self.held, sys, self.rights, self._absent)
        self.has_room: Callable[[LoopConnection], None] = self.retained.has_room  # of Handler
        parts = local, self.registrar, self.held, self.retained, self.rights
        self.subscribing = SubscribeHandler(node, hot, self.clients, self.requests, *parts)
        packets = ClientPackets(node, self.clients, self.connecting, self.logins, self.subscribing, self.leaving)
        self.packet: Callable[[LoopConnection, int, bytes], None] = packets.take  # of Handler

    def _join_publishing(self) -> None:
        node, hot, clients, routes = self.node, self.hot, self.clients, self.routes
        self.picking = Picking(routes.local, node.limits.sticky_shares, node.count)
        sending = MessageSender(node, hot, clients, routes)
        self._ordered_messages = OperatorMessages(node, routes, sending)
        self.recording = Recording(node, hot, clients, self.requests, routes, self.picking, sending, self.rights)
        answers, handlers = OrderAnswers(node), (sending, self.recording, self.conduct, self._absent)
        self.publishing = EdgePublishing(node, hot, clients, routes, *handlers, answers)
        self.prefetch: Callable[[LoopConnection, list[bytes]], int] = self.publishing.prefetch  # of Handler
        self.given_up: Callable[[bytes, bytes, int], None] = self.publishing.given_up  # of Handler
        self._redispatching = Redispatching(node, hot, routes, self.picking, answers)

    def _join_messages(self) -> NodeMessages:
        receivers = (self.node, self.links, self.follower, self.policy, self.requests, self.routes, self.registrar)
        handlers = (self.leaving, self.claims, self.retained, self.publishing, self.events, self._redispatching)
        return NodeMessages(*receivers, *handlers, self.operators, self._ordered_messages)

    # --- callbacks of the parts

    def _peer_retired(self, key: PeerKey) -> None:
        self.links.over(key)

    def _map_moved(self, cluster_map: ClusterMap) -> None:
        for moved in (self.follower.moved, self.retained.map_moved, self.events.map_moved):
            moved(cluster_map)
        self._relinked()

    def _routes_confirmed(self, names: list[str]) -> None:
        self.subscribing.standing(names)

    # --- interface of the shell

    @property
    def now(self) -> float:
        """Time of the current iteration, s on CLOCK_BOOTTIME."""
        return self.node.now

    @property
    def map(self) -> ClusterMap:
        """The map of this node."""
        return self.lease.map

    @property
    def limits(self) -> EdgeLimits:
        """Bounds and announcements."""
        return self.node.limits

    @property
    def counts(self) -> EdgeCounters:
        """Events of this edge by name."""
        return self.node.counts

    def set_ledger(self, ledger: EdgeLedger) -> None:
        """Record acknowledgements in a ledger."""
        self.ledger = self.hot.ledger = ledger
        self.hot.ledger_offset_ns = ledger.offset_ns()

    @property
    def ready(self) -> bool:
        """Whether clients can be served: a lease, and a response of every partition's primary."""
        return self._readiness.look()

    def stop(self) -> None:
        """Start the orderly stop: the shell has closed the listeners, and waits until ``stopping.order`` has ended."""
        self.stopping.begin(self.now)
        self._next_tick = 0.0
        self.node.wake()

    def replace_rules(self, rules: RuleBook) -> None:
        """Apply other rules to live clients, in slices, and to pending logins."""
        self.rights.replace(rules)
        self.logins.permissions_removed()
        self.node.wake()

    # --- Handler: packets

    def inbound(self, conn: LoopConnection, publish: InboundPublish, route: Route) -> None:
        """Handle a retained PUBLISH, or QoS 2 of a durable session."""
        self.node.wake()
        self.publishing.inbound(conn, publish, route)

    def pubrel(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Handle PUBREL of a durable session."""
        self.node.wake()
        self.recording.pubrel(conn, packet_identifier)

    def miss(self, conn: LoopConnection, topic: bytes) -> None:
        """Look up a topic without a cached Route."""
        self.publishing.miss(conn, topic)

    def fenced(self, conn: LoopConnection) -> None:
        """Pause a publisher of QoS 1 or 2 until the next lease."""
        self.node.wake()
        self._fence.wait(conn)

    def fence_over(self, now_ns: int) -> None:
        """Disconnect clients at the fence deadline, before any other work for them."""
        self.node.wake()
        self._fence.step(now_ns / NS)

    def error(self, conn: LoopConnection, reason_code: int) -> None:
        """End a connection after a protocol error or exceeded bound."""
        self.clients.error(conn, reason_code)

    def memory_exceeded(self) -> None:
        """Reduce the memory that clients use."""
        self.node.wake()
        self.memory.exceeded()

    def accepted(self, listener: object, fd: int, address: str, port: int) -> None:
        """Attach or refuse a new socket, by the service."""
        self.node.wake_lightly()
        self._accept(listener, fd, address, port)

    def authorize(self, conn: LoopConnection, topic: bytes, retain: bool) -> int:
        """Authorize a client's PUBLISH to a topic without a cached verdict."""
        client = conn.context
        return self.rights.authorize(client, topic, retain) if isinstance(client, Client) else 0

    def may_receive(self, conn: LoopConnection, topic: bytes, qos: int) -> bool:
        """Authorize a partition's push to a client with authorized deliveries."""
        client = conn.context
        return isinstance(client, Client) and self.rights.may_receive(client, topic.decode(), qos)

    def closed(self, conn: LoopConnection, why: int) -> None:
        """Remove a closed connection."""
        client = conn.context
        if not isinstance(client, Client):
            self.node.wake()
            self.links.dropped(conn)
            return
        if client.is_plain:
            self.node.wake_lightly()
        else:
            self.node.wake()
        if not self.clients.remove(client):
            return
        if client.subscriptions:
            self.subscribing.ended(client)
        self.connecting.ended(client)
        self.access.closed(client, why)
        if why != ClosedReason.SHUTDOWN:
            for share, publish in self.hot.take_picks(conn):
                self.publishing.redispatch(share, publish)
        conn.context = None  # breaks the reference cycle, which the collector would find only by a full pass
        self.clients.count_closed(client, why)

    # --- Handler: routes and groups

    def refresh(self, route: Route) -> Route | None:
        """Refresh a Route of an older generation before its use."""
        return self.routes.refresh(route)

    def local(self, topic: bytes) -> Route:
        """Return the route of a topic that another edge forwarded."""
        return self.routes.of_local(topic)

    def hold(self, sub: Sub, topic: bytes, record: bytes) -> int:
        """Hold a live copy for a subscriber while its retained messages are read."""
        return self.held.take(sub, topic, record)

    def pick(
        self, group: ShareGroup, route: Route, conn: LoopConnection | None, topic: bytes, qos: int
    ) -> Sub | Remote | None:
        """Pick a destination for a shared subscription's copy."""
        return self.picking.pick(group, topic)

    def picked(self, peer: LoopPeer, share: bytes, topic: bytes, qos: int) -> Sub | None:
        """Pick a local member for a shared subscription's message of another edge."""
        return self.picking.picked(share, topic)

    def refused(self, message: PendingAck, remote: Remote, reason_code: int) -> Sub | Remote | PendingAck | None:
        """Redispatch a copy after its destination refused it or died; each destination is tried at most once."""
        group = message.group
        if isinstance(group, Redispatch):
            group.refused()
            return None
        message.tried = [*(message.tried or ()), remote]
        if isinstance(group, RecordedPick):
            self.recording.redispatch(message, group.group)
            return message
        return self.picking.pick_other(group, message) if isinstance(group, SharedGroup) else None

    # --- Handler: links

    def secured(self, conn: LoopConnection) -> None:
        """Check a link's certificate."""
        self.peers.secured(conn)

    def hello(self, conn: LoopConnection, payload: bytes) -> None:
        """Handle a link's first frame."""
        self.node.wake()
        self.links.hello(conn, payload)

    def broke(self, peer: LoopPeer, why: str) -> None:
        """Refuse an incarnation after an unreadable frame; later incarnations of the node may connect."""
        self.links.broke(peer, why)

    def link_lost(self, peer: LoopPeer) -> None:
        """Handle the end of a link's connection; it resumes after a reconnect."""
        self.links.over(self.peers.key(peer))

    def violated(self, peer: LoopPeer, what: str, reason: str) -> None:
        """Handle a message that its sender may not send."""
        self.links.violated(peer, what, reason)

    def frame(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Handle a frame that the loop does not handle.

        Raises:
            Unreadable: The payload is malformed.
        """
        self.messages.frame(peer, kind, payload)

    # --- time

    def turn_end(self, now_ns: int) -> None:
        """Run the parts before the flush of an iteration: send batches, renew the lease, run timers."""
        now = now_ns / NS
        if self.hot.turn_end_ns and now < self._next_full and self._flush_lightly(now_ns, now):
            return
        self.figures.begin(now)
        if self.stopping.step(now):
            self._next_tick = now
        self.lease.beat(now)
        if self._fence.step(now):
            self.connecting.lease_regained(now)
        self.access.step(now)
        self.connecting.send_claims(now)
        self.subscribing.next_turn()
        self.retained.next_turn()
        self.held.next_turn(now)
        self.follower.next_turn()
        self.cache.flush(now)
        self.operators.turn(now)
        if self._next_tick > now + TICK_S and self._has_pending():
            self._next_tick = now + TICK_S
        if now < self._next_tick:
            # Every change before that comes through a method of ``Handler`` that calls ``wake``.
            self._next_full = now if self._is_other_busy else self._others_deadline()
            self._schedule_iteration(now_ns)
            return
        self._next_full = now  # timers create work: run fully after the next iteration
        self.hot.turn_end_ns = now_ns + 1
        if self.ledger is not None:
            self.hot.ledger_offset_ns = self.ledger.offset_ns()
        self.follower.report()
        self.requests.tick(now)
        self.registrar.tick(now)
        self.cache.tick(now)
        self.retained.tick(now)
        self.held.tick(now)
        self.leaving.tick(now)
        if now >= self._next_sweep and self.links.tick(now):
            self._next_sweep = (now // SWEEP_S + 1) * SWEEP_S  # with a heartbeat: one wake-up for both
        self.figures.tick(now)
        # An idle node sleeps: a timer check costs a wake-up with cold caches.
        self._next_tick = min(now + TICK_S if self._has_pending() else self._next_sweep, self.figures.next_deadline())

    def _flush_lightly(self, now_ns: int, now: float) -> bool:
        """Send pending claims and route lookups only: this iteration called no more than ``wake_lightly``.

        False if they created work for other parts.
        """
        if self.stopping.order.begun:
            return False
        self.hot.turn_end_ns = now_ns
        self.connecting.send_claims(now)
        self.cache.flush(now)
        if not self.hot.turn_end_ns:
            return False
        if self.cache.waits or len(self.requests):
            self._next_tick = min(self._next_tick, now + TICK_S)
            self._next_full = min(self._next_full, self._next_tick)
        self._schedule_iteration(now_ns)
        return True

    def _schedule_iteration(self, now_ns: int) -> None:
        deadline = min(self._next_full, self.cache.next_deadline(), self.connecting.next_deadline())
        self.hot.turn_end_ns = now_ns if self.cache.busy else int(deadline * NS)

    @property
    def busy(self) -> bool:
        """Whether the next iteration must continue work."""
        return self.cache.busy or self._is_other_busy

    @property
    def _is_other_busy(self) -> bool:
        return self.subscribing.busy or self.follower.busy or self.retained.busy

    def _has_pending(self) -> bool:
        """Whether a part waits for a response or a timer: then timers are checked every TICK_S."""
        return bool(
            len(self.requests)
            or self.cache.waits
            or self.registrar.waits
            or self.follower.waits
            or self.retained.waits
            or len(self.held)
            or self.leaving.waits
            or self.stopping.order.begun
            or self.ledger is not None  # the tick sets its clock
        )

    def next_deadline(self) -> float:
        """Return when ``turn_end`` must be called next."""
        return min(self.cache.next_deadline(), self.connecting.next_deadline(), self._others_deadline())

    def _others_deadline(self) -> float:
        """Return when a part other than claims and the route cache has work."""
        return min(
            self._next_tick,
            self.lease.next_deadline(),
            self._fence.next_deadline(),
            self.access.next_deadline(),
            self.operators.next_deadline(),
        )
