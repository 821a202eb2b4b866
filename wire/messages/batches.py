"""Binary payloads of the frames with messages: their layout, and the codec of the tiers in plain Python.

The edge's compiled loop writes and reads the same bytes with C integers (``edge/loop``); a golden test compares the
two. Integers are big endian. A payload is a sequence of records of one kind, in order, separated only by the record's
own fields. Decision: docs/adr/0005-wire-format.md, origins: docs/protocol.md rule 4.7.

PUBLISH (edge to edge, edge to storage, storage to edge for wills), records of two types:

    RUN  u8 type=0 | u8 version | u8 flags=0 | u16 topic bytes | u32 packet bytes | topic | packets
         consecutive QoS 0 PUBLISH packets of one topic, RETAIN 0, verbatim as an MQTT `version` (4 or 5) client wrote
         them without topic alias; only towards edges. Needs no tag: a link delivers a frame once.
    MSG  u8 type=1 | u8 version | u8 flags | u8 origin kind | u64 tag | u64 origin_a | u64 origin_b | u64 session |
         u64 owner_epoch | u32 expiry_s | u16 partitions | u16 topic bytes | u32 property bytes | u32 payload bytes |
         (u16 partition, u32 partition_epoch) each | topic | properties | payload

         flags: bits 0-1 QoS, bit 2 RETAIN, bit 3 shared pick (``share`` follows the partitions), bit 4 owner,
                bit 5 traced: the nodes on its way record its events in their traces.
         version: 5 when ``properties`` holds an MQTT 5 property block (without its length, without Topic Alias and
         Message Expiry Interval), 4 when empty. expiry_s: seconds left, NO_EXPIRY for none.
         tag: the sender's counter for this message; acknowledgements name it. 0 at QoS 0: not acknowledged.
         origin kind 0: (sending edge's incarnation, tag); 1: (session number, inbound counter); 2: will
         (partition << 32 | partition_epoch, number). (session, owner_epoch): the publisher's, 0 where it has none.
                 partition_epoch: of the sender's map. A primary refuses a message that was sent to it in an earlier
                 epoch; one
                 for a later epoch waits for its map.
         share: u16 length + "share name/filter" follow the partitions when bit 3 is set, else absent.
                 owner: u16 length + the publisher's user + u64 policy_epoch of its creation + u64 maximum of its
                 retained
                 topics in all partitions (0: the common limit) + u64 bytes of their payloads (0: likewise) follow these
                 when
         bit 4 is set; only in the copy for the partition that retains the topic.

PUBLISH_ACK (storage to edge):  u64 tag | u16 partition | u8 reason code, per finished partition of a message.
    An edge acknowledges a PUBLISH frame by TAKEN of the link alone: accepted means appended to its sessions' output.

PUSH (storage to edge):
    u64 session | u64 owner_epoch | u32 partition_epoch | u64 session_seq | u16 packet identifier | u8 flags |
    u32 expiry_s | u16 topic bytes | u32 property bytes | u32 payload bytes | topic | properties | payload
        partition_epoch: from which on the sender has been the primary without a break. All pushes since then are valid,
        in any order; those of a former primary are not.
    flags: bits 0-1 QoS, bit 2 RETAIN, bit 3 DUP, bit 4: PUBREL only (no topic, properties, payload),
    bit 5: traced.
    properties: MQTT 5 block without length (subscription identifiers included), empty towards 3.1.1 readers too.

PUSH_ACK (edge to storage):
    u64 session | u64 owner_epoch | u32 partition_epoch | u64 session_seq | u8 packet type (4, 5 or 7) | u8 reason code
"""

import struct
from collections.abc import Iterator

import msgspec

from wire.decoding import Payload, strictly

__all__ = [
    "NO_EXPIRY",
    "OPERATOR_MADE",
    "OPERATOR_OWNER",
    "OriginKind",
    "PublishAck",
    "PublishMessage",
    "PublishRun",
    "Push",
    "PushAck",
    "decode_publish",
    "decode_publish_acks",
    "decode_push_acks",
    "decode_pushes",
    "encode_message",
    "encode_owner",
    "encode_publish_ack",
    "encode_push",
    "encode_push_ack",
    "encode_run",
    "only_pubacks",
    "publish_records",
    "push_ack_records",
]

NO_EXPIRY = 0xFFFFFFFF
PLACE_BYTES = 4_096  # stored by a partition in about the time of receiving a short message
FLAG_RETAIN = 0x04
FLAG_SHARE = 0x08
FLAG_OWNER = 0x10
FLAG_TRACED = 0x20
PUSH_DUP = 0x08
PUSH_PUBREL = 0x10
PUSH_TRACED = 0x20

