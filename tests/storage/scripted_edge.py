"""Scripted edges of a storage cluster: they keep requests until answered and forward the clients' acknowledgements.

An edge follows the contract of a real one: it sends unanswered requests again to a partition of another epoch, and
rejects pushes of a former primary. It does no more by itself.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from wire.messages.connects import ConnectAnswer, ConnectRequest, decode_answers, encode_record
from wire.messages.control import Control, decode_control, encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.nodes import Moved
from wire.messages.sessions import (
    Claim,
    Claims,
    CloseSession,
    KickSession,
    OpenSession,
    PollClaims,
    SessionKicked,
    SessionOpened,
    SessionSubscription,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.messages.wills import FireWill, SessionWill, WillFired

if TYPE_CHECKING:
    from tests.storage.storage_cluster import Cluster

__all__ = ["Connection", "Edge", "encoded"]


@dataclass
class Connection:
    """An edge's state of one client connection."""

    client_id: str
    number: int
    owner_epoch: int = 0
    session: int = 0
    outbound: dict[int, Push] = field(default_factory=dict)  # session_seq -> open
    answered: dict[int, int] = field(default_factory=dict)  # session_seq -> type of the last packet of the client
    received: list[Push] = field(default_factory=list)
    open: bool = True
    push_epoch: int = 0  # the highest of its pushes
    owner: tuple[str, int] = ("", 0)  # user, and the policy_epoch at which it was made
    refused: int = 0  # reason code of its CONNECT


