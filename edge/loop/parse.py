"""Split received bytes into complete packets, and dispatch each of them.

Consecutive QoS 0 packets of one client to one topic form a *run* that is processed as a whole. QoS 1 and 2 are
processed singly. Every other packet is passed to the Handler, and the client's connection is parked until its answer. A
blocked packet (no route yet, no lease, no capacity) stays unparsed together with all later bytes: that keeps order.
Source: MQTT 5.0 sections 2.1.4, 3.3; docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopConnection, LoopState, PublishView, Route

if not cython.compiled:
    from edge.loop.acks import ACK_WAITS, handle_ack
    from edge.loop.buffers import get16, read_varint, reserve, same_bytes, varint_end
    from edge.loop.encode import walk_properties
    from edge.loop.fanout import fan_out_run
    from edge.loop.inbound import fail, find_route, handle_publish, park_if_full
    from edge.loop.layout import MALFORMED_PACKET, PACKET_TOO_LARGE, PROTOCOL_ERROR
    from edge.loop.notes import note_denied
    from edge.loop.output import mark_dirty, output_of, pending_output
    from edge.loop.parked_input import prefetch
    from edge.loop.shared_rate_limits import consume_rates
    from edge.loop.state import PARK_HANDLER, PARK_OUTPUT, PARK_PIPELINE, PARK_RATE

    CORE_BYTES = 256 * 1024  # of the byte limit, for a packet passed to the core: as slow as appending so much
    PICK_COPIES = 200  # so many copies of a message take as long as selecting a shared group's member

__all__: list[str] = []


def park_unread(hot: LoopState, conn: LoopConnection) -> cython.bint:
    """Park a publisher without reading it if its last destinations are full; return whether it is parked."""
    route: Route | None = conn.last_route
    if route is None or (hot.full_peers == 0 and not hot.high and hot.outbox_bytes <= hot.outbox_bytes_max):
        return False
    return park_if_full(hot, conn, route)


def parse(
    hot: LoopState, conn: LoopConnection, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Handle the complete packets of ``data[at:end]``.

    Returns:
        The position of the first byte not consumed; the caller passes it again, after the park if there is one.
    """
    first: cython.int
    body: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    length: cython.Py_ssize_t
    topic_bytes: cython.Py_ssize_t
    error_code: cython.int
    begun: cython.int = -1  # first byte of an incomplete packet
    run_at: cython.Py_ssize_t = -1  # of the run's first packet, -1: no run
    run_bytes_max: cython.Py_ssize_t = 0
    packet_max: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    payload: cython.Py_ssize_t = 0  # bytes of payload in the run
    five: cython.bint = conn.version == 5
    route: Route
    run_route: Route | None = None
    packet: PublishView = hot.packet
    published: cython.longlong = hot.publish_in_qos0 + hot.publish_in_qos1 + hot.publish_in_qos2
    conn.parsing = True
    conn.needed = 0
    while at < end and conn.parked == 0 and not conn.closed:
        first = data[at]  # of the fixed header; a length of up to four bytes follows [MQTT 5.0 2.1.4]
        if conn.pipelining and _waits_for_pipeline(hot, conn, first):
            break
        body = at + 1
        if body >= end:
            begun = first
            break
        length = data[body]
        body += 1
        if length > 127:
            stop = varint_end(data, at + 1, end)
            if stop == -1:
                begun = first
                break
            if stop == -2 or (five and data[stop - 1] == 0):  # not the shortest form [MQTT-1.5.5-1]
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
                fail(hot, conn, MALFORMED_PACKET)
                break
            length = read_varint(data, at + 1, stop)
            body = stop
        stop = body + length
        if stop - at > conn.packet_bytes_max:
            run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
            fail(hot, conn, PACKET_TOO_LARGE)  # before any of it is buffered
            break
        if stop > end:
            conn.needed = stop - at
            begun = first
            break
        if first == 0x30 and conn.version != 0:
            if length < 2 or 2 + get16(data, body) > length:
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
                fail(hot, conn, MALFORMED_PACKET)
                break
            topic_bytes = get16(data, body)
            if (
                topic_bytes != len(conn.last_topic)
                or conn.last_version != hot.routes_version
                or topic_bytes == 0
                or not same_bytes(data, body + 2, conn.last_topic)
            ):
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
                if hot.iteration_bytes > hot.iteration_bytes_max:
                    _yield_iteration(hot, conn)
                    break
                if conn.parked != 0:
                    break
                if topic_bytes == 0:  # an alias, or an error
                    at = stop if handle_publish(hot, conn, data, at, body, stop) else at
                    continue
                if find_route(hot, conn, data, body + 2, topic_bytes) is None:
                    break
            route = conn.last_route  # type: ignore[assignment]  # found above, now or for an earlier packet
            payload_at: cython.Py_ssize_t = body + 2 + topic_bytes
            if five:
                if payload_at >= stop:
                    error_code = MALFORMED_PACKET
                elif data[payload_at] == 0:
                    error_code = 0
                    packet.alias_at, packet.has_reserved = -1, False
                    payload_at += 1
                else:
                    error_code = walk_properties(packet, data, payload_at, stop, hot.user_bytes_max, hot.users_max)
                    payload_at = packet.payload_at
                if error_code != 0 or packet.alias_at >= 0 or packet.has_reserved:
                    run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
                    if error_code != 0:
                        fail(hot, conn, error_code)
                        break
                    if conn.parked == 0 and handle_publish(hot, conn, data, at, body, stop):
                        at = stop
                    continue
            if run_at < 0:
                if conn.traced or route.traced or route.named:
                    at = stop if handle_publish(hot, conn, data, at, body, stop) else at
                    continue
                if route.empty:
                    _count(hot, 1, stop - payload_at)
                    if route.reason_code != 0:
                        note_denied(hot, conn, route.reason_code, route.topic)
                    at = stop
                    continue
                if park_if_full(hot, conn, route):
                    break
                run_at, run_route = at, route
                packet_max = count = payload = 0
                run_bytes_max = hot.iteration_bytes_max // (route.copies + PICK_COPIES * len(route.groups) + 1)
            count += 1
            payload += stop - payload_at
            packet_max = max(packet_max, stop - at)
            at = stop
            if at - run_at >= run_bytes_max:
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
                if hot.iteration_bytes > hot.iteration_bytes_max:
                    _yield_iteration(hot, conn)
                    break
            continue
        if run_at >= 0:
            run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
            if conn.parked != 0 or conn.closed:
                break
        if _handle_packet(hot, conn, first, data, at, body, stop):
            at = stop
        five = conn.version == 5
        if hot.iteration_bytes > hot.iteration_bytes_max:
            _yield_iteration(hot, conn)
            break
    _end_run(hot, conn, run_route, data, run_at, at, packet_max, count, payload)
    if begun >= 0 and conn.version > 3 and not conn.closed and conn.parked == 0:
        error_code = _check_first_byte(begun)
        if error_code != 0:
            fail(hot, conn, error_code)  # reported before the rest of the packet arrives
    conn.parsing = False
    if conn.publish_gap_ns > 0 or conn.purse is not None:
        _count_rate(hot, conn, hot.publish_in_qos0 + hot.publish_in_qos1 + hot.publish_in_qos2 - published)
    return _prefetch(hot, conn, data, at, end) if hot.missed else at


