"""Values of the LSM rows: the stored state of a partition.

Small rows are msgpack arrays (msgspec); the queue row, written once per message, is one struct and three byte strings.
Deadlines are milliseconds of the partition's *served clock*: the time that primaries served this partition, stored in
its META row. It stops while the partition is not served and is independent of the wall clock. So an outage or a clock
jump expires no message.

Source: docs/adr/0009-key-order-and-sstables.md.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from wire.messages.sessions import SessionSubscription
from wire.messages.wills import SessionWill

__all__ = [
    "ENTRY_OVERHEAD_BYTES",
    "NEVER",
    "STATE_QUEUED",
    "STATE_RELEASED",
    "STATE_SENT",
    "FilterRow",
    "InflightRow",
    "LocalRow",
    "LogRow",
    "MetaRow",
    "OpenedRow",
    "QueueEntry",
    "RetainedRow",
    "SessionRow",
    "SharedMessageRow",
    "SubscriptionRow",
    "WillRow",
    "decode_entry",
    "encode_entry",
    "outline_entry",
    "pack",
    "row_decoder",
    "unpack",
]

T = TypeVar("T")

NEVER = 0  # a deadline that never comes

STATE_QUEUED = 0  # no packet identifier yet
STATE_SENT = 1  # identifier given, PUBLISH may have left
STATE_RELEASED = 2  # QoS 2: PUBREC committed; only PUBREL is ever sent again


class MetaRow(msgspec.Struct, array_like=True):
    """The partition's own row, rewritten by every operation and part of it: equal on every replica."""

    partition_epoch: int = 0
    op_index: int = 0
    served_ms: int = 0
    next_session: int = 1  # counter part of session numbers, never used again
    next_body: int = 1
    next_handed: int = 1  # of messages redispatched for ended members of groups, never used again
    next_will: int = 1  # of wills that fire, never used again


class LocalRow(msgspec.Struct, array_like=True):
    """Facts of one replica about its own copy; never replicated."""

    epoch: int = 0  # highest partition_epoch seen; lower ones are refused
    log_start: int = 1  # op_index of the oldest operation still in the log
    floor: int = 0  # a range transfer copied state up to here: the copy is complete once the log reaches it
    floor_epoch: int = 0  # partition_epoch of the operation at the floor
    transferring: bool = False  # a range transfer began and did not end: the copy is unusable
    accepted: int = 0  # partition_epoch under which an operator accepted the missing operations of this copy


class SessionRow(msgspec.Struct, array_like=True):
    """A durable session. ``next_seq`` is at least one above every deleted entry."""

    client_id: str
    owner_epoch: int
    expiry_s: int
    deadline: int = NEVER  # served clock; NEVER while connected or for expiry 0xFFFFFFFF
    head: int = 1  # every entry below is consumed
    gaps: list[int] = []  # consumed entries above head, [start, stop) pairs, flat: only for the audit, not restored
    next_seq: int = 1
    last_identifier: int = 0
    next_inbound: int = 1
    dropped: int = 0  # by queue_full, for the audit
    edge: str = ""  # of the live connection
    incarnation: int = 0
    connection: int = 0
    ephemeral_end: bool = False  # Clean Start 0, expiry 0 over a durable session: it ends with this connection
    protocol_version: int = 4
    window: int = 64  # of the live connection
    session_present: bool = False  # Session Present as sent to the live connection
    given: list[int] = []  # runs of identifiers, flat: session_seq, identifier, count; may include consumed entries
    overtaken: dict[bytes, int] = {}  # topic: its retained copies below this session_seq are older than a sent message
    owner: str = ""  # owning user; "": a client without a user, or a row of an older version
    owner_made: int = 0  # policy_epoch at which that user was made: a reused name is another user
    judged: int = 0  # number of the rules that granted its filters; 0: unknown, authorized again at the next CONNECT
    recheck_below: int = 0  # entries below it were queued under rights that may be revoked
    queue_messages_max: int = 0  # of its user and roles at its last CONNECT; 0: the partition's own bound alone
    queue_bytes_max: int = 0


