"""A cluster of StorageCores on model disks, with the routers' map machine, edges that record, and ordered links.

Links deliver once and in order between two living incarnations; cutting one delays its frames. Disks write and sync one
step later than asked, so that what stands only in the overlay is read too. Time is stepped; nothing runs by itself.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from router.map.commands import Bootstrap, Command, DeclareDead, PlacePartitions, PlaceShards, RegisterNode
from router.map.machine import MapMachine
from router.placement.changes import placement_change
from storage.core import BatchSynced, Event, FrameArrived, LinkDown, LinkUp, Ready, StorageCore, Tick
from storage.state.settings import PartitionSettings
from storage.store.errors import StoreShort
from storage.store.settings import StoreSettings
from tests.simulation.model_store import ModelDisk, ModelStore, ModelSync
from wire.messages.batches import (
    PublishAck,
    PublishMessage,
    Push,
    PushAck,
    decode_publish_acks,
    decode_pushes,
    encode_message,
    encode_push_ack,
)
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.map_pages import map_pages
from wire.messages.nodes import (
    Changed,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    MapStep,
    Moved,
    Refused,
    Register,
    Registered,
    RequestChange,
)
from wire.messages.routes import AddRoutes, RoutesAdded
from wire.messages.sessions import (
    Claim,
    Claims,
    CloseSession,
    KickSession,
    OpenSession,
    PollClaims,
    SessionKicked,
    SessionOpened,
    SubscribeSession,
    Subscription,
)
from wire.messages.wills import FireWill, Will, WillFired

STORE_SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
STEP_S = 0.01
ROUTER = "r1"


@dataclass
class Frame:
    """One frame on its way."""

    source: PeerKey
    kind: int
    payload: bytes


@dataclass
class Connection:
    """What an edge knows of one of its clients' connections."""

    client_id: str
    number: int
    owner_epoch: int = 0
    session: int = 0
    outbound: dict[int, Push] = field(default_factory=dict)  # session_seq -> open
    answered: dict[int, int] = field(default_factory=dict)  # session_seq -> type of the last packet of the client
    received: list[Push] = field(default_factory=list)
    open: bool = True
    push_epoch: int = 0  # the highest of its pushes


