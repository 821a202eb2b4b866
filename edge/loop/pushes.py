"""Durable sessions: pushes of the primary are written to the client, the client's acknowledgements are sent back.

The primary assigns packet identifiers and keeps the window. This connection stores only unacknowledged pushes and the
client's last acknowledgements: a push repeated after a failover is answered instead of written twice. Formats: PUSH and
PUSH_ACK of ``wire/messages/batches.py``. Source: docs/protocol.md rule 5.7.
"""

from collections import deque

import cython

from edge.loop.buffers import Buffer
from edge.loop.round_trips import RoundTrips
from edge.loop.state import LoopConnection, LoopPeer, LoopState, OutboundWindow, PublishView

if not cython.compiled:
    from edge.loop.batches import push_acks_of
    from edge.loop.buffers import append_bytes, get16, get32, get64, put32, put64, reserve
    from edge.loop.deliver import write_copy
    from edge.loop.encode import publish_bytes
    from edge.loop.layout import (
        FAILURE,
        NOT_AUTHORIZED,
        PACKET_TOO_LARGE,
        PROTOCOL_ERROR,
        PUSH_ACK_BYTES,
        PUSH_ACK_CODE_AT,
        PUSH_ACK_OWNER_EPOCH_AT,
        PUSH_ACK_PARTITION_EPOCH_AT,
        PUSH_ACK_SESSION_AT,
        PUSH_ACK_SESSION_SEQ_AT,
        PUSH_ACK_TYPE_AT,
        PUSH_DUP_FLAG,
        PUSH_EXPIRY_AT,
        PUSH_FLAGS_AT,
        PUSH_HEAD,
        PUSH_IDENTIFIER_AT,
        PUSH_OWNER_EPOCH_AT,
        PUSH_PARTITION_EPOCH_AT,
        PUSH_PAYLOAD_BYTES_AT,
        PUSH_PROPERTY_BYTES_AT,
        PUSH_PUBREL_FLAG,
        PUSH_SESSION_AT,
        PUSH_SESSION_SEQ_AT,
        PUSH_TOPIC_BYTES_AT,
        PUSH_TRACED_FLAG,
        QOS_BITS,
        RETAIN_FLAG,
    )
    from edge.loop.notes import note_drop
    from edge.loop.outbound_identifiers import is_of_flow
    from edge.loop.output import answer_unknown, note_high, pending_output, write_short
    from edge.loop.round_trips import end_trip
    from edge.loop.traces import trace_acked, trace_written

__all__: list[str] = []

if not cython.compiled:  # compiled, these are C constants: pushes.pxd
    # Acknowledgements that a new primary may not have. QoS 1 messages of older ones are sent again as repeats.
    ANSWERED_MAX = 512
    # QoS 2 states beside 1 for QoS 1: PUBLISH written, PUBREC received, PUBREL written (``is_of_flow``).
    WRITTEN, RECEIVED, RELEASED = 2, 4, 3


