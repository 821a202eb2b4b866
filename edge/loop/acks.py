"""Acknowledgements of publishers, and handling of subscribers' acknowledgements.

A message waits for all destinations of its fan-out. Then PUBACK or PUBREC is written, in the order of the PUBLISH
packets [MQTT-4.6.0-2] [MQTT-4.6.0-3]. Ephemeral sessions end here; a durable session's acknowledgements are sent to its
primary (``edge/loop/pushes.py``).
Source: MQTT 5.0 sections 3.4 to 3.7, 4.3, 4.6, 4.9; docs/protocol.md rules 2.7, 4.1.
"""

from collections import deque

import cython

from edge.loop.state import LoopConnection, LoopPeer, LoopState, OutboundWindow, PendingAck

if not cython.compiled:
    from edge.loop.ack_rows import record_ack
    from edge.loop.buffers import get16, read_varint, varint_end
    from edge.loop.deliver import drain_pending
    from edge.loop.durations import count_duration
    from edge.loop.encode import valid_text
    from edge.loop.excess import end_excess
    from edge.loop.layout import (
        FAILURE,
        IMPLEMENTATION_SPECIFIC_ERROR,
        MALFORMED_PACKET,
        NO_MATCHING_SUBSCRIBERS,
        NOT_AUTHORIZED,
        PACKET_IDENTIFIER_IN_USE,
        PACKET_IDENTIFIER_NOT_FOUND,
        PAYLOAD_FORMAT_INVALID,
        PROTOCOL_ERROR,
        QUOTA_EXCEEDED,
        SERVER_BUSY,
        TOPIC_NAME_INVALID,
        UNSPECIFIED_ERROR,
    )
    from edge.loop.outbound_identifiers import free_identifier, is_of_flow, set_state, state_of
    from edge.loop.output import answer_unknown, mark_dirty, unpark, update_capacity, write_short
    from edge.loop.pushes import handle_push_ack
    from edge.loop.reported_origins import forget_origin, note_origin, write_ack_with_origin
    from edge.loop.round_trips import end_trip
    from edge.loop.state import ANSWER_PENDING, PARK_QUOTA, RELEASE_PENDING
    from edge.loop.traces import trace_acked, trace_answered

    ACK_WAITS = 0x100  # result of ``handle_ack``, outside the range of reason codes

__all__: list[str] = []


# -- to the publisher


def new_message(
    hot: LoopState, qos: cython.int, conn: LoopConnection | None, packet_identifier: cython.int
) -> PendingAck:
    """Return a numbered in-flight message."""
    hot.tags += 1
    message = PendingAck(hot.tags, qos, conn, packet_identifier)
    message.at_ns = hot.now_ns
    return message


def reserve_ack(conn: LoopConnection, message: PendingAck) -> None:
    """Append the message to the connection's acknowledgement order."""
    if conn.ack_queue is None:
        conn.ack_queue = deque()
    conn.ack_queue.append(message)


def write_ack(
    hot: LoopState, conn: LoopConnection, qos: cython.int, packet_identifier: cython.int, reason_code: cython.int
) -> None:
    """Write PUBACK or PUBREC."""
    if qos == 1:
        if conn.origins is None:
            write_short(hot, conn, 0x40, packet_identifier, reason_code)
        else:
            write_ack_with_origin(hot, conn, 0x40, packet_identifier, reason_code)
        conn.has_acks = True
        return_quota(hot, conn)
        hot.acknowledged += 1
        return
    if reason_code == NO_MATCHING_SUBSCRIBERS:
        reason_code = 0  # allowed, but clients expect plain success in the first half of the QoS 2 flow
    if conn.origins is None:
        write_short(hot, conn, 0x50, packet_identifier, reason_code)
    else:
        write_ack_with_origin(hot, conn, 0x50, packet_identifier, reason_code)
    conn.has_acks = True
    hot.acknowledged += 1
    if conn.received is not None and packet_identifier in conn.received:
        if reason_code < FAILURE:
            conn.received[packet_identifier] = reason_code
            if conn.parked & PARK_QUOTA:
                unpark(hot, conn, PARK_QUOTA)  # perhaps parked on a repeat
        else:
            del conn.received[packet_identifier]  # the flow ends here [MQTT-4.3.3-9]
    if conn.version != 5 or reason_code >= FAILURE:
        # A v3 client has no Receive Maximum: its PUBREL may be behind packets that a quota would leave unread.
        return_quota(hot, conn)


def return_quota(hot: LoopState, conn: LoopConnection) -> None:
    """Return one PUBLISH to the client's quota."""
    if conn.quota > 0:
        conn.quota -= 1
    conn.excess_since_ns = 0
    if conn.parked & PARK_QUOTA:
        unpark(hot, conn, PARK_QUOTA)


