"""Frames of other nodes: messages for our own subscribers, acknowledgements, pushes.

A forwarded message is delivered to local ephemeral sessions only and never forwarded again: the publisher's edge named
every destination. A link is always read; a subscriber that is too slow for it loses QoS 0.
Source: docs/adr/0005-wire-format.md; docs/protocol.md rules 1.6, 4.5, 8.2.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopConnection, LoopPeer, LoopState, PartitionOutbox, PendingAck, PublishView, Route, Sub
from wire.messages.frames import HEADER, HEADER_BYTES

if not cython.compiled:
    from edge.loop.acks import destination_done, finish_acked_frames
    from edge.loop.batches import publish_acks_of, update_capacity
    from edge.loop.buffers import get16, get32, get64, put16, put64, read_varint, reserve, varint_end
    from edge.loop.deliver import deliver_local, deliver_run
    from edge.loop.encode import walk_properties
    from edge.loop.fanout import deliver_pick, handle_refusal
    from edge.loop.layout import (
        AT_AN_EDGE,
        FAILURE,
        HELLO,
        MESSAGE_EXPIRY_AT,
        MESSAGE_FLAGS_AT,
        MESSAGE_HEAD,
        MESSAGE_ORIGIN_A_AT,
        MESSAGE_ORIGIN_B_AT,
        MESSAGE_ORIGIN_KIND_AT,
        MESSAGE_PARTITIONS_AT,
        MESSAGE_PAYLOAD_BYTES_AT,
        MESSAGE_PROPERTY_BYTES_AT,
        MESSAGE_RECORD,
        MESSAGE_TAG_AT,
        MESSAGE_TOPIC_BYTES_AT,
        MESSAGE_VERSION_AT,
        NO_MEMBER,
        PLACE_BYTES,
        PUBLISH,
        PUBLISH_ACK,
        PUBLISH_ACK_BYTES,
        PUBLISH_ACK_CODE_AT,
        PUBLISH_ACK_PARTITION_AT,
        PUBLISH_ACK_TAG_AT,
        PUSH,
        QOS_BITS,
        QUOTA_EXCEEDED,
        RETAIN_FLAG,
        RUN_HEAD,
        RUN_PACKET_BYTES_AT,
        RUN_RECORD,
        RUN_TOPIC_BYTES_AT,
        RUN_VERSION_AT,
        SERVER_BUSY,
        SERVER_UNAVAILABLE,
        SHARE_FLAG,
        SUPERSEDED,
        TRACED_FLAG,
    )
    from edge.loop.notes import note_drop
    from edge.loop.origins import take_origin, was_picked
    from edge.loop.outboxes import leave_outbox
    from edge.loop.output import mark_dirty
    from edge.loop.pushes import receive_pushes
    from edge.loop.refused_topics import note_refused
    from edge.loop.routes import local_route
    from edge.loop.state import PARK_HANDLER
    from edge.loop.traces import trace_accepted

__all__: list[str] = []

if not cython.compiled:  # compiled, these are C constants: forwarded.pxd
    UNACKED_BYTES_MAX = 64 * 1024  # received from a node that does not wait for TAKEN

HELLO_BYTES_MAX = 64 * 1024


def receive_link(hot: LoopState, conn: LoopConnection, data: bytes) -> None:
    """Handle bytes of a link: HELLO is passed to the core, then frames are handled in order.

    Raises:
        LinkError: The framing is invalid.
        ValueError: A frame's payload is invalid.
    """
    peer: LoopPeer | None = conn.peer
    if peer is None:
        _receive_hello(hot, conn, data)
        return
    for frame in peer.link.receive(data):
        kind = frame.kind
        if peer.dead or conn.closed:
            return
        if kind == PUBLISH and peer.may_publish:
            receive_publish(hot, peer, frame.payload)
        elif kind == PUBLISH_ACK and peer.may_acknowledge:
            receive_publish_acks(hot, peer, frame.payload)
        elif kind == PUSH and peer.may_push:
            receive_pushes(hot, peer, frame.payload)
        else:
            hot.handler.frame(peer, kind, frame.payload)
    finish_acked_frames(hot, peer, peer.link.peer_taken)
    update_capacity(hot, peer)
    peer.unacked_bytes += len(data)
    # Only an edge waits for TAKEN. To other nodes it is sent with frames or the next heartbeat, unless they buffer much
    # until then. So it wakes no node.
    if peer.is_edge or peer.unacked_bytes >= UNACKED_BYTES_MAX:
        peer.unacked_bytes = 0
        mark_dirty(hot, conn)


def _receive_hello(hot: LoopState, conn: LoopConnection, data: bytes) -> None:
    """Handle the first frame of a link; bytes behind it wait for ``bind_link``."""
    data = conn.partial + data
    conn.partial = data
    if conn.parked or len(data) < HEADER_BYTES:
        return
    length, kind, _, _, _ = HEADER.unpack_from(data, 0)
    if kind != HELLO or length > HELLO_BYTES_MAX:
        raise ValueError(f"first frame of a link has kind {kind} and {length} bytes, expected HELLO")
    if len(data) < HEADER_BYTES + length:
        return
    conn.partial = data[HEADER_BYTES + length :]
    conn.parked |= PARK_HANDLER
    hot.handler.hello(conn, data[HEADER_BYTES : HEADER_BYTES + length])


# -- messages


def receive_publish(hot: LoopState, peer: LoopPeer, payload: bytes) -> None:
    """Deliver the records of another edge's PUBLISH frame.

    Raises:
        ValueError: A record is invalid.
    """
    data: cython.p_uchar = payload
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(payload)
    hot.drop_above = hot.output_high  # a link parks no publisher: the slow subscriber loses messages
    try:
        while at < end:
            if data[at] == RUN_RECORD:
                at = _receive_run(hot, payload, data, at, end)
            elif data[at] == MESSAGE_RECORD:
                at = _receive_message(hot, peer, payload, data, at, end)
            else:
                raise ValueError(f"unknown record type {data[at]}")
    finally:
        hot.drop_above = 2 * hot.output_high


def _receive_run(
    hot: LoopState, payload: bytes, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    if at + RUN_HEAD > end:
        raise ValueError("run ends outside its frame")
    version: cython.int = data[at + RUN_VERSION_AT]
    start: cython.Py_ssize_t = at + RUN_HEAD + get16(data, at + RUN_TOPIC_BYTES_AT)
    stop: cython.Py_ssize_t = start + get32(data, at + RUN_PACKET_BYTES_AT)
    if stop > end:
        raise ValueError("run ends outside its frame")
    packet_max: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    payload_bytes: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    position: cython.Py_ssize_t = start
    while position < stop:
        length = _checked_packet(hot, data, position, stop, version == 5)
        packet_max = max(packet_max, length)
        position += length
        payload_bytes += hot.packet.payload_bytes
        count += 1
    hot.forwarded_in += count
    route: Route = local_route(hot, payload[at + RUN_HEAD : start])
    if route.subs:
        hot.run_payload = payload_bytes
        deliver_run(hot, None, route, version, data, start, stop, packet_max, count)
    return stop


def _checked_packet(
    hot: LoopState, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, five: cython.bint
) -> cython.Py_ssize_t:
    """Return the length of a validated packet, which conversions rely on; also sets its payload length."""
    start: cython.Py_ssize_t = at
    length: cython.Py_ssize_t
    at = varint_end(data, start + 1, end)
    if at < 0:
        raise ValueError("packet ends outside its run")
    length = read_varint(data, start + 1, at)
    if data[start] != 0x30 or at + length > end or length < 2 or 2 + get16(data, at) > length:
        raise ValueError("not a QoS 0 packet in a run")
    if five and walk_properties(hot.packet, data, at + 2 + get16(data, at), at + length, at + length, length) != 0:
        raise ValueError("invalid properties in a run")
    if not five:
        hot.packet.payload_bytes = length - 2 - get16(data, at)
    return at + length - start


def _receive_message(
    hot: LoopState,
    peer: LoopPeer,
    payload: bytes,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    packet: PublishView = hot.packet
    share: bytes = b""
    if at + MESSAGE_HEAD > end:
        raise ValueError("message ends outside its frame")
    flags: cython.int = data[at + MESSAGE_FLAGS_AT]
    tag: cython.ulonglong = get64(data, at + MESSAGE_TAG_AT)
    topic_at: cython.Py_ssize_t = at + MESSAGE_HEAD + PLACE_BYTES * get16(data, at + MESSAGE_PARTITIONS_AT)
    # Only a retained message carries its publisher's name.
    if flags & ~(QOS_BITS | RETAIN_FLAG | SHARE_FLAG | TRACED_FLAG):
        raise ValueError(f"message flags 0x{flags:02x} are not allowed at an edge")
    if flags & SHARE_FLAG:
        if topic_at + 2 > end:
            raise ValueError("message ends outside its frame")
        share = payload[topic_at + 2 : topic_at + 2 + get16(data, topic_at)]
        topic_at += 2 + get16(data, topic_at)
    packet.keep = payload
    packet.data = data
    packet.version = data[at + MESSAGE_VERSION_AT]
    packet.qos = flags & QOS_BITS
    packet.retain = flags & RETAIN_FLAG != 0
    packet.traced = flags & TRACED_FLAG != 0
    packet.dup = False
    packet.pending_key = -1
    packet.expiry_s = get32(data, at + MESSAGE_EXPIRY_AT)
    packet.alias_at = -1
    packet.expiry_at = -1
    packet.properties_at = topic_at + get16(data, at + MESSAGE_TOPIC_BYTES_AT)
    packet.properties_bytes = get32(data, at + MESSAGE_PROPERTY_BYTES_AT)
    packet.plain_bytes = packet.properties_bytes
    packet.payload_at = packet.properties_at + packet.properties_bytes
    packet.payload_bytes = get32(data, at + MESSAGE_PAYLOAD_BYTES_AT)
    stop: cython.Py_ssize_t = packet.payload_at + packet.payload_bytes
    if stop > end:
        raise ValueError("message ends outside its frame")
    packet.topic = payload[topic_at : packet.properties_at]
    packet.origin_kind = data[at + MESSAGE_ORIGIN_KIND_AT]
    packet.origin_a = get64(data, at + MESSAGE_ORIGIN_A_AT)
    packet.origin_b = get64(data, at + MESSAGE_ORIGIN_B_AT)
    hot.forwarded_in += 1
    if packet.traced:
        trace_accepted(hot, peer, packet)
    if share:
        _receive_pick(hot, peer, packet, share, tag)
    elif take_origin(hot, packet.origin_kind, packet.origin_a, packet.origin_b):
        deliver_local(hot, None, local_route(hot, packet.topic), packet)
    return stop


def _receive_pick(hot: LoopState, peer: LoopPeer, packet: PublishView, share: bytes, tag: cython.ulonglong) -> None:
    """Deliver a shared group's copy that another edge sent to a member here, or refuse it."""
    sub: Sub | None = None
    code: cython.int = NO_MEMBER
    if was_picked(hot, share, packet.origin_kind, packet.origin_a, packet.origin_b):
        hot.dropped_repeated += 1
        code = 0
    else:
        sub = hot.handler.picked(peer, share, packet.topic, packet.qos)
    if sub is not None and not sub.conn.closed:
        code = 0
        deliver_pick(hot, sub, packet, share)
    elif tag == 0 and code != 0:
        hot.dropped_no_pick += 1
        note_drop(hot, None, "no_subscriber_took", packet.topic, packet)
    if tag != 0:
        acks: Buffer = publish_acks_of(hot, peer)
        at: cython.Py_ssize_t = reserve(acks, PUBLISH_ACK_BYTES)
        put64(acks, at + PUBLISH_ACK_TAG_AT, tag)
        put16(acks, at + PUBLISH_ACK_PARTITION_AT, AT_AN_EDGE)
        acks.data[at + PUBLISH_ACK_CODE_AT] = code
        acks.end = at + PUBLISH_ACK_BYTES