def receive_pushes(hot: LoopState, peer: LoopPeer, payload: bytes) -> None:
    """Write the records of a PUSH frame to their connections; a session's only from its primary.

    Raises:
        ValueError: The payload ends inside a record.
    """
    data: cython.p_uchar = payload
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(payload)
    packet: PublishView = hot.packet
    conn: LoopConnection | None
    topic_bytes: cython.Py_ssize_t
    partition: cython.Py_ssize_t
    flags: cython.int
    session_seq: cython.ulonglong
    identifier: cython.int
    misplaced: cython.bint = False
    packet.keep = payload
    packet.data = data
    packet.alias_at = -1
    packet.expiry_at = -1
    packet.version = 5
    packet.origin_kind = packet.origin_a = packet.origin_b = 0  # a push names the entry of a queue
    while at < end:
        if at + PUSH_HEAD > end:
            raise ValueError("push ends outside its frame")
        topic_bytes = get16(data, at + PUSH_TOPIC_BYTES_AT)
        packet.properties_at = at + PUSH_HEAD + topic_bytes
        packet.properties_bytes = get32(data, at + PUSH_PROPERTY_BYTES_AT)
        packet.plain_bytes = packet.properties_bytes
        packet.payload_at = packet.properties_at + packet.properties_bytes
        packet.payload_bytes = get32(data, at + PUSH_PAYLOAD_BYTES_AT)
        if packet.payload_at + packet.payload_bytes > end:
            raise ValueError("push ends outside its frame")
        packet.topic = payload[at + PUSH_HEAD : at + PUSH_HEAD + topic_bytes]
        packet.expiry_s = get32(data, at + PUSH_EXPIRY_AT)
        packet.qos = data[at + PUSH_FLAGS_AT] & QOS_BITS
        packet.traced = data[at + PUSH_FLAGS_AT] & PUSH_TRACED_FLAG != 0
        conn = hot.sessions.get(get64(data, at + PUSH_SESSION_AT))
        partition = get64(data, at + PUSH_SESSION_AT) >> 48
        if partition >= len(hot.primaries) or hot.primaries[partition] is not peer:
            misplaced = True
            at = packet.payload_at + packet.payload_bytes
            continue
        hot.pushes_in += 1
        if (
            conn is None
            or conn.closed
            or conn.owner_epoch != get64(data, at + PUSH_OWNER_EPOCH_AT)
            or get32(data, at + PUSH_PARTITION_EPOCH_AT) < conn.push_epoch
        ):
            hot.pushes_ignored += 1
            at = packet.payload_at + packet.payload_bytes
            continue
        conn.push_epoch = get32(data, at + PUSH_PARTITION_EPOCH_AT)
        flags = data[at + PUSH_FLAGS_AT]
        session_seq = get64(data, at + PUSH_SESSION_SEQ_AT)
        identifier = get16(data, at + PUSH_IDENTIFIER_AT)
        if flags & PUSH_PUBREL_FLAG:
            _push_release(hot, conn, conn.push_epoch, session_seq, identifier)
        elif packet.qos == 0:
            _push_qos0(hot, conn, packet, flags)
        else:
            _push(hot, conn, packet, flags, conn.push_epoch, session_seq, identifier)
        at = packet.payload_at + packet.payload_bytes
    if misplaced:  # a primary serves, and pushes, only when every live edge has its map
        hot.handler.violated(peer, "PUSH", "placement")


def _push_qos0(hot: LoopState, conn: LoopConnection, packet: PublishView, flags: cython.int) -> None:
    """Push QoS 0, which is never queued: dropped when the output is full."""
    five: cython.bint = conn.version == 5
    if _needs_authorization(hot, conn, packet) and not hot.handler.may_receive(conn, packet.topic, 0):
        hot.dropped_not_authorized += 1
        note_drop(hot, conn, "not_authorized", packet.topic, None)
    elif publish_bytes(packet, five, 0, b"") > conn.client_packet_max:
        hot.dropped_too_large += 1
        note_drop(hot, conn, "too_large", packet.topic, None)
    elif conn.lagging or pending_output(conn) > hot.output_high:
        note_high(hot, conn)
        hot.dropped_slow += 1
        note_drop(hot, conn, "slow", packet.topic, None)
    else:
        write_copy(hot, conn, packet, 0, flags & RETAIN_FLAG != 0, False, 0, b"")
        hot.publish_out_qos0 += 1
        if packet.traced or conn.traced:
            trace_written(hot, conn, packet, 0, 0, 0)


def _needs_authorization(hot: LoopState, conn: LoopConnection, packet: PublishView) -> cython.bint:
    """Return whether the core authorizes a pushed message: no general grant includes topics that begin with $."""
    return conn.judge_pushes or (hot.authorizing and packet.topic.startswith(b"$"))


def _pushes_of(conn: LoopConnection) -> OutboundWindow:
    if conn.outbound is None:
        conn.outbound = OutboundWindow(1)
        conn.outbound.pushes = {}
        conn.outbound.answered = {}
    return conn.outbound


