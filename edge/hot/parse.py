# mypy: disable-error-code="no-any-return, assignment, union-attr, arg-type"
"""From received bytes to complete packets, and which way each of them goes.

Consecutive QoS 0 packets of one client to one topic form a *run* that is handed on as a whole. QoS 1 and 2 go one by
one. Every other packet goes to the Handler, the client's connection being parked until it is answered. A packet that
cannot go on now (no route yet, no lease, no room) stays unparsed, and with it everything behind it: that keeps order.
Source: MQTT 5.0 sections 2.1.4, 3.3; docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import cython

from edge.hot.buffers import Buffer
from edge.hot.state import Conn, HotState, Inbound, Message, Packet, Route

if not cython.compiled:
    from edge.hot.acks import acknowledged, answer, destination_done, enter_gate, new_message
    from edge.hot.buffers import get16, reserve, same_bytes, take_bytes
    from edge.hot.deliver import route_is_slow
    from edge.hot.encode import copy_plain, valid_topic, walk_properties
    from edge.hot.fanout import fan_out, fan_out_run
    from edge.hot.output import mark_dirty, output_of, pending_output
    from edge.hot.peers import route_is_full
    from edge.hot.state import PARK_HANDLER, PARK_OUTPUT, PARK_QUOTA

__all__: list[str] = []

if not cython.compiled:  # compiled, C constants: parse.pxd
    ANSWERED_TWICE = 0x100  # in Conn.received: PUBREC was repeated on this connection


def may_read(hot: HotState, conn: Conn) -> cython.bint:
    """Whether there is any use in reading a publisher: it is parked here if what it fed last has no room."""
    route: Route | None = conn.last_route
    if route is None or (hot.full_peers == 0 and not hot.high and hot.outbox_bytes <= hot.outbox_bytes_max):
        return True
    return not _has_no_room(hot, conn, route)


def _has_no_room(hot: HotState, conn: Conn, route: Route) -> cython.bint:
    if hot.high and route_is_slow(hot, conn, route):
        return True
    if hot.full_peers > 0 or hot.outbox_bytes > hot.outbox_bytes_max:
        return route_is_full(hot, conn, route)
    return False


def parse(
    hot: HotState, conn: Conn, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Handle the complete packets of ``data[at:end]``.

    Returns:
        The position of the first byte not consumed; from there the bytes are to be shown again, after a park first.
    """
    first: cython.int
    body: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    length: cython.Py_ssize_t
    topic_bytes: cython.Py_ssize_t
    wrong: cython.int
    run_at: cython.Py_ssize_t = -1  # of the run's first packet, -1: no run
    run_bytes_max: cython.Py_ssize_t = 0
    packet_max: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    five: cython.bint = conn.version == 5
    route: Route | None = None
    run_route: Route | None = None
    packet: Packet = hot.packet
    conn.parsing = True
    conn.needed = 0
    while at < end and conn.parked == 0 and not conn.closed:
        # Fixed header: a length of up to four bytes [MQTT 5.0 2.1.4].
        first = data[at]
        body = at + 1
        if body >= end:
            break
        length = data[body]
        body += 1
        if length > 127:
            length = _long_length(data, at + 1, end, five)
            if length == -1:
                break
            if length == -2:
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                _fail(hot, conn, 0x81)
                break
            while data[body - 1] > 127:
                body += 1
        stop = body + length
        if stop - at > conn.packet_bytes_max:
            run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
            _fail(hot, conn, 0x95)  # before any of it is buffered
            break
        if stop > end:
            conn.needed = stop - at
            if conn.version != 0 and _wrong_flags(first):  # told before the body has come
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                _fail(hot, conn, 0x81)
            break
        if first == 0x30 and conn.version != 0:
            if length < 2 or 2 + get16(data, body) > length:
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                _fail(hot, conn, 0x81)
                break
            topic_bytes = get16(data, body)
            if (
                topic_bytes != len(conn.last_topic)
                or conn.last_version != hot.routes_version
                or topic_bytes == 0
                or not same_bytes(data, body + 2, conn.last_topic)
            ):
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                count = 0
                if conn.parked != 0:
                    break
                if topic_bytes == 0:  # an alias, or an error
                    if _single(hot, conn, data, at, body, stop):
                        at = stop
                    continue
                if _find_route(hot, conn, data, body + 2, topic_bytes) is None:
                    break
            route = conn.last_route
            if five:
                if body + 2 + topic_bytes >= stop:
                    wrong = 0x81
                elif data[body + 2 + topic_bytes] == 0:
                    wrong = 0
                    packet.alias_at = -1
                else:
                    wrong = walk_properties(packet, data, body + 2 + topic_bytes, stop)
                if wrong != 0 or packet.alias_at >= 0:
                    run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                    count = 0
                    if wrong != 0:
                        _fail(hot, conn, wrong)
                        break
                    if conn.parked == 0 and _single(hot, conn, data, at, body, stop):
                        at = stop
                    continue
            if run_at < 0:
                if route.empty:
                    hot.packets_in += 1
                    hot.publish_in_qos0 += 1
                    if route.reason_code != 0:
                        hot.dropped_denied += 1
                    at = stop
                    continue
                if _has_no_room(hot, conn, route):
                    break
                run_at = at
                run_route = route
                packet_max = 0
                count = 0
                run_bytes_max = hot.round_bytes_max // (len(route.subs) + 1)
            count += 1
            if stop - at > packet_max:
                packet_max = stop - at
            at = stop
            if at - run_at >= run_bytes_max:
                run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
                count = 0
                if hot.round_bytes > hot.round_bytes_max:
                    _cut(hot, conn)
                    break
            continue
        if run_at >= 0:
            run_at = _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
            count = 0
            if conn.parked != 0 or conn.closed:
                break
        if _other(hot, conn, first, data, at, body, stop):
            at = stop
        five = conn.version == 5
        if hot.round_bytes > hot.round_bytes_max:
            _cut(hot, conn)
            break
    _end_run(hot, conn, run_route, data, run_at, at, packet_max, count)
    conn.parsing = False
    return at