class Edge:
    """An edge that keeps its requests until they are answered and sends them again to a new primary."""

    def __init__(self, cluster: "Cluster", name: str, incarnation: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = PeerKey(name, TIER_EDGE, incarnation)
        self.controls: list[Control] = []
        self.pushes: list[Push] = []
        self.acks: list[PublishAck] = []
        self.connections: dict[str, Connection] = {}
        self.by_session: dict[int, Connection] = {}
        self.kicked: list[KickSession] = []
        self.answer_kicks = True
        self.answer_wills = True
        self.clean_kicks = False
        self.wills: list[FireWill] = []
        self.unfinished: dict[int, tuple[int, PublishMessage]] = {}  # tag -> partition, message
        self.asked: dict[int, tuple[int, Any]] = {}  # request -> partition, message
        self.tags = itertools.count(1)
        self.requests = itertools.count(1)
        self.primaries: dict[int, tuple[int, str, int]] = {}
        self.acked: dict[int, int] = {}  # tag -> reason code

    # --- sending

    def _send(self, partition: int, kind: int, payload: bytes) -> None:
        primary = self.cluster.machine.map.partitions[partition].primary
        node = self.cluster.nodes.get(primary)
        if node is not None and self.cluster.machine.map.is_alive(primary, node.key.incarnation):
            self.cluster.send(self.key, primary, kind, payload)

    def ask(self, message: Any) -> int:
        """Send a request of a partition; it is repeated under a new epoch until answered."""
        partition = message.partition
        self.asked[message.request] = (partition, message)
        self._send(partition, FrameKind.CONTROL, encode_control(message))
        return int(message.request)

    def epoch(self, partition: int) -> int:
        """Return the partition_epoch of now."""
        return self.cluster.machine.map.partitions[partition].epoch

    def publish(self, message: PublishMessage, partition: int) -> int:
        """Send one message; kept until it is acknowledged."""
        if message.qos:
            message.tag = next(self.tags)
            self.unfinished[message.tag] = (partition, message)
        message.partitions, message.epochs = (partition,), (self.epoch(partition),)
        self._send(partition, FrameKind.PUBLISH, encode_message(message))
        return message.tag

    def acknowledge(
        self, push: Push, packet_type: int, reason_code: int = 0, connection: Connection | None = None
    ) -> None:
        """Forward what the client acknowledged, on the newest connection of its session or on an older one."""
        connection = connection or self.by_session[push.session]
        connection.answered[push.session_seq] = packet_type
        if packet_type != 5 or reason_code >= 0x80:
            connection.outbound.pop(push.session_seq, None)
        ack = PushAck(
            push.session, connection.owner_epoch, push.partition_epoch, push.session_seq, packet_type, reason_code
        )
        self._send(push.session >> 48, FrameKind.PUSH_ACK, encode_push_ack(ack))

    def map_moved(self) -> None:
        """Send again, in order, what a partition of another epoch has not answered; messages to a new primary only."""
        for number, placement in enumerate(self.cluster.machine.map.partitions):
            node = self.cluster.machine.map.nodes.get(placement.primary)
            now = (placement.epoch, placement.primary, node.incarnation if node is not None else 0)
            before = self.primaries.get(number, (0, "", 0))
            if now == before or not placement.primary:
                continue
            self.primaries[number] = now
            for request, (partition, message) in list(self.asked.items()):
                if partition == number:
                    message.partition_epoch = placement.epoch
                    self.asked[request] = (partition, message)
                    self._send(number, FrameKind.CONTROL, encode_control(message))
            if now[1:] != before[1:]:
                for partition, publish in list(self.unfinished.values()):
                    if partition == number:
                        publish.repeat, publish.epochs = True, (placement.epoch,)
                        self._send(number, FrameKind.PUBLISH, encode_message(publish))

    # --- taking

    def take(self, frame: Frame) -> None:
        """Take one frame of a storage node."""
        if frame.kind == FrameKind.PUSH:
            for push in decode_pushes(frame.payload):
                self._push(push)
        elif frame.kind == FrameKind.PUBLISH_ACK:
            for ack in decode_publish_acks(frame.payload):
                self.acks.append(ack)
                self.acked[ack.tag] = ack.reason_code
                self.unfinished.pop(ack.tag, None)
        else:
            self._control(decode_control(frame.payload), frame.source)

    def _push(self, push: Push) -> None:
        connection = self.by_session.get(push.session)
        if connection is None or push.owner_epoch != connection.owner_epoch:
            return
        if push.partition_epoch < connection.push_epoch:
            return  # of a former primary: the present one pushes everything anew
        connection.push_epoch = push.partition_epoch
        answered = connection.answered.get(push.session_seq, 0)
        if push.qos and (answered in (4, 7) or (answered == 5 and not push.pubrel)):
            self.acknowledge(push, answered)  # what the client said is never asked of it again
            return
        if push.session_seq in connection.outbound and not push.pubrel:
            return  # stands on this very connection already
        self.pushes.append(push)
        connection.received.append(push)
        if push.qos:
            connection.outbound[push.session_seq] = push

    def _control(self, message: Control, source: PeerKey) -> None:
        self.controls.append(message)
        if isinstance(message, SessionOpened):
            self._opened(message)
        elif isinstance(message, KickSession):
            self.kicked.append(message)
            for connection in self.connections.values():
                if connection.client_id == message.client_id and 0 < connection.owner_epoch <= message.owner_epoch:
                    connection.open = False
            if self.answer_kicks:
                answer = SessionKicked(message.request, message.client_id, self.clean_kicks, message.owner_epoch)
                self.cluster.send(self.key, source.node, FrameKind.CONTROL, encode_control(answer))
        elif isinstance(message, PollClaims):
            self._polled(message, source)
        elif isinstance(message, FireWill):
            self.wills.append(message)
            if self.answer_wills:
                answer_fired = WillFired(message.request, message.partition, message.op_index)
                self.cluster.send(self.key, source.node, FrameKind.CONTROL, encode_control(answer_fired))
        elif hasattr(message, "request"):
            if not isinstance(message, Moved):
                self.asked.pop(message.request, None)
            elif message.request in self.asked:
                asked = self.asked[message.request][1]
                if message.epoch == asked.partition_epoch:  # the right primary, which is not ready for this edge
                    self.ask(asked)

    def _opened(self, message: SessionOpened) -> None:
        asked = self.asked.pop(message.request, None)
        if asked is None or message.reason_code:
            return
        connection = self.connections[asked[1].client_id]
        connection.owner_epoch = message.owner_epoch
        connection.session = message.session
        if message.session:
            self.by_session[message.session] = connection

    def _polled(self, message: PollClaims, source: PeerKey) -> None:
        count = len(self.cluster.machine.map.partitions)
        claims = [
            Claim(
                connection.client_id,
                connection.number,
                connection.owner_epoch,
                connection.session,
                [(push.packet_identifier, push.partition_epoch, seq) for seq, push in connection.outbound.items()],
            )
            for connection in self.connections.values()
            if connection.open
            and connection.owner_epoch
            and self.cluster.machine.map.partition_for(connection.client_id) == message.partition
        ]
        assert count
        answer = Claims(message.request, message.partition, message.partition_epoch, claims)
        self.cluster.send(self.key, source.node, FrameKind.CONTROL, encode_control(answer))

    # --- what tests do

    def open(
        self,
        client_id: str,
        *,
        clean_start: bool = False,
        expiry_s: int = 3600,
        will: Will | None = None,
        receive_maximum: int = 64,
        settle: bool = True,
    ) -> Connection:
        """Open a session and wait for the answer."""
        partition = self.cluster.machine.map.partition_for(client_id)
        connection = Connection(client_id, next(self.cluster.numbers))
        self.connections[client_id] = connection
        self.ask(
            OpenSession(
                next(self.requests),
                partition,
                self.epoch(partition),
                client_id,
                connection.number,
                clean_start,
                expiry_s,
                will,
                5,
                receive_maximum,
            )
        )
        if settle:
            self.cluster.settle()
        return connection

    def subscribe(self, connection: Connection, *filters: Subscription | str, settle: bool = True) -> int:
        """Subscribe a durable session; QoS 2 unless said otherwise."""
        partition = connection.session >> 48
        subscriptions = [one if isinstance(one, Subscription) else Subscription(one, 2) for one in filters]
        for subscription in subscriptions:
            subscription.retain_handling = subscription.retain_handling or 2
        request = SubscribeSession(
            next(self.requests),
            partition,
            self.epoch(partition),
            connection.session,
            connection.owner_epoch,
            subscriptions,
        )
        self.ask(request)
        if settle:
            self.cluster.settle()
        return request.request

    def close(self, connection: Connection, *, clean: bool = True, expiry_s: int = -1, settle: bool = True) -> None:
        """Report the end of a connection."""
        partition = self.cluster.machine.map.partition_for(connection.client_id)
        connection.open = False
        self.ask(
            CloseSession(
                next(self.requests),
                partition,
                self.epoch(partition),
                connection.client_id,
                connection.owner_epoch,
                clean,
                expiry_s,
            )
        )
        if settle:
            self.cluster.settle()

    def answers(self, kind: type) -> list[Any]:
        """Return every control message of a kind that came."""
        return [message for message in self.controls if isinstance(message, kind)]


class Node:
    """One storage process on its disk."""

    def __init__(self, cluster: "Cluster", name: str, disk: ModelDisk, incarnation: int, *, whole: bool) -> None:
        self.cluster = cluster
        self.key = PeerKey(name, TIER_STORAGE, incarnation)
        self.disk = disk
        self.store = ModelStore.open(disk, "cluster", name, STORE_SETTINGS)
        self.core = StorageCore(
            NodeEntry(name, TIER_STORAGE, incarnation, f"{name}:1"),
            cluster.settings,
            self.store,
            now=cluster.now,
            whole=whole,
        )
        self.events: list[Event] = []
        self.submitted: deque[tuple[int, list[tuple[bytes, bytes | None]]]] = deque()
        self.syncing: deque[tuple[int, ModelSync]] = deque()
        self.disk_slow = False
        self.ended = False

    def step(self) -> None:
        """One round of the shell's loop; disks are one step behind."""
        self._disk()
        events, self.events = self.events, []
        ready: Ready = self.core.handle(self.cluster.now, events or [Tick()])
        if ready.commit:
            self.submitted.append((ready.commit, ready.writes))
        for node, kind, payload in ready.sends:
            self.cluster.send(self.key, node, kind, payload)
        self.ended = ready.ended

    def _disk(self) -> None:
        if self.disk_slow:
            return
        while self.syncing:
            number, ticket = self.syncing.popleft()
            ticket.run()
            self.store.acked(ticket.commit_no)
            self.events.append(BatchSynced(number))
        newest = 0
        while self.submitted:
            newest, writes = self.submitted.popleft()
            self.store.write(writes)
        if newest:
            self.syncing.append((newest, self.store.begin_sync()))

    @property
    def busy(self) -> bool:
        """True while something is on its way to the disk."""
        return bool(self.events or self.submitted or self.syncing)


class Cluster:
    """Storage nodes, edges and one router, stepped together."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        replicas: int = 1,
        min_in_sync: int = 1,
        partitions: int = 2,
        shards: int = 1,
        edges: int = 2,
        settings: PartitionSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.now = 100.0
        self.rng = random.Random(seed)
        self.settings = settings or PartitionSettings()
        self.machine = MapMachine()
        self.numbers = itertools.count(1)
        self.incarnations = itertools.count(10)
        self.disks: dict[str, ModelDisk] = {}
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, Edge] = {}
        self.links: dict[tuple[str, str], deque[Frame]] = {}
        self.cuts: set[frozenset[str]] = set()
        self.acknowledged: dict[str, int] = {}
        self.shortened = 0
        self.silent: set[str] = set()  # nodes whose map frames are held back
        self.added: list[AddRoutes] = []
        self.routes_answered = True
        self.routes: dict[tuple[int, int], set[str]] = {}
        self.changes: list[RequestChange] = []
        self.filter: Callable[[PeerKey, str, int, bytes], bool] = lambda *_: True  # False: the frame is lost
        self.router_key = PeerKey(ROUTER, TIER_ROUTER, 1)
        self.machine.apply(Bootstrap("cluster", partitions, shards, replicas, min_in_sync, 2.0))
        self.apply(RegisterNode(NodeEntry(ROUTER, TIER_ROUTER, 1, "r1:1")))
        self.apply(PlaceShards(dict.fromkeys(range(shards), ROUTER)))
        for number in range(1, edges + 1):
            self.start_edge(f"e{number}")
        for number in range(1, nodes + 1):
            self.start(f"s{number}")
        self.settle()

    # --- life and death

    def start_edge(self, name: str) -> Edge:
        """Start an edge, or its next life."""
        edge = self.edges[name] = Edge(self, name, next(self.incarnations))
        self.apply(RegisterNode(NodeEntry(name, TIER_EDGE, edge.key.incarnation, f"{name}:1")))
        edge.map_moved()
        return edge

    def kill_edge(self, name: str, *, declare: bool = True) -> None:
        """Kill an edge; by default its lease runs out at once."""
        edge = self.edges.pop(name)
        self._drop_frames(name)
        if declare:
            self.apply(DeclareDead(name, edge.key.incarnation))

    def start(self, name: str) -> Node:
        """Start a storage node on its disk."""
        disk = self.disks.setdefault(name, ModelDisk())
        whole = bool(disk.identity) or not any(entry.epoch for entry in self.machine.map.partitions)
        incarnation = next(self.incarnations)
        try:
            node = Node(self, name, disk, incarnation, whole=whole)
        except StoreShort:
            self.shortened += 1
            disk.wipe()
            node = Node(self, name, disk, incarnation, whole=False)
        self.nodes[name] = node
        node.events.append(LinkUp(self.router_key))
        for other in self.nodes.values():
            if other is not node:
                other.events.append(LinkUp(node.key))
                node.events.append(LinkUp(other.key))
        return node

    def kill(self, name: str, *, power: bool = False, wipe: bool = False, declare: bool = True) -> None:
        """Kill -9, power loss or loss of the disk; by default the lease runs out at once."""
        node = self.nodes.pop(name)
        if power:
            node.disk.power_loss(self.rng)
        else:
            node.disk.kill()
        if wipe:
            node.disk.wipe()
        self._drop_frames(name)
        self.acknowledged.pop(name, None)
        for other in self.nodes.values():
            other.events.append(LinkDown(node.key))
        if declare:
            self.apply(DeclareDead(name, node.key.incarnation))

    def _drop_frames(self, name: str) -> None:
        for pair in [pair for pair in self.links if name in pair]:
            del self.links[pair]

    # --- links

    def send(self, source: PeerKey, target: str, kind: int, payload: bytes) -> None:
        """Put a frame on a link; it is for the life that the target lives now, and for no later one."""
        assert len(payload) <= FRAME_BYTES_MAX  # a link takes no more
        if target != ROUTER and target not in self.nodes and target not in self.edges:
            return
        if self.filter(source, target, kind, payload):
            self.links.setdefault((source.node, target), deque()).append(Frame(source, kind, payload))

    def cut(self, one: str, other: str) -> None:
        """Frames between two nodes stay on the link until it is healed."""
        self.cuts.add(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            if here in self.nodes and there in self.nodes:
                self.nodes[here].events.append(LinkDown(self.nodes[there].key))

    def heal(self, one: str, other: str) -> None:
        """The link stands again and goes on where it was."""
        self.cuts.discard(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            if here in self.nodes and there in self.nodes:
                self.nodes[here].events.append(LinkUp(self.nodes[there].key))

    def _deliver(self) -> None:
        for (source, target), frames in sorted(self.links.items()):
            if frozenset((source, target)) in self.cuts:
                continue
            if target in self.silent and source == ROUTER:
                continue
            batch, self.links[source, target] = list(frames), deque()
            for frame in batch:
                if target == ROUTER:
                    self._router(frame)
                elif target in self.edges:
                    self.edges[target].take(frame)
                elif target in self.nodes:
                    self.nodes[target].events.append(FrameArrived(frame.source, frame.kind, frame.payload))

    # --- the router

    def apply(self, command: Command) -> str:
        """Commit a command of the map and tell everybody."""
        outcome = self.machine.apply(command)
        if outcome.delta is not None:
            for name in self.nodes:
                self.send(self.router_key, name, FrameKind.CONTROL, encode_control(MapStep(outcome.delta)))
            for edge in self.edges.values():
                edge.map_moved()
        return outcome.refusal

    def _tell(self, node: str, message: Control) -> None:
        self.send(self.router_key, node, FrameKind.CONTROL, encode_control(message))

    def _router(self, frame: Frame) -> None:
        node, message = frame.source.node, decode_control(frame.payload)
        if isinstance(message, Register):
            self.apply(RegisterNode(message.entry, message.whole))
            self._tell(node, Registered(message.request, message.entry.incarnation, self.machine.map.epoch))
        elif isinstance(message, FollowMap):
            for page in map_pages(self.machine.map):
                self._tell(node, page)
        elif isinstance(message, Heartbeat):
            self.acknowledged[node] = message.map_epoch
            settled = min(
                [self.machine.map.epoch, *(self.acknowledged.get(entry.node, 0) for entry in self._live_storage())]
            )
            reply = HeartbeatReply(
                message.incarnation, message.sent_at, 2.0, settled, ROUTER, map_epoch=self.machine.map.epoch
            )
            self._tell(node, reply)
        elif isinstance(message, AddRoutes):
            self.added.append(message)
            self.routes.setdefault((message.partition, message.shard), set()).update(
                entry.topic_filter for entry in message.routes
            )
            if self.routes_answered:
                self._tell(node, RoutesAdded(message.request, message.shard, message.shard_epoch, message.sender_epoch))
        elif isinstance(message, RequestChange):
            self.changes.append(message)
            entry, refusal = placement_change(self.machine.map, node, message)
            if entry is None:
                self._tell(node, Refused(message.request, "invalid", refusal))
            else:
                refusal = self.apply(PlacePartitions({message.partition: entry}))
                assert not refusal
                self._tell(node, Changed(message.request, self.machine.map.epoch))

    def _live_storage(self) -> list[NodeEntry]:
        return self.machine.map.live(TIER_STORAGE)

    # --- time

    def step(self, seconds: float = STEP_S) -> None:
        """Let everybody do one round."""
        self.now += seconds
        self._deliver()
        for name in sorted(self.nodes):
            node = self.nodes[name]
            node.step()
        for name in [name for name, node in sorted(self.nodes.items()) if node.ended]:
            self.kill(name, declare=False)
            self.start(name)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.step()

    def settle(self, seconds: float = 3.0) -> None:
        """Step until nothing is on its way but heartbeats."""
        end = self.now + seconds
        quiet = 0
        while quiet < 4:
            assert self.now < end, "does not come to rest"
            self.step()
            moving = any(node.busy for node in self.nodes.values()) or any(
                self._matters(pair, frame) for pair, frames in self.links.items() for frame in frames
            )
            quiet = 0 if moving else quiet + 1

    def _matters(self, pair: tuple[str, str], frame: Frame) -> bool:
        if frozenset(pair) in self.cuts or (pair[1] in self.silent and pair[0] == ROUTER):
            return False
        if frame.kind != FrameKind.CONTROL:
            return True
        return not isinstance(decode_control(frame.payload), Heartbeat | HeartbeatReply)

    # --- looking

    def primary(self, partition: int) -> Node:
        """Return the node that serves a partition by the map."""
        return self.nodes[self.machine.map.partitions[partition].primary]

    def crash_all(self, *, power: bool = False) -> None:
        """Kill every storage node and start them again, in order."""
        names = sorted(self.nodes)
        for name in names:
            self.kill(name, power=power, declare=False)
        for name in names:
            self.start(name)
        self.settle()


def with_settings(**changes: object) -> PartitionSettings:
    """Return settings that differ from the defaults."""
    return replace(PartitionSettings(), **changes)  # type: ignore[arg-type]