def destination_done(hot: LoopState, message: PendingAck, reason_code: cython.int) -> None:
    """Count one finished destination of the message."""
    if reason_code > message.reason_code:
        message.reason_code = reason_code
    message.waiting -= 1
    assert message.waiting >= 0, "a destination finished a message twice"
    if message.waiting == 0:
        finish(hot, message)


def finish(hot: LoopState, message: PendingAck) -> None:
    """Acknowledge a message after all destinations did, in the publisher's order."""
    conn: LoopConnection | None = message.conn
    message.done = True
    if message.parent is not None:
        if message.delivered:
            message.parent.delivered = True
        destination_done(hot, message.parent, message.reason_code)
        return
    if message.on_done is not None:
        on_done = message.on_done
        message.on_done = None
        if on_done(message.reason_code):  # deferred: ``PublishMethods.acknowledge`` continues from here
            message.done = False
            message.waiting = 1
            return
    if conn is None or conn.closed or conn.ack_queue is None:
        return
    while conn.ack_queue:
        message = conn.ack_queue[0]
        if not message.done:
            break
        assert message.waiting == 0, "an acknowledgement leaves while a destination is open"
        conn.ack_queue.popleft()
        if message.excess_bytes:
            end_excess(hot, conn, message)
        if message.traced:
            trace_answered(hot, conn, message)
        if message.reason_code >= FAILURE and (message.delivered or conn.version != 5):
            if _withhold(hot, conn, message):
                return
            continue
        if message.reason_code == SERVER_BUSY:
            message.reason_code = QUOTA_EXCEEDED  # PUBACK and PUBREC have no such reason code
        if conn.origins is not None:
            note_origin(hot, conn, message)
        write_ack(hot, conn, message.qos, message.packet_identifier, message.reason_code)
        count_duration(hot.acks_in, hot.now_ns - message.at_ns)
        if hot.ledger is not None and message.reason_code < FAILURE:
            record_ack(hot, message)


def _withhold(hot: LoopState, conn: LoopConnection, message: PendingAck) -> cython.bint:
    """Withhold an acknowledgement, so that the client may retry; True if the edge disconnects the client.

    A 3.1.1 client receives no failure. To others a failure would deny deliveries that some destinations have made, so
    the edge disconnects them. It also disconnects a 3.1.1 client whose message met a full disk: repeated on the next
    connection, the message keeps its order.
    """
    hot.acks_withheld += 1
    if conn.version == 5 or message.reason_code == SERVER_BUSY:
        hot.handler.error(conn, QUOTA_EXCEEDED)
        return True
    if conn.received is not None and message.qos == 2:
        conn.received.pop(message.packet_identifier, None)
    return_quota(hot, conn)
    return False


def finish_acked_frames(hot: LoopState, peer: LoopPeer, number: cython.ulonglong) -> None:
    """Finish the messages in a peer edge's frames up to an acknowledged number."""
    message: PendingAck
    while peer.inflight and peer.inflight[0][0] <= number:
        for message in peer.inflight.popleft()[1]:
            destination_done(hot, message, 0)


# -- from the client


