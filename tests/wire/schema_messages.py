"""Well-formed messages of all types that the decoders of links accept, from an unauthorized sender.

The types are those of the decoders' unions, so new ones are included automatically. Fields get values, by name, that a
hostile peer can find out, and otherwise those of the golden examples; epochs and incarnations are shifted at times.
"""

import random
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from zlib import crc32

import msgspec

from access.policy.commands import PutRole
from access.policy.machine import PolicyMachine
from access.policy.records import RoleRecord, User
from access.policy.step import PolicyStep, encode_step
from access.policy.view import encode_view
from router.map.commands import RegisterNode, encode_command
from router.map.snapshot import RouterState, encode_snapshot
from router.raft.messages import NORMAL, AnyMessage, Configuration, LogEntry, decode_message, encode_message
from tests.golden.examples import example
from tests.wire.forged_messages import FORGED, Victim, forged_values
from wire.decoding import Unreadable
from wire.links.allowed import CELLS, FRAMES
from wire.messages import batches
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.connects import ConnectAnswer, ConnectRequest, decode_answers, decode_connects, encode_record
from wire.messages.control import Control, decode_control, encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.map_pages import map_pages
from wire.messages.nodes import MapPage, MapStep, RegisterRequest, Relay, Relayed
from wire.messages.policy import PolicyPaged, PolicyStepped, UserRecords
from wire.messages.replication import AppendAck, ReplicaMessage, decode_replica_message, encode_replica_message
from wire.messages.sessions import KickSession

__all__ = ["FORGED_NODE", "TYPES", "RaftState", "SchemaMessages"]

FORGED_NODE = "forged"  # part of every forged map
SHIFTS = (-1, 1, 2, 1_000, 1 << 32)
SHIFTED = (
    *("epoch", "partition_epoch", "sender_epoch", "owner_epoch", "shard_epoch", "map_epoch", "policy_epoch"),
    *("settled_epoch", "route_version", "incarnation", "request", "number", "session", "connection"),
)

# (kind of frame, type of its content)
TYPES: tuple[tuple[int, type], ...] = (
    *((FrameKind.CONTROL, kind) for kind in typing.get_args(Control)),
    *((FrameKind.CONNECTS, kind) for kind in typing.get_args(ConnectRequest)),
    *((FrameKind.CONNECT_ANSWERS, kind) for kind in typing.get_args(ConnectAnswer)),
    *(
        (FrameKind.REPLICATE_ACK if kind is AppendAck else FrameKind.REPLICATE, kind)
        for kind in typing.get_args(ReplicaMessage)
    ),
    *((FrameKind.RAFT, kind) for kind in typing.get_args(AnyMessage)),
    (FrameKind.PUBLISH, batches.PublishMessage),
    (FrameKind.PUBLISH, batches.PublishRun),
    (FrameKind.PUBLISH_ACK, batches.PublishAck),
    (FrameKind.PUSH, batches.Push),
    (FrameKind.PUSH_ACK, batches.PushAck),
)


class RaftState(typing.NamedTuple):
    """Log and disk of the router that a Raft message is for."""

    term: int = 0
    last_index: int = 0
    last_term: int = 0
    storage_id: int = 0