# -- acknowledgements


def receive_publish_acks(hot: LoopState, peer: LoopPeer, payload: bytes) -> None:
    """Count destinations that finished our messages.

    An acknowledgement of a former primary counts, because its successor has the message; its refusal does not. The loop
    reports a node that acknowledges a message without being sent it as primary. An edge acknowledges picks only.

    Raises:
        ValueError: The payload is not a whole number of records.
    """
    data: cython.p_uchar = payload
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(payload)
    partition: cython.int
    code: cython.int
    outbox: PartitionOutbox | None
    message: PendingAck | None
    if end % PUBLISH_ACK_BYTES != 0:
        raise ValueError("PUBLISH_ACK is not a whole number of records")
    while at < end:
        partition = get16(data, at + PUBLISH_ACK_PARTITION_AT)
        code = data[at + PUBLISH_ACK_CODE_AT]
        if peer.is_edge != (partition == AT_AN_EDGE):
            hot.handler.violated(peer, "PUBLISH_ACK", "tier")
            return
        if partition == AT_AN_EDGE:
            message = peer.picks.pop(get64(data, at + PUBLISH_ACK_TAG_AT), None)
        else:
            outbox = hot.outboxes[partition] if partition < len(hot.outboxes) else None
            if outbox is not None and hot.primaries[partition] is not peer:
                outbox = _asked_before(hot, peer, outbox, get64(data, at + PUBLISH_ACK_TAG_AT), code)
            message = outbox.messages.pop(get64(data, at + PUBLISH_ACK_TAG_AT), None) if outbox is not None else None
            if message is not None:
                leave_outbox(hot, message)
        if message is None:
            hot.acks_unknown += 1  # a repeat was answered twice, or by a former primary
        elif code >= FAILURE:
            _failed(hot, message, code)
        else:
            message.delivered = True
            if message.pick is not None:
                message.reason_code = 0  # refused by other destinations before
            destination_done(hot, message, code)
        at += PUBLISH_ACK_BYTES


