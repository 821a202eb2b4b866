"""The MSG record of a message: encoded from the current message, renumbered, with remaining expiry, and decoded.

A record holds all fields but its partitions and share, which ``edge/loop/batches.py`` inserts per destination. Offsets
are in ``edge/loop/layout.py``, the drawing in ``wire/messages/batches.py``. Source: docs/adr/0005-wire-format.md.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopState, PendingAck, PublishView

if not cython.compiled:
    from edge.loop.buffers import copy_bytes, copy_span, get16, get32, get64, put16, put32, put64, reserve, take_bytes
    from edge.loop.encode import copy_plain
    from edge.loop.layout import (
        MESSAGE_EXPIRY_AT,
        MESSAGE_FLAGS_AT,
        MESSAGE_HEAD,
        MESSAGE_ORIGIN_A_AT,
        MESSAGE_ORIGIN_B_AT,
        MESSAGE_ORIGIN_KIND_AT,
        MESSAGE_OWNER_EPOCH_AT,
        MESSAGE_PARTITIONS_AT,
        MESSAGE_PAYLOAD_BYTES_AT,
        MESSAGE_PROPERTY_BYTES_AT,
        MESSAGE_RECORD,
        MESSAGE_SESSION_AT,
        MESSAGE_TAG_AT,
        MESSAGE_TOPIC_BYTES_AT,
        MESSAGE_VERSION_AT,
        NO_EXPIRY,
        OWNER_FLAG,
        QOS_BITS,
        RETAIN_FLAG,
        TRACED_FLAG,
    )

__all__: list[str] = []

if not cython.compiled:  # compiled, this is a C constant: records.pxd
    SECOND_NS = 1_000_000_000


def record_of(hot: LoopState, packet: PublishView, tag: cython.ulonglong) -> bytes:
    """Return the current message as a MSG record without partitions and share."""
    record: Buffer = hot.scratch
    topic: bytes = packet.topic
    topic_bytes: cython.Py_ssize_t = len(topic)
    size: cython.Py_ssize_t = MESSAGE_HEAD + topic_bytes + packet.plain_bytes + packet.payload_bytes
    record.start = 0
    record.end = 0
    reserve(record, size)
    record.data[0] = MESSAGE_RECORD
    record.data[MESSAGE_VERSION_AT] = 5 if packet.version == 5 else 4
    record.data[MESSAGE_FLAGS_AT] = (
        packet.qos | (RETAIN_FLAG if packet.retain else 0) | (TRACED_FLAG if packet.traced else 0)
    )
    record.data[MESSAGE_ORIGIN_KIND_AT] = packet.origin_kind
    put64(record, MESSAGE_TAG_AT, tag)
    put64(record, MESSAGE_ORIGIN_A_AT, packet.origin_a if packet.origin_kind else hot.incarnation)
    put64(
        record,
        MESSAGE_ORIGIN_B_AT,
        packet.origin_b if packet.origin_kind else hot.origin_tag if hot.origin_tag else tag,
    )
    put64(record, MESSAGE_SESSION_AT, packet.session)
    put64(record, MESSAGE_OWNER_EPOCH_AT, packet.owner_epoch)
    put32(record, MESSAGE_EXPIRY_AT, packet.expiry_s)
    put16(record, MESSAGE_PARTITIONS_AT, 0)
    put16(record, MESSAGE_TOPIC_BYTES_AT, topic_bytes)
    put32(record, MESSAGE_PROPERTY_BYTES_AT, packet.plain_bytes)
    put32(record, MESSAGE_PAYLOAD_BYTES_AT, packet.payload_bytes)
    copy_bytes(record, MESSAGE_HEAD, topic)
    if packet.plain_bytes > 0:
        copy_plain(record, MESSAGE_HEAD + topic_bytes, packet)
    at: cython.Py_ssize_t = MESSAGE_HEAD + topic_bytes + packet.plain_bytes
    copy_span(record, at, packet.data, packet.payload_at, packet.payload_bytes)
    record.end = size
    return take_bytes(record, size)


def with_owner(record: bytes, owner_block: bytes) -> bytes:
    """Return the record with its publisher's user, which only the partition that retains the topic receives."""
    flags: cython.int = record[MESSAGE_FLAGS_AT] | OWNER_FLAG
    head: bytes = record[:MESSAGE_FLAGS_AT] + flags.to_bytes(1, "big") + record[MESSAGE_FLAGS_AT + 1 : MESSAGE_HEAD]
    return head + owner_block + record[MESSAGE_HEAD:]