class Edge:
    """An edge that keeps its requests until they are answered and sends them again to a new primary."""

    def __init__(self, cluster: "Cluster", name: str, incarnation: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = PeerKey(name, TIER_EDGE, incarnation)
        self.controls: list[Control | ConnectAnswer] = []
        self.pushes: list[Push] = []
        self.acks: list[PublishAck] = []
        self.connections: dict[str, Connection] = {}
        self.by_session: dict[int, Connection] = {}
        self.kicked: list[KickSession] = []
        self.answer_kicks = True
        self.answer_wills = True
        self.clean_kicks = False
        self.wills: list[FireWill] = []
        self.unanswered: list[tuple[PeerKey, FireWill]] = []  # while it does not answer wills
        self.unfinished: dict[int, tuple[int, PublishMessage]] = {}  # tag -> partition, message
        self.asked: dict[int, tuple[int, Any]] = {}  # request -> partition, message
        self.tags = itertools.count(1)
        self.requests = itertools.count(1)
        self.primaries: dict[int, tuple[int, str, int]] = {}
        self.acked: dict[int, int] = {}  # tag -> reason code
        self._frame: dict[tuple[int, int], list[bytes]] | None = None  # partition, kind -> records that share a frame

    # --- sending

    @contextmanager
    def one_frame(self) -> Iterator[None]:
        """Send the records of one kind to one partition in one frame, like those of an edge's iteration."""
        self._frame = {}
        yield
        frames, self._frame = self._frame, None
        for (partition, kind), records in frames.items():
            self._send(partition, kind, b"".join(records))

    def _send(self, partition: int, kind: int, payload: bytes) -> None:
        if self._frame is not None:
            self._frame.setdefault((partition, kind), []).append(payload)
            return
        primary = self.cluster.map.partitions[partition].primary
        node = self.cluster.nodes.get(primary)
        if node is not None and self.cluster.map.is_alive(primary, node.key.incarnation):
            self.cluster.send(self.key, primary, kind, payload)

    def ask(self, message: Any) -> int:
        """Send a request of a partition; it is repeated under a new epoch until answered."""
        partition = message.partition
        self.asked[message.request] = (partition, message)
        self._send(partition, *encoded(message))
        return int(message.request)

    def epoch(self, partition: int) -> int:
        """Return the current partition_epoch."""
        return self.cluster.map.partitions[partition].epoch

    def head(self, partition: int) -> tuple[int, int, int]:
        """Return the head of a partition request: its number, the partition and its epoch."""
        return next(self.requests), partition, self.epoch(partition)

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
        """Forward a client's acknowledgement, on the newest connection of its session or on an older one."""
        connection = connection or self.by_session[push.session]
        connection.answered[push.session_seq] = packet_type
        if packet_type != 5 or reason_code >= 0x80:
            connection.outbound.pop(push.session_seq, None)
        ack = PushAck(
            push.session, connection.owner_epoch, push.partition_epoch, push.session_seq, packet_type, reason_code
        )
        self._send(push.session >> 48, FrameKind.PUSH_ACK, encode_push_ack(ack))

    def map_moved(self) -> None:
        """Send again, in order, unanswered requests to a partition of another epoch."""
        for number, placement in enumerate(self.cluster.map.partitions):
            node = self.cluster.map.nodes.get(placement.primary)
            now = (placement.epoch, placement.primary, node.incarnation if node is not None else 0)
            before = self.primaries.get(number, (0, "", 0))
            if now == before or not placement.primary:
                continue
            self.primaries[number] = now
            for request, (partition, message) in list(self.asked.items()):
                if partition == number:
                    message.partition_epoch = placement.epoch
                    self.asked[request] = (partition, message)
                    self._send(number, *encoded(message))
            for partition, publish in list(self.unfinished.values()):
                if partition == number:
                    publish.epochs = (placement.epoch,)
                    self._send(number, FrameKind.PUBLISH, encode_message(publish))

    # --- taking

    def take(self, source: PeerKey, kind: int, payload: bytes) -> None:
        """Take one frame of a storage node."""
        if kind == FrameKind.PUSH:
            for push in decode_pushes(payload):
                self._push(push)
        elif kind == FrameKind.PUBLISH_ACK:
            for ack in decode_publish_acks(payload):
                self.acks.append(ack)
                self.acked[ack.tag] = ack.reason_code
                self.unfinished.pop(ack.tag, None)
        elif kind == FrameKind.CONNECT_ANSWERS:
            for answer in decode_answers(payload):
                self._control(answer, source)
        else:
            self._control(decode_control(payload), source)

    def _push(self, push: Push) -> None:
        connection = self.by_session.get(push.session)
        if connection is None or push.owner_epoch != connection.owner_epoch:
            return
        if push.partition_epoch < connection.push_epoch:
            return  # of a former primary: the present one pushes all entries again
        connection.push_epoch = push.partition_epoch
        answered = connection.answered.get(push.session_seq, 0)
        if push.qos and (answered in (4, 7) or (answered == 5 and not push.pubrel)):
            self.acknowledge(push, answered)  # a client's acknowledgement is repeated by its edge
            return
        if push.session_seq in connection.outbound and not push.pubrel:
            return  # already written on this connection
        self.pushes.append(push)
        connection.received.append(push)
        if push.qos:
            connection.outbound[push.session_seq] = push

    def _control(self, message: Control | ConnectAnswer, source: PeerKey) -> None:
        self.controls.append(message)
        if isinstance(message, SessionOpened):
            self._opened(message)
        elif isinstance(message, KickSession):
            self.kicked.append(message)
            for connection in self.connections.values():
                if connection.client_id == message.client_id and 0 < connection.owner_epoch <= message.owner_epoch:
                    connection.open = False
            if self.answer_kicks:
                kicked = SessionKicked(message.request, message.client_id, self.clean_kicks, message.owner_epoch)
                self.answer(source, kicked)
        elif isinstance(message, PollClaims):
            self.polled(message, source)
        elif isinstance(message, FireWill):
            self.wills.append(message)
            self.unanswered.append((source, message))
            if self.answer_wills:
                self.end_wills()
        elif hasattr(message, "request"):
            if not isinstance(message, Moved):
                self.asked.pop(message.request, None)
            elif message.request in self.asked:
                asked = self.asked[message.request][1]
                if message.epoch == asked.partition_epoch:  # the right primary, which is not ready for this edge
                    self.ask(asked)

    def _opened(self, message: SessionOpened) -> None:
        asked = self.asked.pop(message.request, None)
        if asked is None:
            return
        connection = self.connections[asked[1].client_id]
        if message.reason_code:
            connection.refused = message.reason_code
            return
        connection.owner_epoch = message.owner_epoch
        connection.session = message.session
        if message.session:
            self.by_session[message.session] = connection

    def end_wills(self, *, again: bool = False) -> None:
        """Answer the orders of wills that were not answered."""
        unanswered, self.unanswered = self.unanswered, []
        for source, order in unanswered:
            self.answer(source, WillFired(order.request, order.partition, order.number, again))

    def answer(self, source: PeerKey, message: Control) -> None:
        """Answer a question of a storage node."""
        self.cluster.send(self.key, source.node, FrameKind.CONTROL, encode_control(message))

    def polled(self, message: PollClaims, source: PeerKey) -> None:
        """Reply with the open connections of a partition's clients; a test may replace this method."""
        claims = [
            Claim(one.client_id, one.number, one.owner_epoch, one.session, *one.owner)
            for one in self.connections.values()
            if one.open and one.owner_epoch and self.cluster.map.partition_for(one.client_id) == message.partition
        ]
        self.answer(source, Claims(message.request, message.partition, message.partition_epoch, claims))

    # --- actions of tests

    def open(
        self,
        client_id: str,
        *filters: str,
        clean_start: bool = False,
        expiry_s: int = 3600,
        will: SessionWill | None = None,
        receive_maximum: int = 64,
        settle: bool = True,
        owner: tuple[str, int] = ("", 0),
        **bounds: int,
    ) -> Connection:
        """Open a session with bounds of its user, wait for the answer, and subscribe with QoS 2."""
        connection = self.connections[client_id] = Connection(client_id, next(self.cluster.numbers))
        head = self.head(self.cluster.map.partition_for(client_id))
        asked = OpenSession(*head, client_id, connection.number, clean_start, expiry_s, will, 5, receive_maximum)
        asked.owner, asked.owner_made = connection.owner = owner
        for name, bound in bounds.items():
            setattr(asked, name, bound)
        self.ask(asked)
        if settle:
            self.cluster.settle()
        if filters:
            self.subscribe(connection, *filters, settle=settle)
        return connection

    def subscribe(
        self, connection: Connection, *filters: SessionSubscription | str, qos: int = 2, settle: bool = True
    ) -> int:
        """Subscribe a durable session; QoS 2 by default."""
        subscriptions = [
            one if isinstance(one, SessionSubscription) else SessionSubscription(one, qos) for one in filters
        ]
        for subscription in subscriptions:
            subscription.retain_handling = subscription.retain_handling or 2
        head = self.head(connection.session >> 48)
        request = self.ask(SubscribeSession(*head, connection.session, connection.owner_epoch, subscriptions))
        if settle:
            self.cluster.settle()
        return request

    def unsubscribe(self, connection: Connection, *filters: str) -> int:
        """Unsubscribe a durable session; the answer is not waited for."""
        head = self.head(connection.session >> 48)
        return self.ask(UnsubscribeSession(*head, connection.session, connection.owner_epoch, list(filters)))

    def close(self, connection: Connection, *, clean: bool = True, expiry_s: int = -1, settle: bool = True) -> None:
        """Report the end of a connection."""
        connection.open = False
        head = self.head(self.cluster.map.partition_for(connection.client_id))
        self.ask(CloseSession(*head, connection.client_id, connection.owner_epoch, clean, expiry_s))
        if settle:
            self.cluster.settle()

    def answers(self, kind: type) -> list[Any]:
        """Return every received control message of a kind."""
        return [message for message in self.controls if isinstance(message, kind)]


def encoded(message: Any) -> tuple[int, bytes]:
    """Return kind and payload of the frame of one message."""
    if isinstance(message, ConnectRequest):
        return FrameKind.CONNECTS, join_controls([encode_record(message)])
    return FrameKind.CONTROL, encode_control(message)