def _push(
    hot: LoopState,
    conn: LoopConnection,
    packet: PublishView,
    flags: cython.int,
    partition_epoch: cython.ulong,
    session_seq: cython.ulonglong,
    identifier: cython.int,
) -> None:
    outbound: OutboundWindow = _pushes_of(conn)
    pushes: dict[int, tuple[int, int, int]] = outbound.pushes  # type: ignore[assignment]  # _pushes_of created it
    five: cython.bint = conn.version == 5
    size: cython.Py_ssize_t = publish_bytes(packet, five, packet.qos, b"")
    known = pushes.get(identifier)
    if known is not None and known[0] == session_seq:
        # Written on this connection and still open: only the primary is new.
        pushes[identifier] = (session_seq, partition_epoch, known[2])
        if known[2] == RECEIVED:
            send_push_ack(hot, conn, partition_epoch, session_seq, 5, 0)
        hot.dropped_repeated += 1
        return
    answered: dict[int, int] = outbound.answered  # type: ignore[assignment]  # created with pushes
    if session_seq in answered:
        send_push_ack(hot, conn, partition_epoch, session_seq, answered[session_seq], 0)
        hot.dropped_repeated += 1
        return
    if _needs_authorization(hot, conn, packet) and not hot.handler.may_receive(conn, packet.topic, packet.qos):
        hot.dropped_not_authorized += 1
        note_drop(hot, conn, "not_authorized", packet.topic, None)
        # Of type PUBLISH: not the client's answer, which may be PUBACK or PUBREC with the same code.
        send_push_ack(hot, conn, partition_epoch, session_seq, 3, NOT_AUTHORIZED)
        return
    if size > conn.client_packet_max:  # as if it had been sent [MQTT-3.1.2-25]
        hot.dropped_too_large += 1
        note_drop(hot, conn, "too_large", packet.topic, None)
        send_push_ack(hot, conn, partition_epoch, session_seq, 4 if packet.qos == 1 else 5, PACKET_TOO_LARGE)
        return
    pushes[identifier] = (session_seq, partition_epoch, packet.qos)
    trips: RoundTrips = outbound.trips
    if trips.packet == 0:
        trips.packet, trips.since_ns = identifier, hot.now_ns
    write_copy(hot, conn, packet, packet.qos, flags & RETAIN_FLAG != 0, flags & PUSH_DUP_FLAG != 0, identifier, b"")
    hot.iteration_bytes += size
    if packet.qos == 1:
        hot.publish_out_qos1 += 1
    else:
        hot.publish_out_qos2 += 1
    if packet.traced or conn.traced:
        trace_written(hot, conn, packet, packet.qos, identifier, session_seq)


def _push_release(
    hot: LoopState,
    conn: LoopConnection,
    partition_epoch: cython.ulong,
    session_seq: cython.ulonglong,
    identifier: cython.int,
) -> None:
    """Write PUBREL after the primary committed the PUBREC (again, after a resume)."""
    outbound: OutboundWindow = _pushes_of(conn)
    pushes: dict[int, tuple[int, int, int]] = outbound.pushes  # type: ignore[assignment]  # _pushes_of created it
    answered: dict[int, int] = outbound.answered  # type: ignore[assignment]  # created with pushes
    if answered.get(session_seq) == 7:
        send_push_ack(hot, conn, partition_epoch, session_seq, 7, 0)
        hot.dropped_repeated += 1
        return
    known = pushes.get(identifier)
    pushes[identifier] = (session_seq, partition_epoch, RELEASED)
    if known is not None and known[0] == session_seq and known[2] == RELEASED:
        hot.dropped_repeated += 1
        return
    write_short(hot, conn, 0x62, identifier, 0)