RUN_TYPE = 0
MESSAGE_TYPE = 1
_RUN = struct.Struct(">BBBHI")
_MESSAGE = struct.Struct(">BBBBQQQQQIHHII")
_MESSAGE_SIZES = struct.Struct(">xxBx44xHHII")  # flags, partitions and bytes of a MSG record
_PLACE = struct.Struct(">HI")
_ACK = struct.Struct(">QHB")
# Follows a user's name; skipped by edge/loop/records.py and storage/messages/fast_path_publish.py
_OWNER = struct.Struct(">QQQ")
_PUSH = struct.Struct(">QQIQHBIHII")
_PUSH_ACK = struct.Struct(">QQIQBB")
_PUBACK = b"\x04"


class OriginKind:
    """Kind of sender that numbered a message (docs/protocol.md rule 4.7)."""

    EDGE = 0
    SESSION = 1
    WILL = 2


class PublishRun(msgspec.Struct, gc=False):
    """Consecutive QoS 0 packets of one topic, verbatim."""

    version: int
    topic: bytes
    packets: bytes


class PublishMessage(msgspec.Struct, gc=False):
    """One message on its way to the destinations of its route."""

    tag: int
    topic: bytes
    payload: bytes
    qos: int
    retain: bool = False
    properties: bytes = b""  # MQTT 5 block without length, without Topic Alias and Message Expiry Interval
    version: int = 5
    expiry_s: int = NO_EXPIRY
    origin_kind: int = OriginKind.EDGE
    origin_a: int = 0
    origin_b: int = 0
    session: int = 0
    owner_epoch: int = 0
    partitions: tuple[int, ...] = ()
    share: bytes = b""  # "share name/topic filter" of the shared subscription that this copy was picked for
    epochs: tuple[int, ...] = ()  # partition_epoch of each partition, as the sender's map has it
    owner: bytes = b""  # the publisher's user, only towards the partition that retains the topic
    owner_made: int = 0
    owner_max: int = 0  # retained topics allowed for this user in all partitions; 0: the partition's own bound
    owner_bytes_max: int = 0  # of their payloads, likewise; 0: none
    traced: bool = False


class PublishAck(msgspec.Struct, gc=False):
    """One partition finished one message: committed, a repeat, or refused."""

    tag: int
    partition: int
    reason_code: int


class Push(msgspec.Struct, gc=False):
    """One entry of a durable session on its way to the client, or the PUBREL of one."""

    session: int
    owner_epoch: int
    partition_epoch: int
    session_seq: int
    packet_identifier: int
    qos: int
    topic: bytes = b""
    payload: bytes = b""
    properties: bytes = b""
    retain: bool = False
    dup: bool = False
    pubrel: bool = False
    expiry_s: int = NO_EXPIRY
    traced: bool = False


class PushAck(msgspec.Struct, gc=False):
    """The client's PUBACK (4), PUBREC (5) or PUBCOMP (7) for a packet that was written to it."""

    session: int
    owner_epoch: int
    partition_epoch: int
    session_seq: int
    packet_type: int
    reason_code: int


def encode_run(run: PublishRun) -> bytes:
    """Return one RUN record."""
    return _RUN.pack(RUN_TYPE, run.version, 0, len(run.topic), len(run.packets)) + run.topic + run.packets


# Owner of a message that an operator publishes: no user's rules apply, so its retained message stays.
OPERATOR_OWNER, OPERATOR_MADE = b"$operator", (1 << 64) - 1


def encode_owner(owner: bytes, made: int, topics_max: int = 0, bytes_max: int = 0) -> bytes:
    """Return the owner part of a MSG record; b"" without an owner.

    Args:
        owner: The publisher's user.
        made: Policy epoch at which that user was created.
        topics_max: Maximum of its retained topics in all partitions, 0 for the partition's own bound.
        bytes_max: Bytes of their payloads, likewise; 0 for none.
    """
    return struct.pack(">H", len(owner)) + owner + _OWNER.pack(made, topics_max, bytes_max) if owner else b""


def encode_message(message: PublishMessage) -> bytes:
    """Return one MSG record."""
    flags = message.qos
    share = b""
    if message.retain:
        flags |= FLAG_RETAIN
    if message.traced:
        flags |= FLAG_TRACED
    if message.share:
        flags |= FLAG_SHARE
        share = struct.pack(">H", len(message.share)) + message.share
    if message.owner:
        flags |= FLAG_OWNER
        share += encode_owner(message.owner, message.owner_made, message.owner_max, message.owner_bytes_max)
    partitions = message.partitions
    head = _MESSAGE.pack(
        MESSAGE_TYPE,
        message.version,
        flags,
        message.origin_kind,
        message.tag,
        message.origin_a,
        message.origin_b,
        message.session,
        message.owner_epoch,
        message.expiry_s,
        len(partitions),
        len(message.topic),
        len(message.properties),
        len(message.payload),
    )
    places = zip(partitions, message.epochs or (0,) * len(partitions), strict=True)
    where = b"".join([_PLACE.pack(partition, epoch) for partition, epoch in places])
    return b"".join((head, where, share, message.topic, message.properties, message.payload))