def handle_ack(
    hot: LoopState,
    conn: LoopConnection,
    first: cython.int,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.int:
    """Handle PUBACK, PUBREC, PUBREL or PUBCOMP, ``data[at:end]`` behind the fixed header.

    Returns:
        0, the reason code of an error, or ACK_WAITS: the connection is parked before the packet.
    """
    reason_code: cython.int = 0
    identifier: cython.int
    if conn.version == 3:
        first &= 0xF7  # MQTT 3.1 sets DUP on a repeated PUBREL (its section 3.6)
    if first & 0x0F != (2 if first >> 4 == 6 else 0):  # [MQTT-3.6.1-1]
        return MALFORMED_PACKET
    if end - at < 2 or (conn.version != 5 and end - at != 2):
        return MALFORMED_PACKET
    identifier = get16(data, at)
    if identifier == 0:  # [MQTT-2.2.1-3]
        return PROTOCOL_ERROR
    if end - at > 2:
        reason_code = data[at + 2]
        if not _valid_code(first, reason_code):
            return PROTOCOL_ERROR
        error_code: cython.int = _ack_properties(data, at + 3, end)
        if error_code != 0:
            return error_code
    if first == 0x62:
        return _handle_pubrel(hot, conn, identifier, reason_code)
    if conn.session != 0:
        return handle_push_ack(hot, conn, first >> 4, identifier, reason_code)
    if conn.outbound is None:
        return answer_unknown(hot, conn, first, identifier, reason_code)
    return _ephemeral(hot, conn, first, identifier, reason_code)


def _ephemeral(
    hot: LoopState, conn: LoopConnection, first: cython.int, identifier: cython.int, reason_code: cython.int
) -> cython.int:
    """Handle the acknowledgement of a sent message (state 1: QoS 1, 2: QoS 2, 3: released)."""
    outbound: OutboundWindow = conn.outbound  # type: ignore[assignment]  # the caller checked
    state: cython.int = state_of(outbound, identifier)
    if not is_of_flow(state, first >> 4):
        return PROTOCOL_ERROR
    if state == 0:
        return answer_unknown(hot, conn, first, identifier, reason_code)
    if outbound.traced is not None:
        trace_acked(hot, conn, first >> 4, identifier, reason_code)
    if outbound.trips.packet == identifier:
        end_trip(outbound.trips, hot.now_ns)
    if first == 0x50 and (state == 3 or reason_code < FAILURE):  # released before, or now
        set_state(outbound, identifier, 3)
        return write_short(hot, conn, 0x62, identifier, 0)
    free_identifier(outbound, identifier)
    if outbound.pending:
        drain_pending(hot, conn)
    if conn.reports_capacity:
        update_capacity(hot, conn)
    return 0


def _handle_pubrel(hot: LoopState, conn: LoopConnection, identifier: cython.int, reason_code: cython.int) -> cython.int:
    """Handle PUBREL: delete the identifier and answer PUBCOMP [MQTT-4.3.3-11].

    PUBREL waits until the message has its PUBREC. The answer to an unknown identifier is 0x92. A resumed durable
    session may have released it on an earlier connection, which is no error (MQTT 5.0 section 3.7.2.1).
    """
    code = conn.received.get(identifier) if conn.received is not None else None
    if code == ANSWER_PENDING:
        conn.parked |= PARK_QUOTA
        hot.parked_quota += 1
        mark_dirty(hot, conn)
        return ACK_WAITS
    if code is None and (conn.session == 0 or not conn.resumed):
        return write_short(hot, conn, 0x70, identifier, PACKET_IDENTIFIER_NOT_FOUND)
    if conn.session != 0:
        if code is not None:
            conn.received[identifier] = RELEASE_PENDING  # type: ignore[index]  # not None: the identifier is known
        hot.handler.pubrel(conn, identifier, reason_code)
        return 0
    del conn.received[identifier]  # type: ignore[union-attr]  # not None: the identifier is known
    if conn.origins is not None:
        forget_origin(conn, identifier)
    write_short(hot, conn, 0x70, identifier, 0)
    if conn.version == 5:
        return_quota(hot, conn)
    return 0


def _valid_code(first: cython.int, code: cython.int) -> cython.bint:
    """Return whether the packet allows the reason code (MQTT 5.0 tables 3-4 to 3-7) [MQTT-3.4.2-1]."""
    if code == 0:
        return True
    if first == 0x62 or first == 0x70:
        return code == PACKET_IDENTIFIER_NOT_FOUND
    return code in (
        NO_MATCHING_SUBSCRIBERS,
        UNSPECIFIED_ERROR,
        IMPLEMENTATION_SPECIFIC_ERROR,
        NOT_AUTHORIZED,
        TOPIC_NAME_INVALID,
        PACKET_IDENTIFIER_IN_USE,
        QUOTA_EXCEEDED,
        PAYLOAD_FORMAT_INVALID,
    )


def _ack_properties(data: cython.p_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Validate the properties of an acknowledgement: one Reason String, any number of User Properties."""
    at: cython.Py_ssize_t
    property_id: cython.int
    count: cython.Py_ssize_t
    reason: cython.bint = False
    if begin == end:
        return 0  # the length may be omitted if it is the last byte
    at = varint_end(data, begin, end)
    if at < 0 or (at - begin > 1 and data[at - 1] == 0):  # a longer form than necessary [MQTT-1.5.5-1]
        return MALFORMED_PACKET
    if at + read_varint(data, begin, at) != end:
        return MALFORMED_PACKET
    while at < end:
        property_id = data[at]
        if property_id == 0x1F:
            if reason:
                return PROTOCOL_ERROR
            reason = True
        elif property_id != 0x26:
            return PROTOCOL_ERROR if 0 < property_id <= 0x2A else MALFORMED_PACKET
        at += 1
        count = 2 if property_id == 0x26 else 1
        while count > 0:
            if at + 2 > end or at + 2 + get16(data, at) > end:
                return MALFORMED_PACKET
            if not valid_text(data, at + 2, get16(data, at)):
                return MALFORMED_PACKET
            at += 2 + get16(data, at)
            count -= 1
    return 0
