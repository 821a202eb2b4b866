"""One PUBLISH batch, and the acknowledgements, per peer and iteration: frames are made of them at its end.

The edge never drops frames of a link. When the link is full, frames are queued here in order, and their publishers are
parked before they are read (``edge/loop/outboxes.py``). Without a lease batches are held: a fenced node sends nothing.
Source: docs/protocol.md rules 4.5, 4.6; docs/adr/0005-wire-format.md.
"""

from collections import deque
from typing import TypeAlias

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopPeer, LoopState, PendingAck
from wire.links.link import RESEND_BYTES_MAX, LinkFull

if not cython.compiled:
    from edge.loop.buffers import copy_bytes, copy_span, give_buffer, put16, put32, reserve, take_buffer, take_bytes
    from edge.loop.layout import (
        FRAME_BYTES,
        MESSAGE_FLAGS_AT,
        MESSAGE_HEAD,
        MESSAGE_PARTITIONS_AT,
        PLACE_BYTES,
        PLACE_EPOCH_AT,
        PUBLISH,
        PUBLISH_ACK,
        PUBLISH_ACK_BYTES,
        PUSH_ACK,
        PUSH_ACK_BYTES,
        RUN_FLAGS_AT,
        RUN_HEAD,
        RUN_PACKET_BYTES_AT,
        RUN_RECORD,
        RUN_TOPIC_BYTES_AT,
        RUN_VERSION_AT,
        SHARE_FLAG,
    )
    from edge.loop.output import mark_dirty, unpark
    from edge.loop.state import PARK_PEER

__all__: list[str] = []

if not cython.compiled:  # compiled, this is a C constant: batches.pxd
    BATCH_BYTES = 1024 * 1024  # a larger batch becomes a frame at once, if there is a lease

Partitions = tuple[int, ...]  # named, because Cython reads the spelled-out form as a C tuple
Messages: TypeAlias = "list[PendingAck] | None"