def _asked_before(
    hot: LoopState, peer: LoopPeer, outbox: PartitionOutbox, tag: cython.ulonglong, code: cython.int
) -> PartitionOutbox | None:
    """Return the outbox if this peer was sent the message as a former primary."""
    if outbox.former is None or tag > outbox.former.get(peer, 0):
        if tag in outbox.messages:
            hot.handler.violated(peer, "PUBLISH_ACK", "placement")
        return None
    if code >= FAILURE and code != SUPERSEDED:
        return None  # a former primary's refusal: the message is sent to the next one, which may accept it
    return outbox


def _failed(hot: LoopState, message: PendingAck, code: cython.int) -> None:
    """Handle a failure: a destination refused a message, or cannot determine whether it has it."""
    if code == SERVER_UNAVAILABLE:  # it could neither check nor queue: a former primary may have the message
        message.delivered = True
        code = SERVER_BUSY
    if code == SUPERSEDED:
        _superseded(hot, message)
    elif message.pick is not None:
        handle_refusal(hot, message, code)
    elif code == SERVER_BUSY:
        _refuse_full(hot, message)
    else:
        destination_done(hot, message, code)


def _refuse_full(hot: LoopState, message: PendingAck) -> None:
    """Handle a full disk or queue; disconnect a client that cannot receive the failure.

    Otherwise newer messages could overtake the repeated one.
    """
    conn: LoopConnection | None = message.conn
    note_refused(hot, message)
    can_report: cython.bint = message.waiting == 1 and not message.delivered
    if conn is not None and not conn.closed and (conn.version != 5 or not can_report):
        hot.acks_withheld += 1
        hot.handler.error(conn, QUOTA_EXCEEDED)
    destination_done(hot, message, SERVER_BUSY)


def _superseded(hot: LoopState, message: PendingAck) -> None:
    """Close the publisher's connection without an acknowledgement: a partition knows a newer one."""
    first: PendingAck = message if message.parent is None else message.parent
    if first.conn is not None and not first.conn.closed:
        hot.handler.error(first.conn, SUPERSEDED)
    destination_done(hot, message, SUPERSEDED)
