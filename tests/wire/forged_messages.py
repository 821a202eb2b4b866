"""Forged messages of every kind, sent with a valid certificate about objects of other nodes.

The matrix of ``wire/links/allowed.py`` sends them one by one, the hostile node of the simulation at random.
"""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from wire.links.allowed import CELLS, SenderRule, fault_of, may_send
from wire.messages.batches import (
    PublishMessage,
    Push,
    PushAck,
    encode_message,
    encode_publish_ack,
    encode_push,
    encode_push_ack,
)
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry
from wire.messages.connects import ConnectAnswer, ConnectRequest, decode_connects, encode_record
from wire.messages.control import Control, decode_control, decode_controls, encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import Relay, Relayed
from wire.messages.orders import TraceOrder
from wire.messages.replication import Append, AppendAck, encode_replica_message
from wire.messages.routes import RouteEntry, SenderReport
from wire.messages.sessions import KickSession, SessionSubscription
from wire.messages.wills import SessionWill

__all__ = ["FORGED", "Victim", "forged_controls", "forged_frames", "forged_values", "framed", "is_inside_its_cell"]

FORGED = "forged"  # the payload of every forged message: a client that receives it was attacked successfully


@dataclass(frozen=True)
class Victim:
    """Subject of the messages: an edge, a session on it, and the partition of that session."""

    map: ClusterMap
    edge: str
    partition: int
    client_id: str
    session: int
    owner_epoch: int
    connection: int
    session_seq: int
    tag: int  # of an unacknowledged message
    request: int  # pending request of the edge
    topic: str = "a/b"

    @property
    def incarnation(self) -> int:
        """Incarnation of the edge in the map."""
        return self.map.nodes[self.edge].incarnation

    @property
    def partition_epoch(self) -> int:
        """The epoch of the partition, by the map."""
        return self.map.partitions[self.partition].epoch


def forged_values(victim: Victim) -> dict[str, Any]:
    """Return field values of forged messages by name: the session, its edge, its partition's primary."""
    incarnation, epoch = victim.incarnation, victim.partition_epoch
    will = SessionWill(victim.topic, FORGED.encode(), 1, address="192.0.2.1", fingerprint="ab" * 32)
    return {
        "entry": NodeEntry(victim.edge, "router", incarnation, "nowhere:1", weight=7),
        "node": victim.edge,
        "incarnation": incarnation,
        "map_epoch": 10**6,
        "sent_at": 1.0,
        "partition": victim.partition,
        "partition_epoch": epoch,
        "sender_epoch": epoch,
        "route_version": 10**9,
        "session": victim.session,
        "owner_epoch": victim.owner_epoch,
        "client_id": victim.client_id,
        "connection": victim.connection,
        "shard": 0,
        "shard_epoch": victim.map.shards[0].epoch,
        "number": 0,
        "what": "shard",
        "epoch": 10**6,
        "reports": [SenderReport(victim.partition, epoch, 10**9, [])],
        "routes": [RouteEntry("a/#")],
        "topics": [victim.topic],
        "topic_filters": ["a/#"],
        "topic_filter": "a/#",
        "subscriptions": [SessionSubscription("stolen/#", 1)],
        "lease_s": 1000.0,
        "settled_epoch": 10**6,
        "data": b"",
        "delta": MapDelta(victim.map.epoch + 1, forgotten=(victim.edge,)),
        "message": will,
        "will": will,
        "verb": "drop_backup",
        "clean": True,
        "request": victim.request,
        "pick": None,
        "share": b"g/a/#",
        "running": TraceOrder("forged", "topic", "#", everywhere=True),
    }


def forged_controls(victim: Victim) -> Iterator[Control | ConnectRequest | ConnectAnswer]:
    """Return every control message and connect record, about the session, its edge, and its partition's primary."""
    given = forged_values(victim)
    for kind in typing.get_args(Control) + typing.get_args(ConnectRequest) + typing.get_args(ConnectAnswer):
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        values = {name: given[name] for name in fields if name in given}
        if kind in (Relay, Relayed):
            kick = KickSession(victim.partition, victim.client_id, 1, victim.owner_epoch)
            values["message"] = encode_control(kick)
        for name, field in fields.items():
            if name not in values and field.required:
                values[name] = _sample(field.type)
        yield kind(**values)


def forged_frames(victim: Victim) -> Iterator[tuple[int, str, bytes]]:
    """Return (kind, name, payload) of all messages."""
    for message in forged_controls(victim):
        if isinstance(message, ConnectRequest | ConnectAnswer):
            kind, record = framed(message)
            yield kind, type(message).__name__, record
            continue
        yield FrameKind.CONTROL, type(message).__name__, encode_control(message)
        yield FrameKind.CONTROLS, f"{type(message).__name__} in company", join_controls([encode_control(message)])
    epoch, partition, payload = victim.partition_epoch, victim.partition, FORGED.encode()
    owner, session, topic = victim.owner_epoch, victim.session, victim.topic.encode()
    publish = PublishMessage(1 << 40, topic, payload, 1, partitions=(partition,))
    yield FrameKind.PUBLISH, "PUBLISH", encode_message(publish)
    yield FrameKind.PUBLISH_ACK, "PUBLISH_ACK", encode_publish_ack(victim.tag, partition, 0)
    yield FrameKind.PUSH, "PUSH", encode_push(Push(session, owner, epoch, 900, 900, 1, topic, payload))
    push_ack = PushAck(session, owner, epoch, victim.session_seq, 4, 0)
    yield FrameKind.PUSH_ACK, "PUSH_ACK", encode_push_ack(push_ack)
    append = Append(partition, epoch, 10**6, epoch, 10**6, 0, 0, [])
    later = Append(partition, 10**6, 10**6, epoch, 10**6, 0, 0, [])
    yield FrameKind.REPLICATE, "REPLICATE", encode_replica_message(append)
    yield FrameKind.REPLICATE, "REPLICATE of a later epoch", encode_replica_message(later)
    ack = encode_replica_message(AppendAck(partition, epoch, True, 10**6))
    yield FrameKind.REPLICATE_ACK, "REPLICATE_ACK", ack
    yield FrameKind.RAFT, "RAFT", b"\x90"
    yield 77, "unknown kind", b""


def framed(message: Control | ConnectRequest | ConnectAnswer) -> tuple[int, bytes]:
    """Return kind and payload of the frame with a message."""
    if isinstance(message, ConnectRequest):
        return FrameKind.CONNECTS, join_controls([encode_record(message)])
    if isinstance(message, ConnectAnswer):
        return FrameKind.CONNECT_ANSWERS, join_controls([encode_record(message)])
    return FrameKind.CONTROL, encode_control(message)


def is_inside_its_cell(key: PeerKey, receiver: str, kind: int, payload: bytes) -> bool:
    """Return whether this sender may send this message to a tier and thus change state."""
    if not may_send(key.tier, receiver, kind):
        return False
    if kind == FrameKind.CONTROL:
        message = decode_control(payload)
        return not fault_of(key, receiver, message) and CELLS[type(message)].rule is SenderRule.TIERS
    if kind == FrameKind.CONTROLS:
        return all(
            is_inside_its_cell(key, receiver, FrameKind.CONTROL, encode_control(message))
            for message in decode_controls(payload)
        )
    if kind == FrameKind.CONNECTS:
        return all(CELLS[type(record)].rule is SenderRule.TIERS for record in decode_connects(payload))
    return kind == FrameKind.PUBLISH and key.tier == "edge"


def _sample(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind)
    return {int: 1, str: "x", bytes: b"x", bool: True, float: 1.0, list: [], dict: {}}[origin or kind]