def append_run(
    hot: LoopState,
    peer: LoopPeer,
    version: cython.int,
    topic: bytes,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> None:
    """Append a RUN record: QoS 0 packets of one topic, verbatim."""
    batch: Buffer = _batch_of(hot, peer)
    topic_bytes: cython.Py_ssize_t = len(topic)
    at: cython.Py_ssize_t = reserve(batch, RUN_HEAD + topic_bytes + count)
    batch.data[at] = RUN_RECORD
    batch.data[at + RUN_VERSION_AT] = 5 if version == 5 else 4
    batch.data[at + RUN_FLAGS_AT] = 0
    put16(batch, at + RUN_TOPIC_BYTES_AT, topic_bytes)
    put32(batch, at + RUN_PACKET_BYTES_AT, count)
    copy_bytes(batch, at + RUN_HEAD, topic)
    copy_span(batch, at + RUN_HEAD + topic_bytes, data, start, count)
    batch.end = at + RUN_HEAD + topic_bytes + count
    hot.iteration_bytes += count
    _appended(hot, peer, RUN_HEAD + topic_bytes + count)


def append_record(hot: LoopState, peer: LoopPeer, record: bytes, partitions: Partitions, share: bytes) -> None:
    """Append a MSG record with its partitions, their epochs, and the share of a shared pick."""
    batch: Buffer = _batch_of(hot, peer)
    count: cython.Py_ssize_t = len(partitions)
    size: cython.Py_ssize_t = len(record) + PLACE_BYTES * count
    partition: cython.int
    if share:
        size += 2 + len(share)
    at: cython.Py_ssize_t = reserve(batch, size)
    copy_span(batch, at, record, 0, MESSAGE_HEAD)
    if share:
        batch.data[at + MESSAGE_FLAGS_AT] |= SHARE_FLAG
    put16(batch, at + MESSAGE_PARTITIONS_AT, count)
    batch.end = at + size
    at += MESSAGE_HEAD
    for partition in partitions:
        put16(batch, at, partition)
        put32(batch, at + PLACE_EPOCH_AT, hot.epochs[partition])
        at += PLACE_BYTES
    if share:
        put16(batch, at, len(share))
        copy_bytes(batch, at + 2, share)
        at += 2 + len(share)
    copy_span(batch, at, record, MESSAGE_HEAD, len(record) - MESSAGE_HEAD)
    hot.forwarded_out += 1
    hot.iteration_bytes += size
    _appended(hot, peer, size)


def list_peer(hot: LoopState, peer: LoopPeer) -> None:
    """Schedule the peer's batches for the flush of this iteration."""
    if not peer.listed:
        peer.listed = True
        hot.busy_peers.append(peer)


def _batch_of(hot: LoopState, peer: LoopPeer) -> Buffer:
    if peer.batch is None:
        peer.batch = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.batch


def publish_acks_of(hot: LoopState, peer: LoopPeer) -> Buffer:
    """Return the peer's PUBLISH_ACK payload of this iteration, for appending."""
    if peer.publish_acks is None:
        peer.publish_acks = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.publish_acks


def push_acks_of(hot: LoopState, peer: LoopPeer) -> Buffer:
    """Return the peer's PUSH_ACK payload of this iteration, for appending."""
    if peer.push_acks is None:
        peer.push_acks = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.push_acks


def _appended(hot: LoopState, peer: LoopPeer, count: cython.Py_ssize_t) -> None:
    peer.room -= count
    if peer.room < peer.low_bytes and not peer.full:
        peer.full = True
        hot.full_peers += 1
    batch: Buffer | None = peer.batch
    if batch is not None and batch.end - batch.start > BATCH_BYTES:
        _cut_batch(hot, peer, batch, count)


def _cut_batch(hot: LoopState, peer: LoopPeer, batch: Buffer, count: cython.Py_ssize_t) -> None:
    """Make frames of a large batch; a last record of ``count`` bytes that does not fit begins the next one.

    Without a lease frames of the core's own messages are held: at most one message per client.
    """
    earlier: cython.Py_ssize_t = batch.end - batch.start - count
    if earlier + count > FRAME_BYTES and earlier > 0:
        # Its messages complete with the frame behind it: the peer never acknowledges a later frame before an earlier
        # one.
        send_frame(hot, peer, PUBLISH, take_bytes(batch, earlier), None)
    if hot.leased:
        _flush_publish(hot, peer)


def flush_batches(hot: LoopState) -> None:
    """Make frames of this iteration's batches; without a lease they are held, a fenced node sends nothing."""
    if not hot.leased:
        return
    peer: LoopPeer
    busy = hot.busy_peers
    hot.busy_peers = []
    for peer in busy:
        peer.listed = False
        if not peer.dead:
            flush_peer(hot, peer)


def flush_peer(hot: LoopState, peer: LoopPeer) -> None:
    """Make frames of one peer's batches."""
    _flush_publish(hot, peer)
    if peer.publish_acks is not None:
        _send_acks(hot, peer, PUBLISH_ACK, PUBLISH_ACK_BYTES, _payload(hot, peer.publish_acks))
        peer.publish_acks = None
    if peer.push_acks is not None:
        _send_acks(hot, peer, PUSH_ACK, PUSH_ACK_BYTES, _payload(hot, peer.push_acks))
        peer.push_acks = None
    update_capacity(hot, peer)


def _send_acks(
    hot: LoopState, peer: LoopPeer, kind: cython.int, record_bytes: cython.Py_ssize_t, payload: bytes
) -> None:
    """Send acknowledgements in frames of whole records; more than one frame accumulates only without a lease."""
    most: cython.Py_ssize_t = BATCH_BYTES // record_bytes * record_bytes
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(payload)
    while end - at > most:
        send_frame(hot, peer, kind, payload[at : at + most], None)
        at += most
    send_frame(hot, peer, kind, payload[at:] if at > 0 else payload, None)


def _payload(hot: LoopState, batch: Buffer) -> bytes:
    payload: bytes = take_bytes(batch, batch.end - batch.start)
    give_buffer(hot.pool, batch)
    return payload


def _flush_publish(hot: LoopState, peer: LoopPeer) -> None:
    if peer.batch is not None:
        messages = peer.batch_messages
        peer.batch_messages = []
        send_frame(hot, peer, PUBLISH, _payload(hot, peer.batch), messages)
        peer.batch = None


def send_frame(hot: LoopState, peer: LoopPeer, kind: cython.int, payload: bytes, messages: Messages) -> None:
    """Send a frame on the link; queue it in order if the link is full or there is no lease."""
    if peer.blocked or not hot.leased:
        peer.blocked.append((kind, payload, messages))
        return
    try:
        number = peer.link.send(kind, payload)
    except LinkFull:
        peer.blocked.append((kind, payload, messages))
        return
    if messages:
        peer.inflight.append((number, messages))
    if peer.conn is not None:
        mark_dirty(hot, peer.conn)


def update_capacity(hot: LoopState, peer: LoopPeer) -> None:
    """Read the link's free capacity: send blocked frames, release the publishers when it is large enough."""
    if peer.blocked and not hot.leased:
        list_peer(hot, peer)  # checked again with the first batches under a lease
    elif peer.blocked:
        waiting = peer.blocked
        peer.blocked = deque()
        for kind, payload, messages in waiting:
            send_frame(hot, peer, kind, payload, messages)
    room: cython.Py_ssize_t = peer.link.room()
    for _, payload, _ in peer.blocked:
        room -= len(payload)
    if peer.batch is not None:
        room -= peer.batch.end - peer.batch.start
    peer.room = room
    if room < peer.low_bytes:
        if not peer.full:
            peer.full = True
            hot.full_peers += 1
    elif peer.full:
        more: cython.Py_ssize_t = room - peer.low_bytes
        if more >= hot.peer_low_bytes or 2 * more >= RESEND_BYTES_MAX - peer.low_bytes:
            release_peer(hot, peer)


def release_peer(hot: LoopState, peer: LoopPeer) -> None:
    """Resume the publishers of a peer with free capacity, or of a dead peer."""
    if peer.full:
        peer.full = False
        hot.full_peers -= 1
        assert hot.full_peers >= 0
    waiters = peer.waiters
    peer.waiters = []
    for conn in waiters:
        unpark(hot, conn, PARK_PEER)