def decode_publish(data: bytes) -> list[PublishRun | PublishMessage]:
    """Return the records of a PUBLISH payload in order: all of them or none.

    Raises:
        Unreadable: The payload ends inside a record, or a record is malformed.
    """
    return _read_publish(data)


def _publish_records(data: Payload) -> list[PublishRun | PublishMessage]:
    records: list[PublishRun | PublishMessage] = []
    offset, end = 0, len(data)
    data = bytes(data)
    while offset < end:
        if data[offset] == MESSAGE_TYPE:
            message, offset = _decode_message(data, offset)
            records.append(message)
        elif data[offset] == RUN_TYPE:
            _, version, _, topic_bytes, packet_bytes = _RUN.unpack_from(data, offset)
            offset += _RUN.size
            stop = offset + topic_bytes + packet_bytes
            if stop > end:
                raise ValueError("run ends outside its frame")
            records.append(PublishRun(version, data[offset : offset + topic_bytes], data[offset + topic_bytes : stop]))
            offset = stop
        else:
            raise ValueError(f"unknown record type {data[offset]}")
    return records


def _decode_message(data: bytes, offset: int) -> tuple[PublishMessage, int]:
    (
        _,
        version,
        flags,
        origin_kind,
        tag,
        origin_a,
        origin_b,
        session,
        owner_epoch,
        expiry_s,
        count,
        topic_bytes,
        property_bytes,
        payload_bytes,
    ) = _MESSAGE.unpack_from(data, offset)
    offset += _MESSAGE.size
    partitions: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    if count == 1:
        partition, epoch = _PLACE.unpack_from(data, offset)
        partitions, epochs = (partition,), (epoch,)
        offset += _PLACE.size
    elif count:
        places = struct.unpack_from(">" + "HI" * count, data, offset)
        partitions, epochs = places[::2], places[1::2]
        offset += _PLACE.size * count
    share = b""
    if flags & FLAG_SHARE:
        (share_bytes,) = struct.unpack_from(">H", data, offset)
        share = data[offset + 2 : offset + 2 + share_bytes]
        offset += 2 + share_bytes
    owner, owner_made, owner_max, owner_bytes_max = b"", 0, 0, 0
    if flags & FLAG_OWNER:
        (owner_bytes,) = struct.unpack_from(">H", data, offset)
        owner = data[offset + 2 : offset + 2 + owner_bytes]
        owner_made, owner_max, owner_bytes_max = _OWNER.unpack_from(data, offset + 2 + owner_bytes)
        offset += 2 + owner_bytes + _OWNER.size
    topic_end = offset + topic_bytes
    property_end = topic_end + property_bytes
    payload_end = property_end + payload_bytes
    if payload_end > len(data):
        raise ValueError("message ends outside its frame")
    topic = data[offset:topic_end]
    if not topic or b"\0" in topic or flags & 0x03 == 0x03:
        raise ValueError("a message without a topic, or of no QoS")
    if not (topic.isascii() and share.isascii() and owner.isascii()):  # receivers decode them
        topic.decode(), share.decode(), owner.decode()
    message = PublishMessage(
        tag,
        topic,
        data[property_end:payload_end],
        flags & 0x03,
        bool(flags & FLAG_RETAIN),
        data[topic_end:property_end],
        version,
        expiry_s,
        origin_kind,
        origin_a,
        origin_b,
        session,
        owner_epoch,
        partitions,
        share,
        epochs,
        owner,
        owner_made,
        owner_max,
        owner_bytes_max,
        bool(flags & FLAG_TRACED),
    )
    return message, payload_end