class SubscriptionRow(msgspec.Struct, array_like=True):
    """One subscription of a session."""

    subscription: SessionSubscription
    partial: bool = False  # granted in part: each message is authorized at delivery
    since: int = 0  # served clock at the last SUBSCRIBE; 0: a row of an older version


class FilterRow(msgspec.Struct, array_like=True):
    """The route of this filter ("$share/..." included) is registered at all its shards."""

    route: str


class InflightRow(msgspec.Struct, array_like=True):
    """Identifier and state of an outbound message."""

    packet_identifier: int
    state: int
    qos: int


class OpenedRow(msgspec.Struct, array_like=True):
    """A processed CONNECT whose response the edge may lack."""

    edge: str
    incarnation: int
    request: int


class WillRow(msgspec.Struct, array_like=True):
    """The will of one connection; ``firing`` once its fan-out has begun, ``deadline`` while its delay runs."""

    client_id: str
    owner_epoch: int
    will: SessionWill
    edge: str
    incarnation: int
    deadline: int = NEVER
    firing: int = 0  # number of the firing among those of its partition; 0: not yet
    firing_epoch: int = 0  # partition_epoch of the firing: with the number, the permanent origin
    connection: int = 0  # the edge's number of it; 0: a row of an older version
    owner: str = ""  # user that owns the will
    owner_made: int = 0  # policy_epoch at which that user was made


class SharedMessageRow(msgspec.Struct, array_like=True):
    """A shared group's message that its ended member did not acknowledge: it goes to another member."""

    share: bytes
    topic: bytes
    payload: bytes
    qos: int  # as published
    retain: bool
    properties: bytes
    deadline: int
    body: int = 0  # body id when the payload is in BODY rows
    hops: int = 0  # number of earlier redispatches


class RetainedRow(msgspec.Struct, array_like=True):
    """The last accepted retained PUBLISH of a topic, with its origin."""

    topic: str
    payload: bytes
    qos: int
    properties: bytes
    deadline: int
    origin_kind: int
    origin_a: int
    origin_b: int
    op_index: int
    body: int = 0  # body id when the payload is in BODY rows
    owner: str = ""  # publishing user
    owner_made: int = 0  # policy_epoch at which that user was made
    arrived: int = 0  # served clock when it was accepted; 0: a row of an older version


class LogRow(msgspec.Struct, array_like=True):
    """One operation: all writes of one group commit to one partition, in key order of writing."""

    partition_epoch: int
    op_index: int
    writes: list[tuple[bytes, bytes | None]]
    previous_epoch: int = 0  # of the operation before it, also at the start of the log
    last: bool = True  # piece of its operation: an operation in several pieces is applied completely or not at all


class QueueEntry(msgspec.Struct, gc=False):
    """One message of a session, as stored in its queue row."""

    session_seq: int
    topic: bytes
    payload: bytes
    properties: bytes = b""
    qos: int = 1
    retain: bool = False
    deadline: int = NEVER
    packet_identifier: int = 0
    state: int = STATE_QUEUED
    origin_kind: int = 0
    origin_a: int = 0
    origin_b: int = 0
    body: int = 0  # body id when the payload is in BODY rows
    copy: bool = False  # of a retained message: it must not follow a newer value of its topic
    share: bytes = b""  # the group that it is a copy for
    published: int = 0  # of a group's copy: QoS as published, plus 4 if published with RETAIN
    own_bytes: int = 0  # of a group's copy: length of the member's subscription identifiers at the end of properties
    handed: bool = False  # a group's copy that was redispatched: it is removed from the queue unsent
    arrived: int = 0  # served clock when it was queued; 0: a row of an older version


