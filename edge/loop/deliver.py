"""Delivery to this edge's own ephemeral sessions: runs of QoS 0 packets, and single messages of any QoS.

A run is appended to a subscriber unchanged; subscribers of another version or with subscription identifiers share one
conversion per class. QoS 1 and 2 take a packet identifier within the client's window, or wait (bounded). The callers
handle other destinations (peers, shared groups).
"""

from collections import deque
from collections.abc import Sequence

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import (
    BackloggedMessage,
    LoopConnection,
    LoopState,
    OutboundWindow,
    PendingMessage,
    PublishView,
    Route,
    Sub,
)

if not cython.compiled:
    from edge.loop.buffers import append_bytes, append_span, put16, put32, read_varint, reserve, varint_end
    from edge.loop.encode import load_plain, publish_bytes, write_publish
    from edge.loop.held_copies import hold_copies, records_of_run
    from edge.loop.layout import NO_EXPIRY
    from edge.loop.memory import add_holder, remove_holder
    from edge.loop.notes import note_drop, note_drops
    from edge.loop.outbound_identifiers import take_identifier
    from edge.loop.output import note_high, output_of, pending_output, send_now, wait_for
    from edge.loop.picks import keep_pick
    from edge.loop.records import record_of
    from edge.loop.traces import trace_drained, trace_waiting, trace_written

__all__: list[str] = []

if not cython.compiled:  # compiled, C constants: deliver.pxd
    SECOND_NS = 1_000_000_000
    ALIASED_BYTES_MIN = 5  # of a topic: for a shorter one the alias saves nothing
    ALIAS_BYTES = 6  # the property, and the growth of length fields


def park_if_slow(hot: LoopState, publisher: LoopConnection, route: Route) -> cython.bint:
    """Park the publisher if a subscriber of the route is above the output limit, before it is read or parsed.

    Returns:
        Whether it is parked.
    """
    sub: Sub
    conn: LoopConnection
    slow: cython.bint = False
    for sub in route.subs:
        conn = sub.conn
        if conn.high and not conn.lagging and not conn.closed and pending_output(conn) > hot.output_high:
            wait_for(hot, publisher, conn)
            slow = True
    return slow