def _cut(hot: HotState, conn: Conn) -> None:
    """This round has written enough: the rest of the connection's bytes is the next round's."""
    if not conn.ready:
        conn.ready = True
        hot.ready.append(conn)


def _wrong_flags(first: cython.int) -> cython.bint:
    """Whether a fixed header of the kinds handled here is malformed by itself [MQTT-2.1.3-1] [MQTT-3.3.1-4]."""
    kind: cython.int = first >> 4
    flags: cython.int = first & 0x0F
    if kind == 3:
        return flags & 6 == 6 or flags & 14 == 8
    if kind == 6:
        return flags != 2
    return (4 <= kind <= 7 or kind == 12) and flags != 0


def _long_length(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, five: cython.bint
) -> cython.Py_ssize_t:
    """Remaining Length of two to four bytes; -1 if more bytes are needed, -2 if malformed [MQTT-1.5.5-1]."""
    length: cython.Py_ssize_t = 0
    i: cython.int
    for i in range(4):
        if at + i >= end:
            return -1
        length |= cython.cast(cython.Py_ssize_t, data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return -2 if five and data[at + i] == 0 else length  # not the shortest form [MQTT-1.5.5-1]
    return -2


def _fail(hot: HotState, conn: Conn, reason_code: cython.int) -> None:
    """The client broke the protocol: nothing of it is parsed any more."""
    conn.parked |= PARK_HANDLER
    hot.handler.error(conn, reason_code)
    if not conn.closed:
        conn.parked |= PARK_HANDLER
    mark_dirty(hot, conn)


def _end_run(
    hot: HotState,
    conn: Conn,
    route: Route | None,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    packet_max: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Hand on the run, if there is one; always -1: there is none any more."""
    if start >= 0 and end > start:
        hot.packets_in += count
        hot.publish_in_qos0 += count
        fan_out_run(hot, conn, route, conn.version, data, start, end, packet_max, count)
    return -1


# -- topics


def _find_route(
    hot: HotState, conn: Conn, data: cython.p_uchar, at: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> Route | None:
    """Look up the topic in ``data``; None: parked for the answer, or failed."""
    return _route_of(hot, conn, data[at : at + count])


def _route_of(hot: HotState, conn: Conn, topic: bytes) -> Route | None:
    route: Route | None
    if conn.last_version == hot.routes_version and conn.last_topic == topic:
        return conn.last_route
    route = hot.routes.get(topic)
    if route is None:
        if not valid_topic(topic, 0, len(topic)):
            _fail(hot, conn, 0x81)
            return None
        conn.parked |= PARK_HANDLER
        hot.handler.miss(conn, topic)
        if conn.parked != 0 or conn.closed:
            mark_dirty(hot, conn)
            return None
        route = hot.routes.get(topic)
        if route is None:  # resumed without an answer: nothing may pass unrouted
            _fail(hot, conn, 0x83)
            return None
    if hot.authorizing and route.reason_code == 0:
        code: cython.int = _permission(hot, conn, topic)
        if code != 0:
            route = Route(topic, reason_code=code)
    conn.last_topic = topic
    conn.last_route = route
    conn.last_version = hot.routes_version
    return route


def _permission(hot: HotState, conn: Conn, topic: bytes) -> cython.int:
    """Ask once per connection and topic."""
    if conn.permissions is None:
        conn.permissions = {}
    known = conn.permissions.get(topic)
    if known is None:
        if len(conn.permissions) >= hot.permissions_max:
            conn.permissions.clear()
        known = hot.handler.authorize(conn, topic)
        conn.permissions[topic] = known
    return known


# -- single packets


def _other(
    hot: HotState,
    conn: Conn,
    first: cython.int,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Handle a packet that is not part of a run; False leaves it to be parsed again."""
    kind: cython.int = first >> 4
    wrong: cython.int
    if conn.version != 0:
        if kind == 3:
            return _single(hot, conn, data, at, body, stop)
        if 4 <= kind <= 7:
            if pending_output(conn) > hot.output_high and kind != 4:
                conn.parked |= PARK_OUTPUT  # each asks for an answer, and none is read
                mark_dirty(hot, conn)
                return False
            hot.packets_in += 1
            wrong = acknowledged(hot, conn, first, data, body, stop)
            if wrong != 0:
                _fail(hot, conn, wrong)
            return True
        if kind == 12:
            return _ping(hot, conn, first, stop - body)
    hot.packets_in += 1
    conn.parked |= PARK_HANDLER
    hot.handler.packet(conn, first, data[body:stop])
    mark_dirty(hot, conn)
    return True


def _ping(hot: HotState, conn: Conn, first: cython.int, length: cython.Py_ssize_t) -> cython.bint:
    if pending_output(conn) > hot.output_high:
        conn.parked |= PARK_OUTPUT
        mark_dirty(hot, conn)
        return False
    hot.packets_in += 1
    if first != 0xC0 or length != 0:
        _fail(hot, conn, 0x81)
        return True
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, 2)
    out.data[at] = 0xD0
    out.data[at + 1] = 0
    out.end = at + 2
    return True


def _single(
    hot: HotState,
    conn: Conn,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Handle a PUBLISH that cannot join a run; False leaves it to be parsed again, after a park."""
    packet: Packet = hot.packet
    topic: bytes | None
    route: Route | None
    wrong: cython.int = _load(conn, packet, data, at, body, stop)
    if wrong != 0:
        _fail(hot, conn, wrong)
        return True
    if packet.qos > 0 and pending_output(conn) > hot.output_high:
        conn.parked |= PARK_OUTPUT  # it does not read its acknowledgements
        mark_dirty(hot, conn)
        return False
    if packet.qos > 0 and not hot.leased:
        conn.parked |= PARK_HANDLER
        hot.handler.fenced(conn)
        if not hot.leased:
            conn.parked |= PARK_HANDLER
        mark_dirty(hot, conn)
        return False
    if packet.qos == 2 and _is_repeated(hot, conn, packet.packet_identifier):
        return True
    topic = _topic_of(hot, conn, packet, data[body + 2 : body + 2 + get16(data, body)])
    if topic is None:
        return True
    if packet.qos > 0 and conn.quota >= conn.quota_max:
        if conn.version == 5:
            _fail(hot, conn, 0x93)  # [MQTT-3.3.4-7]
            return True
        conn.parked |= PARK_QUOTA
        hot.parked_quota += 1
        mark_dirty(hot, conn)
        return False
    if packet.qos == 2 and conn.version != 5 and conn.received is not None and len(conn.received) >= hot.received_max:
        _fail(hot, conn, 0x93)
        return True
    route = _route_of(hot, conn, topic)
    if route is None or _has_no_room(hot, conn, route):
        return False
    packet.topic = topic
    packet.data = data  # a Handler call may have used the record
    hot.packets_in += 1
    _accept(hot, conn, route, packet)
    return True


def _load(
    conn: Conn,
    packet: Packet,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.int:
    """Check and note everything but the topic; 0 or a reason code."""
    first: cython.int = data[at]
    position: cython.Py_ssize_t
    packet.qos = (first >> 1) & 3
    packet.dup = first & 8 != 0
    packet.retain = first & 1 != 0
    if packet.qos == 3 or (packet.dup and packet.qos == 0):  # [MQTT-3.3.1-4] [MQTT-3.3.1-2]
        return 0x81
    if stop - body < 2:
        return 0x81
    position = body + 2 + get16(data, body)
    packet.packet_identifier = 0
    if packet.qos > 0:
        if position + 2 > stop:
            return 0x81
        packet.packet_identifier = get16(data, position)
        position += 2
    if position > stop:
        return 0x81
    packet.data = data
    packet.version = conn.version
    packet.pending_key = -1
    packet.origin_kind = 0
    packet.session = conn.session
    packet.owner_epoch = conn.owner_epoch
    if conn.version == 5:
        wrong: cython.int = walk_properties(packet, data, position, stop)
        if wrong != 0:
            return wrong
    else:
        packet.alias_at = -1
        packet.expiry_at = -1
        packet.expiry_s = 0xFFFFFFFF
        packet.properties_at = position
        packet.properties_bytes = 0
        packet.plain_bytes = 0
        packet.payload_at = position
        packet.payload_bytes = stop - position
    if packet.qos > 0 and packet.packet_identifier == 0:  # [MQTT-2.2.1-3]
        return 0x82
    if packet.qos > conn.qos_max:  # [MQTT-3.2.2-11]
        return 0x9B
    if packet.retain and not conn.retain_available:  # [MQTT-3.2.2-14]
        return 0x9A
    return 0


def _is_repeated(hot: HotState, conn: Conn, packet_identifier: cython.int) -> cython.bint:
    """QoS 2 of an ephemeral session: the same identifier before PUBREL gets PUBREC again [MQTT-4.3.3-10]."""
    if conn.session != 0 or conn.received is None:
        return False
    code = conn.received.get(packet_identifier)
    if code is None:
        return False
    hot.packets_in += 1
    hot.dropped_repeated += 1
    if code >= ANSWERED_TWICE:  # it has read PUBREC: only a broken client goes on like that [MQTT-4.4.0-1]
        _fail(hot, conn, 0x82)
    elif code >= 0:
        conn.quota += 1 if conn.version != 5 else 0  # answer counts it back
        answer(hot, conn, 2, packet_identifier, code)
        conn.received[packet_identifier] = ANSWERED_TWICE
    return True


def _topic_of(hot: HotState, conn: Conn, packet: Packet, topic: bytes) -> bytes | None:
    """Resolve the topic alias; None after an error [MQTT-3.3.2-7] to [MQTT-3.3.2-12]."""
    known: bytes | None
    if packet.alias_at < 0:
        if not topic:
            _fail(hot, conn, 0x82 if conn.version == 5 else 0x81)
            return None
        return topic
    if packet.alias == 0 or packet.alias > conn.alias_max:
        _fail(hot, conn, 0x94)
        return None
    if conn.aliases is None:
        conn.aliases = [None] * (conn.alias_max + 1)
    if topic:
        if not valid_topic(topic, 0, len(topic)):
            _fail(hot, conn, 0x81)
            return None
        conn.aliases[packet.alias] = topic
        return topic
    known = conn.aliases[packet.alias]
    if known is None:
        _fail(hot, conn, 0x82)
    return known


def _accept(hot: HotState, conn: Conn, route: Route, packet: Packet) -> None:
    """The packet is the broker's now: send it everywhere, and acknowledge it when everyone has it."""
    message: Message | None = None
    qos: cython.int = packet.qos
    identifier: cython.int = packet.packet_identifier
    if qos == 0:
        hot.publish_in_qos0 += 1
        if route.reason_code != 0:
            hot.dropped_denied += 1
        elif packet.retain:
            _hand_over(hot, conn, packet)
        elif not route.empty:
            fan_out(hot, conn, route, packet, None, -1)
        return
    conn.quota += 1
    if qos == 1:
        hot.publish_in_qos1 += 1
    else:
        hot.publish_in_qos2 += 1
        if conn.session == 0:
            if conn.received is None:
                conn.received = {}
            conn.received[identifier] = -1
    if route.reason_code == 0 and (packet.retain or (qos == 2 and conn.session != 0)):
        _hand_over(hot, conn, packet)
        return
    code: cython.int = 0
    if route.reason_code != 0:
        hot.dropped_denied += 1
        code = route.reason_code if conn.version == 5 else 0
    elif route.empty:
        code = 0x10
    if route.remote or conn.gate or hot.ledger is not None:
        message = new_message(hot, qos, conn, identifier)
        message.waiting = 1  # for ourselves, so that nothing finishes before everyone was asked
        enter_gate(conn, message)
        if code < 0x80:
            fan_out(hot, conn, route, packet, message, -1)
        destination_done(hot, message, code)
        return
    # The answer is written before the copies: who subscribes to its own topic reads PUBREC before PUBLISH.
    answer(hot, conn, qos, identifier, code)
    if code == 0:
        fan_out(hot, conn, route, packet, None, -1)


def _hand_over(hot: HotState, conn: Conn, packet: Packet) -> None:
    """Give the packet to the core, parsed; its acknowledgement has its place in the order."""
    inbound = Inbound(
        packet.topic,
        packet.data[packet.payload_at : packet.payload_at + packet.payload_bytes],
        packet.qos,
        packet.retain,
        _plain_properties(packet),
        packet.version,
        packet.expiry_s,
        packet.packet_identifier,
        packet.dup,
        conn,
    )
    if packet.qos > 0:
        inbound.gated = new_message(hot, packet.qos, conn, packet.packet_identifier)
        inbound.gated.waiting = 1
        enter_gate(conn, inbound.gated)
    conn.parked |= PARK_HANDLER
    hot.handler.inbound(conn, inbound)
    mark_dirty(hot, conn)


def _plain_properties(packet: Packet) -> bytes:
    """The publisher's properties without alias and expiry."""
    plain: Buffer = Buffer(packet.plain_bytes + 1)
    reserve(plain, packet.plain_bytes)
    copy_plain(plain, 0, packet)
    plain.end = packet.plain_bytes
    return take_bytes(plain, packet.plain_bytes)