ENTRY_OVERHEAD_BYTES = 64  # of a queue row beside topic, properties and payload, for the queue's byte bound
_ENTRY = struct.Struct(">BBHQBQQQHI")
ENTRY_HEAD = _ENTRY  # for readers of the head only
_RETAIN = 0x04
_COPY = 0x08
_SHARED = 0x10
_HANDED = 0x20
_ARRIVED = 0x40
_ARRIVED_BYTES = 6  # after properties and share: an older reader would return them as payload
_SHARE = struct.Struct(">BBH")  # of a group's copy, after its properties: published, own_bytes, length of share


def encode_entry(entry: QueueEntry) -> bytes:
    """Return the value of a queue row (its key holds the session_seq)."""
    flags = entry.qos | (_RETAIN if entry.retain else 0) | (_COPY if entry.copy else 0)
    share = b""
    if entry.handed:
        flags |= _HANDED
    if entry.share:
        flags |= _SHARED
        share = _SHARE.pack(entry.published, entry.own_bytes, len(entry.share)) + entry.share
    arrived = b""
    if entry.arrived:
        flags |= _ARRIVED
        arrived = entry.arrived.to_bytes(_ARRIVED_BYTES, "big")
    head = _ENTRY.pack(
        flags,
        entry.state,
        entry.packet_identifier,
        entry.deadline,
        entry.origin_kind,
        entry.origin_a,
        entry.origin_b,
        entry.body,
        len(entry.topic),
        len(entry.properties),
    )
    return b"".join((head, entry.topic, entry.properties, share, arrived, b"" if entry.body else entry.payload))


def decode_entry(session_seq: int, value: bytes) -> QueueEntry:
    """Return the entry of a queue row.

    Raises:
        struct.error: If the value is shorter than its head.
    """
    flags, state, identifier, deadline, kind, origin_a, origin_b, body, topics, properties = _ENTRY.unpack_from(value)
    topic_end = _ENTRY.size + topics
    payload_at = property_end = topic_end + properties
    share, published, own_bytes = b"", 0, 0
    if flags & _SHARED:
        published, own_bytes, size = _SHARE.unpack_from(value, property_end)
        payload_at = property_end + _SHARE.size + size
        share = value[property_end + _SHARE.size : payload_at]
    arrived = 0
    if flags & _ARRIVED:
        arrived = int.from_bytes(value[payload_at : payload_at + _ARRIVED_BYTES], "big")
        payload_at += _ARRIVED_BYTES
    return QueueEntry(
        session_seq,
        value[_ENTRY.size : topic_end],
        value[payload_at:],
        value[topic_end:property_end],
        flags & 0x03,
        bool(flags & _RETAIN),
        deadline,
        identifier,
        state,
        kind,
        origin_a,
        origin_b,
        body,
        bool(flags & _COPY),
        share,
        published,
        own_bytes,
        bool(flags & _HANDED),
        arrived,
    )


def outline_entry(value: bytes) -> tuple[int, int, int, int, int, int]:
    """Return the fields that a queue needs of a row without decoding it: qos, state, identifier, body, bytes, arrival.

    Raises:
        struct.error: If the value is shorter than its head.
    """
    flags, state, identifier, _, _, _, _, body, topics, properties = _ENTRY.unpack_from(value)
    size = topics + properties
    behind = _ENTRY.size + size  # the share, if it has one
    extra = 0
    if flags & _SHARED:
        extra = _SHARE.size + int(_SHARE.unpack_from(value, behind)[2])
    arrived = 0
    if flags & _ARRIVED:
        arrived = int.from_bytes(value[behind + extra : behind + extra + _ARRIVED_BYTES], "big")
        extra += _ARRIVED_BYTES
    if not body:
        size = len(value) - _ENTRY.size - extra
    return flags & 0x03, state, identifier, body, size, arrived


_encoder = msgspec.msgpack.Encoder()
pack = _encoder.encode
_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}


def row_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return the decoder of a row type; it raises msgspec.DecodeError for an invalid value."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode  # type: ignore[return-value]


def unpack(kind: type[T], value: bytes) -> T:
    """Return the row of a value.

    Raises:
        msgspec.DecodeError: If the value is not such a row.
    """
    return row_decoder(kind)(value)