def deliver_run(
    hot: LoopState,
    publisher: LoopConnection | None,
    route: Route,
    version: cython.int,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    packet_max: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> None:
    """Append consecutive QoS 0 packets of one topic to every local subscriber.

    Args:
        hot: The loop.
        publisher: None for another edge; parked when a subscriber is above the limit.
        route: The destinations.
        version: 5 or less: encoding of the packets.
        data: Holds them.
        start: First byte of the first packet; ``end``: behind the last one.
        packet_max: Length of the longest one.
        count: Number of packets.
    """
    sub: Sub
    conn: LoopConnection
    five: cython.bint = version == 5
    converted: cython.Py_ssize_t = -1
    cached_five: cython.bint = False
    cached_identifiers: bytes = b""
    copies: cython.Py_ssize_t
    records: list[bytes] | None = None
    for sub in route.subs:
        conn = sub.conn
        if conn.closed:
            continue
        if sub.conditional:
            if sub.copies:
                _deliver_copies_of_run(hot, publisher, sub, route.topic, five, data, start, end)
                continue
            if is_excepted(sub, publisher):
                continue
            if sub.held:
                records = records or records_of_run(hot, route.topic, five, data, start, end)
                if hold_copies(hot, publisher, sub, route.topic, records):
                    continue
        if conn.lagging or (conn.high and pending_output(conn) > hot.drop_above):
            hot.dropped_slow += count
            note_drops(hot, conn, "slow", route.topic, count)
            continue
        if conn.outbound_aliases is not None or conn.traced:
            _deliver_aliased(hot, conn, route.topic, five, data, start, end, sub.identifiers)
        elif (conn.version == 5) == five and not sub.identifiers and conn.client_packet_max >= packet_max:
            hot.publish_out_qos0 += count
            hot.publish_bytes_out += hot.run_payload
            _append_run(hot, conn, data, start, end - start)
        else:
            if conn.client_packet_max < packet_max + len(sub.identifiers) + 8:  # maximum growth by a conversion
                copies = convert_run(
                    hot, five, route.topic, data, start, end, conn.version == 5, sub.identifiers, conn.client_packet_max
                )
                converted = -1
            else:
                if converted < 0 or cached_five != (conn.version == 5) or cached_identifiers != sub.identifiers:
                    cached_five = conn.version == 5
                    cached_identifiers = sub.identifiers
                    converted = convert_run(
                        hot, five, route.topic, data, start, end, cached_five, cached_identifiers, 1 << 30
                    )
                copies = converted
            if copies < count:
                hot.dropped_too_large += count - copies
                note_drops(hot, conn, "too_large", route.topic, count - copies)
            hot.publish_out_qos0 += copies
            hot.publish_bytes_out += hot.converted_payload
            _append_run(hot, conn, hot.converted.data, 0, hot.converted.end)
        if conn.out is not None and conn.out.end - conn.out.start > hot.output_high:
            if publisher is not None:
                wait_for(hot, publisher, conn)
            else:
                note_high(hot, conn)


def is_excepted(sub: Sub, publisher: LoopConnection | None) -> cython.bint:
    """Return whether the publisher excludes a subscriber: No Local, or its counterpart [MQTT-3.8.3-3]."""
    if sub.conn is publisher:
        return sub.no_local
    return sub.own_only


def _hold_each(
    hot: LoopState, publisher: LoopConnection | None, sub: Sub, topic: bytes, records: Sequence[bytes]
) -> cython.bint:
    """Pass the several copies of each message to the core, like ``hold_copies``; False: the hold has ended."""
    copy: Sub
    for record in records:
        for copy in sub.copies:
            if not is_excepted(copy, publisher) and not hold_copies(hot, publisher, copy, topic, [record]):
                return False
    return True


def _deliver_copies_of_run(
    hot: LoopState,
    publisher: LoopConnection | None,
    sub: Sub,
    topic: bytes,
    five: cython.bint,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> None:
    """Deliver a run message by message: all copies of one before the next one [MQTT-4.6.0-6]."""
    packet: PublishView = hot.second
    if sub.held and _hold_each(hot, publisher, sub, topic, records_of_run(hot, topic, five, data, start, end)):
        return
    packet.topic = topic
    while start < end:
        start = load_plain(packet, data, start, five)
        packet.topic = topic
        deliver_copies(hot, publisher, sub, packet)


def deliver_copies(hot: LoopState, publisher: LoopConnection | None, sub: Sub, packet: PublishView) -> None:
    """Deliver one message by each of a session's overlapping subscriptions that does not share a copy."""
    copy: Sub
    conn: LoopConnection = sub.conn
    qos: cython.int
    for copy in sub.copies:
        if is_excepted(copy, publisher):
            continue
        qos = packet.qos if packet.qos < copy.qos else copy.qos
        deliver_to(hot, conn, packet, qos, packet.retain and copy.retain_as_published, copy.identifiers)
    if conn.out is not None and conn.out.end - conn.out.start > hot.output_high:
        if publisher is not None and not conn.lagging:
            wait_for(hot, publisher, conn)
        else:
            note_high(hot, conn)


def _deliver_aliased(
    hot: LoopState,
    conn: LoopConnection,
    topic: bytes,
    five: cython.bint,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    identifiers: bytes,
) -> None:
    """Deliver a run packet by packet: its copies have aliases, or are traced."""
    packet: PublishView = hot.second
    while start < end:
        start = load_plain(packet, data, start, five)
        packet.topic = topic
        deliver_to(hot, conn, packet, 0, False, identifiers)


def write_copy(
    hot: LoopState,
    conn: LoopConnection,
    packet: PublishView,
    qos: cython.int,
    retain: cython.bint,
    dup: cython.bint,
    packet_identifier: cython.int,
    identifiers: bytes,
) -> None:
    """Write one copy; the first topics of a client that accepts aliases get one each [MQTT-3.1.2-26]."""
    topic: bytes = packet.topic
    five: cython.bint = conn.version == 5
    alias: cython.int
    if conn.outbound_aliases is not None and len(topic) >= ALIASED_BYTES_MIN:
        known = conn.outbound_aliases.get(topic)
        if known is not None:
            alias = known
            packet.topic = b""
            identifiers += bytes((0x23, alias >> 8, alias & 0xFF))
        elif (
            len(conn.outbound_aliases) < conn.outbound_aliases_max
            and publish_bytes(packet, True, qos, identifiers) + ALIAS_BYTES <= conn.client_packet_max
        ):
            alias = len(conn.outbound_aliases) + 1
            conn.outbound_aliases[topic] = alias
            identifiers += bytes((0x23, alias >> 8, alias & 0xFF))
    write_publish(output_of(hot, conn), packet, five, qos, retain, dup, packet_identifier, identifiers)
    hot.publish_bytes_out += packet.payload_bytes
    packet.topic = topic


def _append_run(
    hot: LoopState, conn: LoopConnection, data: cython.p_uchar, start: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> None:
    sent: cython.Py_ssize_t
    hot.iteration_bytes += count
    if count >= 16_384 and conn.out is None and hot.direct and conn.tls is None and conn.filter is None:
        # From the receive buffer straight to the socket: saves a copy where it is large enough to matter.
        sent = send_now(conn, data, start, count)
        hot.bytes_out += sent
        start += sent
        count -= sent
    if count > 0:
        append_span(output_of(hot, conn), data, start, count)


def convert_run(
    hot: LoopState,
    five: cython.bint,
    topic: bytes,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    to_five: cython.bint,
    identifiers: bytes,
    size_max: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Convert the run to another class of subscriber in ``hot.converted``; return the number of packets that fit."""
    packet: PublishView = hot.second
    count: cython.Py_ssize_t = 0
    hot.converted.end = 0
    hot.converted_payload = 0
    packet.topic = topic
    while start < end:
        start = load_plain(packet, data, start, five)
        if publish_bytes(packet, to_five, 0, identifiers) <= size_max:
            write_publish(hot.converted, packet, to_five, 0, False, False, 0, identifiers)
            hot.converted_payload += packet.payload_bytes
            count += 1
    return count


def deliver_local(hot: LoopState, publisher: LoopConnection | None, route: Route, packet: PublishView) -> None:
    """Deliver one message to every local subscriber of the route."""
    sub: Sub
    conn: LoopConnection
    qos: cython.int
    records: list[bytes] | None = None
    for sub in route.subs:
        conn = sub.conn
        if conn.closed:
            continue
        if sub.conditional:
            if sub.copies:
                if sub.held:
                    records = records or [record_of(hot, packet, 0)]
                    if _hold_each(hot, publisher, sub, packet.topic, records):
                        continue
                deliver_copies(hot, publisher, sub, packet)
                continue
            if is_excepted(sub, publisher):
                continue
            if sub.held:
                if records is None:
                    records = [record_of(hot, packet, 0)]
                if hold_copies(hot, publisher, sub, packet.topic, records):
                    continue
        qos = packet.qos if packet.qos < sub.qos else sub.qos
        deliver_to(hot, conn, packet, qos, packet.retain and sub.retain_as_published, sub.identifiers)
        if conn.out is not None and conn.out.end - conn.out.start > hot.output_high:
            if publisher is not None and not conn.lagging:
                wait_for(hot, publisher, conn)
            else:
                note_high(hot, conn)


def deliver_to(
    hot: LoopState, conn: LoopConnection, packet: PublishView, qos: cython.int, retain: cython.bint, identifiers: bytes
) -> cython.bint:
    """Deliver one message to one session; False if it was dropped and counted."""
    five: cython.bint = conn.version == 5
    outbound: OutboundWindow
    size: cython.Py_ssize_t = publish_bytes(packet, five, qos, identifiers)
    if size > conn.client_packet_max:  # [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        hot.dropped_too_large += 1
        note_drop(hot, conn, "too_large", packet.topic, packet)
        return False
    if qos == 0:
        if conn.lagging or pending_output(conn) > hot.drop_above:
            hot.dropped_slow += 1
            note_drop(hot, conn, "slow", packet.topic, packet)
            return False
        write_copy(hot, conn, packet, 0, retain, False, 0, identifiers)
        hot.publish_out_qos0 += 1
        hot.iteration_bytes += size
        if packet.traced or conn.traced:
            trace_written(hot, conn, packet, 0, 0, 0)
        return True
    if conn.outbound is None:
        conn.outbound = OutboundWindow(conn.window)
    outbound = conn.outbound
    if outbound.inflight >= outbound.window or outbound.pending or pending_output(conn) > hot.output_high:
        if _pend(hot, outbound, packet, five, qos, retain, identifiers, size):
            if packet.traced or conn.traced:
                trace_waiting(hot, conn, packet, qos)
            return True
        hot.dropped_pending += 1
        note_drop(hot, conn, "window", packet.topic, packet)
        return False
    identifier: cython.int = take_identifier(outbound, qos, hot.now_ns)
    write_copy(hot, conn, packet, qos, retain, False, identifier, identifiers)
    hot.iteration_bytes += size
    if qos == 1:
        hot.publish_out_qos1 += 1
    else:
        hot.publish_out_qos2 += 1
    if packet.traced or conn.traced:
        trace_written(hot, conn, packet, qos, identifier, 0)
    return True


def _pend(
    hot: LoopState,
    outbound: OutboundWindow,
    packet: PublishView,
    five: cython.bint,
    qos: cython.int,
    retain: cython.bint,
    identifiers: bytes,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Queue a message beyond the window; False at a limit: the newest message is dropped."""
    key: cython.int = (qos << 2) | (2 if five else 0) | (1 if retain else 0)
    if outbound.pending is None:
        outbound.pending = deque()
    if len(outbound.pending) >= hot.pending_max or outbound.pending_bytes + size > hot.pending_bytes_max:
        return False
    if identifiers or packet.pending_key != key:
        hot.scratch.end = 0
        write_publish(hot.scratch, packet, five, qos, retain, False, 0, identifiers)
        entry = _pending_entry(hot, packet, five, size)
        if not identifiers:
            packet.pending = entry  # shared by all sessions of this encoding
            packet.pending_key = key
    else:
        entry = packet.pending  # type: ignore[assignment]  # pending_key is set with it
    outbound.pending.append(entry)
    outbound.pending_bytes += size
    add_holder(hot, entry[6])
    return True


def _pending_entry(hot: LoopState, packet: PublishView, five: cython.bint, size: cython.Py_ssize_t) -> PendingMessage:
    """Return the encoded message as an entry of ``OutboundWindow.pending``."""
    encoded: bytes
    if cython.compiled:  # pragma: no cover
        encoded = hot.scratch.data[0:size]
    else:
        encoded = bytes(hot.scratch.data[:size])
    at: cython.Py_ssize_t = varint_end(encoded, 1, size) + 2 + len(packet.topic)
    expiry_at: cython.Py_ssize_t = 0
    if five and packet.expiry_s != NO_EXPIRY:
        expiry_at = varint_end(encoded, at + 2, size) + 1
    return (encoded, at, expiry_at, hot.now_ns, b"", b"", BackloggedMessage(size))


def drain_pending(hot: LoopState, conn: LoopConnection) -> None:
    """Send messages queued for the window, in order; expired messages are dropped [MQTT-3.3.2-5]."""
    outbound: OutboundWindow | None = conn.outbound
    assert outbound is not None  # the callers checked that a message is pending
    while outbound.pending and outbound.inflight < outbound.window and pending_output(conn) <= hot.output_high:
        entry: PendingMessage = outbound.pending.popleft()
        outbound.pending_bytes -= len(entry[0])
        assert outbound.pending_bytes >= 0
        kept: BackloggedMessage = entry[6]
        remove_holder(hot, kept)
        if entry[5] and conn.judge_pushes and _is_refused(hot, conn, entry):
            outbound.picks_bytes -= len(entry[5])
            hot.handler.given_up(entry[4], entry[5], entry[3])
            continue
        inflight = outbound.inflight
        _send_pending(hot, conn, outbound, entry[0], entry[1], entry[2], (hot.now_ns - entry[3]) // SECOND_NS)
        if kept.origin is not None and outbound.inflight > inflight:
            encoded: bytes = entry[0]
            topic: bytes = encoded[varint_end(encoded, 1, len(encoded)) + 2 : entry[1]]
            trace_drained(hot, conn, topic, (encoded[0] >> 1) & 3, kept.origin)
        if entry[5]:
            outbound.picks_bytes -= len(entry[5])
            if outbound.inflight > inflight:
                keep_pick(outbound, (entry[0][0] >> 1) & 3, entry[4], entry[5], entry[3])


def _is_refused(hot: LoopState, conn: LoopConnection, entry: PendingMessage) -> bool:
    """Return whether a client may not receive a pending message."""
    encoded: bytes = entry[0]
    topic: bytes = encoded[varint_end(encoded, 1, len(encoded)) + 2 : entry[1]]
    return not hot.handler.may_receive(conn, topic, (encoded[0] >> 1) & 3)


def _send_pending(
    hot: LoopState,
    conn: LoopConnection,
    outbound: OutboundWindow,
    encoded: bytes,
    identifier_at: cython.Py_ssize_t,
    expiry_at: cython.Py_ssize_t,
    waited_s: cython.longlong,
) -> None:
    left: cython.longlong = 0
    topic: bytes
    if conn.judge_pushes:
        topic = encoded[varint_end(encoded, 1, len(encoded)) + 2 : identifier_at]
        if not hot.handler.may_receive(conn, topic, (encoded[0] >> 1) & 3):
            hot.dropped_not_authorized += 1
            note_drop(hot, conn, "not_authorized", topic, None)
            return
    if expiry_at > 0:
        left = int.from_bytes(encoded[expiry_at : expiry_at + 4], "big") - waited_s
        if left <= 0:
            hot.dropped_expired += 1
            topic = encoded[varint_end(encoded, 1, len(encoded)) + 2 : identifier_at]
            note_drop(hot, conn, "expired", topic, None)
            return
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, len(encoded))
    append_bytes(out, encoded)
    qos: cython.int = (encoded[0] >> 1) & 3
    put16(out, at + identifier_at, take_identifier(outbound, qos, hot.now_ns))
    if expiry_at > 0:
        put32(out, at + expiry_at, left)  # the remaining time [MQTT-3.3.2-6]
    hot.iteration_bytes += len(encoded)
    hot.publish_bytes_out += len(encoded) - _payload_at(encoded, identifier_at + 2, conn.version == 5)
    if qos == 1:
        hot.publish_out_qos1 += 1
    else:
        hot.publish_out_qos2 += 1


def _payload_at(encoded: bytes, at: cython.Py_ssize_t, five: cython.bint) -> cython.Py_ssize_t:
    """Return the start of an encoded message's payload; its properties begin at ``at``."""
    if not five:
        return at
    stop: cython.Py_ssize_t = varint_end(encoded, at, len(encoded))
    return stop + read_varint(encoded, at, stop)