def topic_of(record: bytes) -> bytes:
    """Return the topic of a record made by ``record_of`` or ``with_owner``; b"" of an empty one."""
    at: cython.Py_ssize_t = MESSAGE_HEAD
    if len(record) < MESSAGE_HEAD:
        return b""
    if record[MESSAGE_FLAGS_AT] & OWNER_FLAG:
        at += 2 + get16(record, MESSAGE_HEAD) + 24
    return record[at : at + get16(record, MESSAGE_TOPIC_BYTES_AT)]


def with_tag(hot: LoopState, record: bytes, tag: cython.ulonglong) -> bytes:
    """Return the record with another number, which replaces its origin too if the former one was its origin."""
    data: cython.p_uchar = record
    again: Buffer = hot.scratch
    size: cython.Py_ssize_t = len(record)
    again.start = 0
    again.end = 0
    reserve(again, size)
    copy_span(again, 0, record, 0, size)
    put64(again, MESSAGE_TAG_AT, tag)
    if record[MESSAGE_ORIGIN_KIND_AT] == 0 and get64(data, MESSAGE_ORIGIN_B_AT) == get64(data, MESSAGE_TAG_AT):
        put64(again, MESSAGE_ORIGIN_B_AT, tag)
    again.end = size
    return take_bytes(again, size)


def load_record(packet: PublishView, record: bytes) -> None:
    """Load a record made by ``record_of``, to deliver it to a local session."""
    packet.keep = record
    packet.data = record
    packet.version = record[MESSAGE_VERSION_AT]
    packet.qos = record[MESSAGE_FLAGS_AT] & QOS_BITS
    packet.retain = record[MESSAGE_FLAGS_AT] & RETAIN_FLAG != 0
    packet.traced = record[MESSAGE_FLAGS_AT] & TRACED_FLAG != 0
    packet.dup = False
    packet.pending_key = -1
    packet.expiry_s = get32(packet.data, MESSAGE_EXPIRY_AT)
    packet.alias_at = -1
    packet.expiry_at = -1
    topic_bytes: cython.Py_ssize_t = get16(packet.data, MESSAGE_TOPIC_BYTES_AT)
    packet.topic = record[MESSAGE_HEAD : MESSAGE_HEAD + topic_bytes]
    packet.origin_kind = record[MESSAGE_ORIGIN_KIND_AT]
    packet.origin_a = get64(packet.data, MESSAGE_ORIGIN_A_AT)
    packet.origin_b = get64(packet.data, MESSAGE_ORIGIN_B_AT)
    packet.properties_at = MESSAGE_HEAD + topic_bytes
    packet.properties_bytes = get32(packet.data, MESSAGE_PROPERTY_BYTES_AT)
    packet.plain_bytes = packet.properties_bytes
    packet.payload_at = packet.properties_at + packet.properties_bytes
    packet.payload_bytes = get32(packet.data, MESSAGE_PAYLOAD_BYTES_AT)


def with_remaining_expiry(hot: LoopState, message: PendingAck) -> bytes:
    """Return the record with the remaining expiry [MQTT-3.3.2-6]."""
    record: bytes = message.record
    expiry_s: cython.ulong = get32(record, MESSAGE_EXPIRY_AT)
    waited_s = (hot.now_ns - message.at_ns) // SECOND_NS
    if expiry_s == NO_EXPIRY or waited_s == 0:
        return record
    left_s: int = max(0, int(expiry_s) - waited_s)
    return record[:MESSAGE_EXPIRY_AT] + left_s.to_bytes(4, "big") + record[MESSAGE_EXPIRY_AT + 4 :]