def _prefetch(
    hot: LoopState, conn: LoopConnection, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Prefetch Routes of the topics behind the missed one; return the position where parsing stopped."""
    hot.missed = False
    if not conn.closed:
        prefetch(hot, conn, data, at, end)
    return at


def _count_rate(hot: LoopState, conn: LoopConnection, count: cython.longlong) -> None:
    """Charge the client's messages to its rate; a burst of one second is allowed, the rest stays unread."""
    conn.next_message_ns = max(conn.next_message_ns, hot.now_ns) + count * conn.publish_gap_ns
    pause(hot, conn, conn.next_message_ns)
    if conn.purse is not None:
        pause(hot, conn, consume_rates(conn.purse, hot.now_ns, count, 0))


def count_bytes(hot: LoopState, conn: LoopConnection, count: cython.longlong) -> None:
    """Charge the client's bytes, of all packets, to their rate in the same way."""
    conn.next_byte_ns = max(conn.next_byte_ns, hot.now_ns) + count * conn.byte_gap_ps // 1000
    pause(hot, conn, conn.next_byte_ns)
    if conn.purse is not None:
        pause(hot, conn, consume_rates(conn.purse, hot.now_ns, 0, count))


def pause(hot: LoopState, conn: LoopConnection, next_allowed_ns: cython.longlong) -> None:
    """Stop reading a client above its rate, with a burst of one second."""
    if next_allowed_ns > hot.now_ns + 1_000_000_000 and not conn.parked & PARK_RATE and not conn.closed:
        conn.parked |= PARK_RATE
        hot.paced.append(conn)
        mark_dirty(hot, conn)


def _yield_iteration(hot: LoopState, conn: LoopConnection) -> None:
    """End the connection's part of this iteration: the rest of its bytes is parsed in the next one."""
    if not conn.ready:
        conn.ready = True
        hot.ready.append(conn)


def _waits_for_pipeline(hot: LoopState, conn: LoopConnection, first: cython.int) -> cython.bint:
    """Park a connection whose packet must wait for earlier retained messages (docs/protocol.md rule 7.11).

    Packets that need not wait: a retained PUBLISH of QoS 1 or 2, which the core orders; acknowledgements and PINGREQ,
    which have no order with it.
    """
    kind: cython.int = first >> 4
    if (kind == 3 and first & 1 != 0 and first & 6 != 0) or 4 <= kind <= 7 or kind == 12:
        return False
    conn.parked |= PARK_PIPELINE
    mark_dirty(hot, conn)
    return True


def _check_first_byte(first: cython.int) -> cython.int:
    """Return the reason code of an invalid first byte, 0 if it is valid [MQTT-2.1.3-1] [MQTT-3.3.1-4]."""
    kind: cython.int = first >> 4
    flags: cython.int = first & 0x0F
    is_malformed: cython.bint
    if kind == 0:
        return PROTOCOL_ERROR  # forbidden (section 2.1.2)
    if kind == 3:
        is_malformed = flags & 6 == 6 or flags & 14 == 8
    elif kind == 6:
        is_malformed = flags != 2
    else:
        is_malformed = (4 <= kind <= 7 or kind == 12) and flags != 0
    return MALFORMED_PACKET if is_malformed else 0


def _end_run(
    hot: LoopState,
    conn: LoopConnection,
    route: Route | None,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    packet_max: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    payload: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Process the run, if there is one; returns -1: no run."""
    if start >= 0 and end > start and route is not None:
        _count(hot, count, payload)
        hot.run_payload = payload
        fan_out_run(hot, conn, route, conn.version, data, start, end, packet_max, count)
    return -1


def _count(hot: LoopState, count: cython.Py_ssize_t, payload: cython.Py_ssize_t) -> None:
    """Count messages of QoS 0, and the bytes of their payloads."""
    hot.packets_in += count
    hot.publish_in_qos0 += count
    hot.publish_bytes_in += payload


# -- single packets


def _handle_packet(
    hot: LoopState,
    conn: LoopConnection,
    first: cython.int,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Handle a packet outside a run; False: parse it again."""
    kind: cython.int = first >> 4
    error_code: cython.int
    if conn.version != 0:
        if kind == 3:
            return handle_publish(hot, conn, data, at, body, stop)
        if 4 <= kind <= 7:
            if pending_output(conn) > hot.output_high and kind != 4:
                conn.parked |= PARK_OUTPUT  # each requires an answer, and the client reads none
                mark_dirty(hot, conn)
                return False
            error_code = handle_ack(hot, conn, first, data, body, stop)
            if error_code == ACK_WAITS:
                return False
            hot.packets_in += 1
            if error_code != 0:
                fail(hot, conn, error_code)
            return True
        if kind == 12:
            return _ping(hot, conn, first, stop - body)
    else:
        conn.connect_ns = 0  # it arrived in time
    hot.packets_in += 1
    conn.parked |= PARK_HANDLER
    hot.iteration_bytes += CORE_BYTES
    hot.handler.packet(conn, first, data[body:stop])
    mark_dirty(hot, conn)
    return True


def _ping(hot: LoopState, conn: LoopConnection, first: cython.int, length: cython.Py_ssize_t) -> cython.bint:
    if conn.ahead is not None and conn.ahead.pings > 0 and first == 0xC0 and length == 0:
        conn.ahead.pings -= 1  # answered while it was unparsed
        hot.packets_in += 1
        return True
    if pending_output(conn) > hot.output_high:
        conn.parked |= PARK_OUTPUT
        mark_dirty(hot, conn)
        return False
    hot.packets_in += 1
    if first != 0xC0 or length != 0:
        fail(hot, conn, MALFORMED_PACKET)
        return True
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, 2)
    out.data[at] = 0xD0
    out.data[at + 1] = 0
    out.end = at + 2
    return True