class SchemaMessages:
    """Draws random messages.

    Args:
        rng: Source of all choices.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def types(self, sender_tier: str, receiver_tier: str) -> list[tuple[int, type]]:
        """Return the types permitted for these tiers, regardless of the required role."""
        return [pair for pair in TYPES if _has_cell(sender_tier, receiver_tier, *pair)]

    def frame(
        self,
        pair: tuple[int, type],
        victim: Victim,
        known: Mapping[str, Sequence[Any]],
        sender: PeerKey,
        receiver: PeerKey,
        state: RaftState,
    ) -> tuple[int, bytes]:
        """Return a frame with a message of a type.

        Args:
            pair: One of ``TYPES``.
            victim: Subject of the message.
            known: More values, by the name of a field.
            sender: Sender of the message.
            receiver: Receiver of the message.
            state: Of the receiver's Raft log, if it is a router.
        """
        kind, message_type = pair
        if kind == FrameKind.RAFT:
            return kind, self._raft(message_type, victim, sender, receiver, state)
        if message_type in _BATCHES:
            return kind, _BATCHES[message_type](victim, self._rng)
        message = self._drawn(message_type, victim, known)
        may_join = (sender.tier, receiver.tier) in FRAMES[FrameKind.CONTROLS]
        if kind == FrameKind.CONTROL and may_join and self._rng.random() < 0.3:
            return FrameKind.CONTROLS, join_controls([encode_control(message)])
        return kind, _encoded(kind, message)

    def _drawn(self, kind: type, victim: Victim, known: Mapping[str, Sequence[Any]]) -> Any:
        rng = self._rng
        if kind in _WHOLE:
            return _WHOLE[kind](victim, rng)
        message = _example(kind, rng.random() < 0.5)
        values = forged_values(victim)
        for field in msgspec.structs.fields(kind):
            candidates = known.get(field.name)
            if candidates:
                values[field.name] = rng.choice(candidates)
            if field.name in values and rng.random() < 0.85:
                message = _replaced(message, field.name, values[field.name])
        shifted = [name for name in SHIFTED if isinstance(getattr(message, name, None), int)]
        if shifted and rng.random() < 0.3:
            name = rng.choice(shifted)
            message = _replaced(message, name, max(0, getattr(message, name) + rng.choice(SHIFTS)))
        return message

    def _raft(self, kind: type, victim: Victim, sender: PeerKey, receiver: PeerKey, to: RaftState) -> bytes:
        """Return a Raft message that imitates another member as far as possible."""
        rng = self._rng
        term = to.term + rng.choice((0, 0, 1, 1, 2, 1_000))
        entry = NodeEntry(FORGED_NODE, TIER_EDGE, 1, "nowhere:1", state=NodeState.ACTIVE)
        forged_map = _forged_map(victim, rng)
        given: dict[str, Any] = {
            "sender": sender.node,
            "to": receiver.node,
            "term": term,
            "incarnation": sender.incarnation,
            "storage_id": 99_001,
            "expected_storage_id": to.storage_id,
            "proposed_term": to.term + 1,
            "last_log_index": to.last_index + rng.choice((0, 1, 1_000)),
            "last_log_term": max(term, to.last_term),
            "transfer": rng.random() < 0.5,
            "granted": True,
            "prev_log_index": to.last_index,
            "prev_log_term": to.last_term,
            "leader_commit": to.last_index + 1,
            "entries": (LogEntry(to.last_index + 1, term, NORMAL, encode_command(RegisterNode(entry))),),
            "success": True,
            "match_index": to.last_index + 1_000,
            "snapshot_index": to.last_index + rng.choice((0, 1, 100)),
            "snapshot_term": term,
            "configuration": Configuration({sender.node: 99_001}),
            "offset": 0,
            "data": encode_snapshot(RouterState(forged_map)),
            "done": True,
            "round": 1 << 40,
        }
        message = _example(kind, True)
        for field in msgspec.structs.fields(kind):
            if field.name in given:
                message = msgspec.structs.replace(message, **{field.name: given[field.name]})
        data = encode_message(message)
        decode_message(data)
        return data


def _has_cell(sender_tier: str, receiver_tier: str, kind: int, message_type: type) -> bool:
    if (sender_tier, receiver_tier) not in FRAMES[kind]:
        return False
    return message_type not in CELLS or (sender_tier, receiver_tier) in CELLS[message_type].tiers


@cache
def _example(kind: type, full: bool) -> Any:
    return msgspec.convert(example(kind, full=full), kind)


def _encoded(kind: int, message: Any) -> bytes:
    if kind == FrameKind.CONTROL:
        return encode_control(message)
    if kind in (FrameKind.REPLICATE, FrameKind.REPLICATE_ACK):
        return encode_replica_message(message)
    return join_controls([encode_record(message)])


def _replaced(message: Any, name: str, value: Any) -> Any:
    """Return the message with another value, or unchanged if the schema rejects it."""
    changed = msgspec.structs.replace(message, **{name: value})
    try:
        _read(changed)
    except (Unreadable, ValueError, TypeError, OverflowError, AttributeError):
        return message
    return changed


def _read(message: Any) -> None:
    if isinstance(message, ConnectRequest):
        decode_connects(join_controls([encode_record(message)]))
    elif isinstance(message, ConnectAnswer):
        decode_answers(join_controls([encode_record(message)]))
    elif isinstance(message, ReplicaMessage):
        decode_replica_message(encode_replica_message(message))
    else:
        decode_control(encode_control(message))


# -- whole messages, whose fields depend on each other


def _forged_entry(victim: Victim) -> NodeEntry:
    return NodeEntry(FORGED_NODE, TIER_EDGE, victim.incarnation, "nowhere:1", state=NodeState.ACTIVE)


def _forged_map(victim: Victim, rng: random.Random) -> ClusterMap:
    cluster_map = msgspec.structs.replace(victim.map, nodes=dict(victim.map.nodes))
    cluster_map.epoch += rng.choice((0, 1, 2, 1_000))
    cluster_map.nodes[FORGED_NODE] = _forged_entry(victim)
    return cluster_map


def _map_page(victim: Victim, rng: random.Random) -> MapPage:
    return map_pages(_forged_map(victim, rng))[0]


def _map_step(victim: Victim, rng: random.Random) -> MapStep:
    epoch = victim.map.epoch + rng.choice((0, 1, 1, 1, 2, 1_000))
    dead = msgspec.structs.replace(victim.map.nodes[victim.edge], state=NodeState.DEAD)
    return MapStep(MapDelta(epoch, nodes=rng.choice(((_forged_entry(victim),), (_forged_entry(victim), dead)))))


def _role(rng: random.Random) -> RoleRecord:
    return RoleRecord(FORGED_NODE, priority=rng.randrange(1_000))


def _policy_page(victim: Victim, rng: random.Random) -> PolicyPaged:
    del victim
    machine = PolicyMachine()
    machine.apply(PutRole(FORGED_NODE, priority=rng.randrange(1_000)))
    data = encode_view(rng.choice((1, 5, 1_000)), machine.tables, machine.digest)
    return PolicyPaged(rng.choice((1, 5, 1_000)), 0, len(data), crc32(data), data)


def _policy_step(victim: Victim, rng: random.Random) -> PolicyStepped:
    del victim
    return PolicyStepped(encode_step(PolicyStep(rng.randrange(1, 6), roles={FORGED_NODE: _role(rng)})))


def _users(victim: Victim, rng: random.Random) -> UserRecords:
    return UserRecords(rng.choice((1, 2, victim.request)), 1 << 40, ["u1"], [msgspec.msgpack.encode(User("u1", 1, 1))])


def _kick(victim: Victim) -> bytes:
    return encode_control(KickSession(victim.partition, victim.client_id, 1, victim.owner_epoch))


def _register(victim: Victim, rng: random.Random) -> RegisterRequest:
    incarnation = victim.incarnation + rng.choice((0, 1, 1_000))
    return RegisterRequest(
        1, NodeEntry(victim.edge, TIER_EDGE, incarnation, "nowhere:1"), ended_incarnation=victim.incarnation
    )


_WHOLE: dict[type, Callable[[Victim, random.Random], Any]] = {
    RegisterRequest: _register,
    MapPage: _map_page,
    MapStep: _map_step,
    PolicyPaged: _policy_page,
    PolicyStepped: _policy_step,
    UserRecords: _users,
    Relay: lambda victim, _: Relay(victim.edge, victim.incarnation, _kick(victim)),
    Relayed: lambda victim, _: Relayed(victim.edge, victim.incarnation, _kick(victim)),
}


def _publish(victim: Victim, rng: random.Random) -> bytes:
    origin = rng.choice(((0, 0), (victim.incarnation, 1 << 40)))
    return batches.encode_message(
        batches.PublishMessage(
            rng.choice((1, victim.tag, 1 << 40)), victim.topic.encode(), FORGED.encode(), rng.randrange(3),
            retain=rng.random() < 0.3, partitions=(victim.partition,), origin_a=origin[0], origin_b=origin[1],
        )
    )  # fmt: skip


def _run(victim: Victim, _: random.Random) -> bytes:
    topic, payload = victim.topic.encode(), FORGED.encode()
    body = len(topic).to_bytes(2, "big") + topic + b"\0" + payload
    return batches.encode_run(batches.PublishRun(5, topic, bytes((0x30, len(body))) + body))


def _push(victim: Victim, rng: random.Random) -> bytes:
    epoch = victim.partition_epoch + rng.choice((0, 0, 1))
    push = batches.Push(victim.session, victim.owner_epoch, epoch, 900, 900, 1, victim.topic.encode(), FORGED.encode())
    return batches.encode_push(push)


def _push_ack(victim: Victim, rng: random.Random) -> bytes:
    kind = rng.choice((4, 5, 7))
    ack = batches.PushAck(victim.session, victim.owner_epoch, victim.partition_epoch, victim.session_seq, kind, 0)
    return batches.encode_push_ack(ack)


_BATCHES: dict[type, Callable[[Victim, random.Random], bytes]] = {
    batches.PublishMessage: _publish,
    batches.PublishRun: _run,
    batches.PublishAck: lambda victim, _: batches.encode_publish_ack(victim.tag, victim.partition, 0),
    batches.Push: _push,
    batches.PushAck: _push_ack,
}
