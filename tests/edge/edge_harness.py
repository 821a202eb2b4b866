"""An edge core without sockets: tests drive its loop, and supply the responses of routers and storage nodes."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from access.identity.chain import Chain, ChainRules
from access.identity.principal import AuthenticationStep, CertificateFacts
from edge.clients.client import Client
from edge.core import EdgeCore
from edge.login.ban_view import RevokedView
from edge.login.chains import Chains
from edge.loop.options import ConnOptions, HotLimits
from edge.loop.state import CLIENT, LoopConnection
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.node.node import EdgeNode
from edge.rights.sources import RuleBook
from mqtt.codec import decode_packet, encode_packet
from mqtt.packets import Connect, Packet, Publish, Subscribe, SubscriptionRequest, Unsubscribe
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.connects import ConnectAnswer, ConnectRequest
from wire.messages.control import Control
from wire.messages.disconnected_sessions import (
    DisconnectedListed,
    DisconnectedRevoked,
    ListDisconnected,
    RevokeDisconnected,
)
from wire.messages.hello import NodeIdentity
from wire.messages.map_pages import map_pages
from wire.messages.nodes import HeartbeatReply, MapStep
from wire.messages.retained import (
    DeliverRetained,
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedMessage,
    RetainedNone,
    RetainedPage,
)
from wire.messages.routes import AddRoutes, Destinations, Resolve, Resolved, RoutesAdded
from wire.messages.sessions import (
    CloseSession,
    InboundRecorded,
    InboundReleased,
    OpenSession,
    RecordInbound,
    ReleaseInbound,
    SessionClosed,
    SessionOpened,
    SessionSubscribed,
    SessionUnsubscribed,
    SubscribeSession,
    UnsubscribeSession,
)

PARTITIONS = 4
SHARDS = 2
START = 1000.0
START_UTC = 1_800_000_000.0


def cluster_map(epoch: int = 1, primary: str = "s0", partition_epoch: int = 1, shard_epoch: int = 1) -> ClusterMap:
    nodes = {
        name: NodeEntry(name, tier, 1, f"{name}:1", state=NodeState.ACTIVE)
        for name, tier in (("e0", "edge"), ("e1", "edge"), ("r0", "router"), ("s0", "storage"), ("s1", "storage"))
    }
    return ClusterMap(
        "c",
        epoch,
        nodes,
        [PartitionEntry(partition_epoch, primary, (primary,)) for _ in range(PARTITIONS)],
        [ShardEntry(shard_epoch, "r0") for _ in range(SHARDS)],
        base_shards=SHARDS,
    )


class RecordingNode(EdgeNode):
    """Records messages to other nodes instead of sending them."""

    def __init__(self, *arguments: Any) -> None:
        self.told: list[tuple[str, Control]] = []
        self.reachable = True
        super().__init__(*arguments)

    def tell(self, node: str, message: Control) -> bool:
        if self.reachable:
            self.told.append((node, message))
        return self.reachable

    def tell_all(self, node: str, messages: list[Control]) -> int:
        return sum(self.tell(node, message) for message in messages)

    def send_connect_requests(self, node: str, records: list[ConnectRequest]) -> int:
        return self.tell_all(node, cast("list[Control]", records))


class RecordingEdge(EdgeCore):
    """An edge with recorded messages to other nodes."""

    node_type = RecordingNode
    node: RecordingNode

    @property
    def told(self) -> list[tuple[str, Control]]:
        return self.node.told

    @told.setter
    def told(self, told: list[tuple[str, Control]]) -> None:
        self.node.told = told


class StepChains(Chains):
    """The same steps at each listener."""

    def __init__(self, steps: Sequence[AuthenticationStep]) -> None:
        super().__init__(b"secret of a test")
        self.steps = steps
        self.revoked = RevokedView(self.bans)
        self._made: dict[bool, Chain] = {}

    def of(self, policy: ListenerPolicy) -> Chain:
        if policy.allow_anonymous not in self._made:
            rules = ChainRules(policy.allow_anonymous)
            self._made[policy.allow_anonymous] = Chain(self.steps, rules, self.revoked, self.bans)
        return self._made[policy.allow_anonymous]


def facts(name: str, *, of_cluster: bool = False, serial: str = "1f") -> CertificateFacts:
    """Return the facts of a certificate with one common name."""
    return CertificateFacts({"cn": (name,)}, serial, "ab" * 32, "cd" * 32, of_cluster=of_cluster)


class Edge:
    """One edge with a router r0 and storage s0 that respond at once, except to messages in ``held``."""

    def __init__(
        self,
        limits: EdgeLimits | None = None,
        steps: Sequence[AuthenticationStep] = (),
        read_certificate: Callable[[LoopConnection], CertificateFacts | None] = lambda _: None,
        rules: RuleBook | None = None,
        **hot_limits: Any,
    ) -> None:
        self.now = START
        self.chains = StepChains(steps)
        self.assigned = 0
        self.core = RecordingEdge(
            NodeIdentity("c", "e0", "edge", 1, "e0:1"),
            NodeEntry("e0", "edge", 1, "e0:1"),
            limits or EdgeLimits(sys_interval_s=0),
            HotLimits(partitions=PARTITIONS, **hot_limits),
            chains=self.chains,
            read_certificate=read_certificate,
            utc=lambda: START_UTC + self.now - START,
            rules=rules,
            new_client_id=self._new_client_id,
        )
        self.core.told = []
        self.held: set[type] = set()
        self.seen: list[Control] = []  # all sent messages
        self.routes: dict[str, Destinations] = {}  # topic -> the router's response
        self.retained: list[RetainedMessage] = []
        self.sessions: dict[str, int] = {}
        self.epochs = 0
        self.core.lease.router_up("r0", self.now, 1)
        self.core.lease.beat(self.now)  # requests the map
        self.router(*map_pages(cluster_map()))
        self.renew()

    def _new_client_id(self) -> str:
        self.assigned += 1
        return f"auto-{self.assigned}"

    def register(self, *entries: NodeEntry) -> None:
        """Register nodes in the next map epoch."""
        cluster_map = self.core.node.map
        self.router(MapStep(MapDelta(cluster_map.epoch + 1, entries, before=cluster_map.digest)))

    # --- time

    def renew(self, lease_s: float = 1000.0, leader: str = "r0", policy_epoch: int = 0) -> None:
        self.core.lease.router_up("r0", self.now, 1)
        self.core.lease.beat(self.now)
        if leader != "r0":  # r0 names the leader, which then gets its own heartbeat
            self.router(HeartbeatReply(1, self.now, 0.0, 0, leader))
            self.core.lease.router_up(leader, self.now, 1)
            self.core.lease.beat(self.now)
        self.router(HeartbeatReply(1, self.now, lease_s, 1, leader, policy_epoch=policy_epoch), node=leader)
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        """Advance the time and answer requests until there are none left."""
        self.now += seconds
        for _ in range(1_000):
            self.core.hot.begin_turn(self.ns)
            self.core.hot.end_turn(self.ns)
            if not (self.answer() or self.core.busy or self.core.hot.wants_turn()):
                return

    @property
    def ns(self) -> int:
        return int(self.now * 1e9)

    # --- other nodes

    def router(self, message: Control, *, node: str = "r0") -> None:
        self.core.messages.from_router(node, message)

    def storage(self, message: Control | ConnectAnswer, node: str = "s0") -> None:
        if isinstance(message, ConnectAnswer):
            self.core.messages.connect_answered(node, message)
        else:
            self.core.messages.from_storage(node, message)

    def take(self, kind: type | tuple[type, ...]) -> list[Any]:
        """Return and remove the recorded messages of one type."""
        taken = [message for _, message in self.core.told if isinstance(message, kind)]
        self.core.told = [item for item in self.core.told if not isinstance(item[1], kind)]
        return taken

    def answer(self) -> bool:
        told = [item for item in self.core.told if type(item[1]) not in self.held]
        self.core.told = [item for item in self.core.told if type(item[1]) in self.held]
        answered = False
        for _, message in told:
            self.seen.append(message)
            reply = self.reply(message)
            if reply is not None:
                answered = True
                (self.router if isinstance(message, Resolve | AddRoutes) else self.storage)(reply)
        return answered

    def reply(self, message: Any) -> Control | None:
        if isinstance(message, Resolve):
            found = [self.routes.get(topic, Destinations()) for topic in message.topics]
            return Resolved(message.request, message.shard_epoch, found, list(range(len(found))))
        if isinstance(message, AddRoutes):
            return RoutesAdded(message.request, message.shard, message.shard_epoch, message.sender_epoch)
        if isinstance(message, OpenSession):
            return cast(Control, self._open(message))  # the other types than the two records of a connect
        if isinstance(message, SubscribeSession):
            codes = [subscription.qos for subscription in message.subscriptions]
            return SessionSubscribed(message.request, codes, [False] * len(codes))
        if isinstance(message, UnsubscribeSession):
            return SessionUnsubscribed(message.request, [0] * len(message.topic_filters))
        if isinstance(message, ReadRetained):
            return RetainedPage(message.request, list(self.retained), partition=message.partition)
        if isinstance(message, ReadRetainedAll):
            return self._read_all(message)
        simple: dict[type, Callable[[Any], Any]] = {
            CloseSession: lambda m: SessionClosed(m.request, True),
            RecordInbound: lambda m: InboundRecorded(m.request, m.packet_identifier),
            ReleaseInbound: lambda m: InboundReleased(m.request),
            DeliverRetained: lambda m: RetainedDelivered(m.request, taken=len(m.messages)),
            ListDisconnected: lambda m: DisconnectedListed(m.request),
            RevokeDisconnected: lambda m: DisconnectedRevoked(m.request, len(m.topic_filters)),
        }
        make = simple.get(type(message))
        return None if make is None else cast(Control, make(message))

    def _open(self, message: OpenSession) -> SessionOpened:
        self.epochs += 1
        present = message.client_id in self.sessions and not message.clean_start
        session = 0
        if message.expiry_s or present:
            number = message.partition << 48 | len(self.sessions) + 1
            session = self.sessions.setdefault(message.client_id, number)
        return SessionOpened(
            message.request, message.partition, message.partition_epoch, 0, self.epochs, session, present
        )

    def _read_all(self, message: ReadRetainedAll) -> Control:
        if not self.retained:
            return RetainedNone(message.request, list(range(PARTITIONS)))
        self.storage(RetainedNone(message.request, list(range(1, PARTITIONS))))
        return RetainedPage(message.request, list(self.retained), partition=0)

    # --- clients

    def accept(self, policy: ListenerPolicy | None = None, stream_filter: Any = None) -> "Session":
        limits = self.core.limits
        options = ConnOptions(
            packet_bytes_max=limits.unauthenticated_bytes_max,
            connect_timeout_ns=int(limits.connect_timeout_s * 1e9),
            first_packet_ns=int(limits.connect_packet_timeout_s * 1e9),
            filter=stream_filter,
        )
        conn = self.core.hot.attach(-1, CLIENT, options, self.ns)
        client = Client(conn, policy or ListenerPolicy("plain", True), stream_filter)
        conn.context = client
        self.core.clients.adopt(client)
        return Session(self, client)

    def client(
        self, client_id: str = "c", version: int = 5, properties: dict[int, object] | None = None, **options: Any
    ) -> "Session":
        session = self.accept()
        session.connect(client_id, version, properties, **options)
        (connack,) = session.read()
        assert connack.reason_code == 0, connack
        session.connack = connack
        return session


class Session:
    """A client's end of a connection."""

    def __init__(self, edge: Edge, client: Client) -> None:
        self.edge = edge
        self.client = client
        self.version = 5
        self.connack: Any = None

    def send(self, packet: Packet | bytes) -> None:
        data = packet if isinstance(packet, bytes) else encode_packet(packet, self.version)
        self.edge.core.hot.begin_turn(self.edge.ns)
        self.edge.core.hot.feed(self.client.conn, data)
        self.edge.core.hot.end_turn(self.edge.ns)
        if self.edge.answer() or self.edge.core.busy:
            self.edge.turn()

    def connect(
        self,
        client_id: str = "c",
        version: int = 5,
        properties: dict[int, object] | None = None,
        clean_start: bool = True,
        keep_alive_s: int = 60,
        **more: Any,
    ) -> None:
        self.version = version
        self.send(Connect(client_id, clean_start, keep_alive_s, version, properties=properties or {}, **more))

    def subscribe(self, *filters: str, qos: int = 2, identifier: int = 1, **options: Any) -> None:
        properties = options.pop("properties", {})
        self.send(Subscribe(identifier, [SubscriptionRequest(name, qos, **options) for name in filters], properties))

    def unsubscribe(self, *filters: str, identifier: int = 2) -> None:
        self.send(Unsubscribe(identifier, list(filters), {}))

    def publish(self, topic: str, payload: bytes = b"m", qos: int = 0, identifier: int = 0, **options: Any) -> None:
        properties = options.pop("properties", {})
        self.send(
            Publish(topic, payload, qos=qos, packet_identifier=identifier or None, properties=properties, **options)
        )

    def drop(self) -> None:
        """Close without DISCONNECT."""
        self.edge.core.hot.end_of_file(self.client.conn)
        self.edge.turn()

    def read(self) -> list[Any]:
        """Return the packets that were written."""
        data = self.edge.core.hot.take_output(self.client.conn)
        packets, at = [], 0
        while at < len(data):
            length, shift, body = 0, 0, at + 1
            while True:
                length |= (data[body] & 0x7F) << shift
                shift += 7
                body += 1
                if data[body - 1] < 0x80:
                    break
            packets.append(decode_packet(data[at], data[body : body + length], self.version))
            at = body + length
        return packets

    @property
    def closed(self) -> bool:
        return self.client.conn.closed


def with_clients() -> tuple[Edge, Session, Session]:
    """Return an edge with a subscriber s and a publisher p."""
    edge = Edge()
    return edge, edge.client("s"), edge.client("p")