def publish_records(data: bytes, offset: int, most: int) -> tuple[int, int]:
    """Return the end of the records of a PUBLISH payload with ``most`` partitions, and the number of these partitions.

    Each record counts at least once, and a long one several times, because each partition stores it. The last record
    may exceed the limit; a malformed rest counts to the end.
    """
    places, end = 0, len(data)
    while offset < end and places < most:
        kind, left = data[offset], end - offset
        if kind == MESSAGE_TYPE and left >= _MESSAGE.size:
            flags, count, topics, properties, payloads = _MESSAGE_SIZES.unpack_from(data, offset)
            offset += _MESSAGE.size + _PLACE.size * count
            if flags & FLAG_SHARE:
                offset += 2 + int.from_bytes(data[offset : offset + 2], "big")
            if flags & FLAG_OWNER:
                offset += 2 + _OWNER.size + int.from_bytes(data[offset : offset + 2], "big")
            offset += topics + properties + payloads
            places += (count or 1) * (1 + (topics + properties + payloads) // PLACE_BYTES)
        elif kind == RUN_TYPE and left >= _RUN.size:
            _, _, _, topics, packets = _RUN.unpack_from(data, offset)
            offset += _RUN.size + topics + packets
            places += 1
        else:
            return end, places + 1
    return min(offset, end), places


def push_ack_records(data: bytes, offset: int, most: int) -> tuple[int, int]:
    """Return the end of ``most`` records of a PUSH_ACK payload, and their number; an incomplete one counts too."""
    left = -(-(len(data) - offset) // _PUSH_ACK.size)
    count = min(left, most)
    return min(offset + count * _PUSH_ACK.size, len(data)), count


def only_pubacks(data: bytes) -> bool:
    """Return whether a PUSH_ACK payload has only complete records of PUBACK."""
    types = data[_PUSH_ACK.size - 2 :: _PUSH_ACK.size]
    return len(data) == len(types) * _PUSH_ACK.size and types == _PUBACK * len(types)


def encode_publish_ack(tag: int, partition: int, reason_code: int) -> bytes:
    """Return one PUBLISH_ACK record."""
    return _ACK.pack(tag, partition, reason_code)


def decode_publish_acks(data: bytes) -> list[PublishAck]:
    """Return the records of a PUBLISH_ACK payload.

    Raises:
        Unreadable: The payload is not a whole number of records.
    """
    return _read_publish_acks(data)


def encode_push(push: Push) -> bytes:
    """Return one PUSH record."""
    flags = push.qos
    if push.retain:
        flags |= FLAG_RETAIN
    if push.dup:
        flags |= PUSH_DUP
    if push.pubrel:
        flags |= PUSH_PUBREL
    if push.traced:
        flags |= PUSH_TRACED
    head = _PUSH.pack(
        push.session,
        push.owner_epoch,
        push.partition_epoch,
        push.session_seq,
        push.packet_identifier,
        flags,
        push.expiry_s,
        len(push.topic),
        len(push.properties),
        len(push.payload),
    )
    return b"".join((head, push.topic, push.properties, push.payload))


def decode_pushes(data: bytes) -> list[Push]:
    """Return the records of a PUSH payload in order.

    Raises:
        Unreadable: The payload ends inside a record.
    """
    return _read_pushes(data)


def _push_records(data: bytes) -> Iterator[Push]:
    offset, end = 0, len(data)
    while offset < end:
        head = _PUSH.unpack_from(data, offset)
        (
            session,
            owner_epoch,
            partition_epoch,
            seq,
            identifier,
            flags,
            expiry_s,
            topics,
            properties,
            payloads,
        ) = head
        offset += _PUSH.size
        topic_end = offset + topics
        property_end = topic_end + properties
        payload_end = property_end + payloads
        if payload_end > end:
            raise ValueError("push ends outside its frame")
        yield Push(
            session,
            owner_epoch,
            partition_epoch,
            seq,
            identifier,
            flags & 0x03,
            data[offset:topic_end],
            data[property_end:payload_end],
            data[topic_end:property_end],
            bool(flags & FLAG_RETAIN),
            bool(flags & PUSH_DUP),
            bool(flags & PUSH_PUBREL),
            expiry_s,
            bool(flags & PUSH_TRACED),
        )
        offset = payload_end


def encode_push_ack(ack: PushAck) -> bytes:
    """Return one PUSH_ACK record."""
    return _PUSH_ACK.pack(
        ack.session, ack.owner_epoch, ack.partition_epoch, ack.session_seq, ack.packet_type, ack.reason_code
    )


def decode_push_acks(data: bytes) -> list[PushAck]:
    """Return the records of a PUSH_ACK payload.

    Raises:
        Unreadable: The payload is not a whole number of records.
    """
    return _read_push_acks(data)


_read_publish = strictly(_publish_records, "PUBLISH")
_read_publish_acks = strictly(lambda data: [PublishAck(*record) for record in _ACK.iter_unpack(data)], "PUBLISH_ACK")
_read_pushes = strictly(lambda data: list(_push_records(bytes(data))), "PUSH")
_read_push_acks = strictly(lambda data: [PushAck(*record) for record in _PUSH_ACK.iter_unpack(data)], "PUSH_ACK")