def handle_push_ack(
    hot: LoopState,
    conn: LoopConnection,
    packet_type: cython.int,
    packet_identifier: cython.int,
    reason_code: cython.int,
) -> cython.int:
    """Send the client's PUBACK (4), PUBREC (5) or PUBCOMP (7) to the primary, with the entry that was written here.

    Returns:
        0, or PROTOCOL_ERROR if it answers no message of that kind, like in an ephemeral session.
    """
    outbound: OutboundWindow | None = conn.outbound
    known = outbound.pushes.get(packet_identifier) if outbound is not None and outbound.pushes is not None else None
    if known is None or outbound is None or outbound.pushes is None:
        return answer_unknown(hot, conn, packet_type << 4, packet_identifier, reason_code)
    session_seq, partition_epoch, state = known
    if not is_of_flow(state, packet_type):
        return PROTOCOL_ERROR
    if outbound.trips.packet == packet_identifier:
        end_trip(outbound.trips, hot.now_ns)
    if outbound.traced is not None:
        trace_acked(hot, conn, packet_type, packet_identifier, reason_code)
    if packet_type == 5:
        if state == RELEASED:
            write_short(hot, conn, 0x62, packet_identifier, 0)
        if state != WRITTEN:
            return 0
        if reason_code < FAILURE:
            outbound.pushes[packet_identifier] = (session_seq, partition_epoch, RECEIVED)
            send_push_ack(hot, conn, partition_epoch, session_seq, 5, reason_code)
            return 0
    del outbound.pushes[packet_identifier]
    _remember(outbound, session_seq, packet_type)
    send_push_ack(hot, conn, partition_epoch, session_seq, packet_type, reason_code)
    return 0


def _remember(outbound: OutboundWindow, session_seq: cython.ulonglong, packet_type: cython.int) -> None:
    answered: dict[int, int] = outbound.answered  # type: ignore[assignment]  # created with pushes
    answered[session_seq] = packet_type
    if len(answered) > ANSWERED_MAX:
        for oldest in list(answered)[: ANSWERED_MAX // 2]:
            del answered[oldest]


def send_push_ack(
    hot: LoopState,
    conn: LoopConnection,
    partition_epoch: cython.ulong,
    session_seq: cython.ulonglong,
    packet_type: cython.int,
    reason_code: cython.int,
) -> None:
    """Append a PUSH_ACK record for the session's primary; without one it waits, one per open entry."""
    if conn.peer is None or conn.peer.dead:
        record: Buffer = hot.scratch
        record.start = 0
        record.end = 0
        _put_push_ack(record, conn, partition_epoch, session_seq, packet_type, reason_code)
        outbound: OutboundWindow = _pushes_of(conn)
        if outbound.unsent_acks is None:
            outbound.unsent_acks = deque(maxlen=ANSWERED_MAX)
        if cython.compiled:  # pragma: no cover
            outbound.unsent_acks.append(record.data[0:PUSH_ACK_BYTES])
        else:
            outbound.unsent_acks.append(bytes(record.data[:PUSH_ACK_BYTES]))
        record.end = 0
    else:
        _put_push_ack(push_acks_of(hot, conn.peer), conn, partition_epoch, session_seq, packet_type, reason_code)


def _put_push_ack(
    record: Buffer,
    conn: LoopConnection,
    partition_epoch: cython.ulong,
    session_seq: cython.ulonglong,
    packet_type: cython.int,
    reason_code: cython.int,
) -> None:
    at: cython.Py_ssize_t = reserve(record, PUSH_ACK_BYTES)
    put64(record, at + PUSH_ACK_SESSION_AT, conn.session)
    put64(record, at + PUSH_ACK_OWNER_EPOCH_AT, conn.owner_epoch)
    put32(record, at + PUSH_ACK_PARTITION_EPOCH_AT, partition_epoch)
    put64(record, at + PUSH_ACK_SESSION_SEQ_AT, session_seq)
    record.data[at + PUSH_ACK_TYPE_AT] = packet_type
    record.data[at + PUSH_ACK_CODE_AT] = reason_code
    record.end = at + PUSH_ACK_BYTES


def flush_push_acks(hot: LoopState, conn: LoopConnection) -> None:
    """Send the waiting acknowledgements to the session's new primary."""
    if conn.outbound is None or conn.outbound.unsent_acks is None or conn.peer is None:
        return
    waiting = conn.outbound.unsent_acks
    conn.outbound.unsent_acks = None
    for record in waiting:
        append_bytes(push_acks_of(hot, conn.peer), record)
