"""One PUBLISH of a client outside a run: validated, routed, then accepted or left for later.

Decides the conditions for a PUBLISH with QoS 1 or 2, a topic alias or RETAIN before the broker acknowledges it. RETAIN,
QoS 2 of a durable session, and topics with publisher names are passed to the core, parsed. ``edge/loop/parse.py``
splits the input into packets.
Source: MQTT 5.0 sections 3.3, 4.3, 4.9; docs/protocol.md rules 2.7, 4.6.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import InboundPublish, LoopConnection, LoopState, PendingAck, PublishView, Route

if not cython.compiled:
    from edge.loop.acks import destination_done, new_message, reserve_ack, write_ack
    from edge.loop.buffers import get16, reserve, take_bytes
    from edge.loop.deliver import park_if_slow
    from edge.loop.encode import copy_plain, valid_topic, walk_properties
    from edge.loop.excess import EXCEEDED, WAITS, check_excess, hold_excess
    from edge.loop.fanout import fan_out
    from edge.loop.layout import (
        FAILURE,
        IMPLEMENTATION_SPECIFIC_ERROR,
        MALFORMED_PACKET,
        NO_EXPIRY,
        NO_MATCHING_SUBSCRIBERS,
        PROTOCOL_ERROR,
        QOS_NOT_SUPPORTED,
        QUOTA_EXCEEDED,
        RECEIVE_MAXIMUM_EXCEEDED,
        RETAIN_NOT_SUPPORTED,
        TOPIC_ALIAS_INVALID,
    )
    from edge.loop.notes import note_denied
    from edge.loop.outboxes import park_if_peers_full
    from edge.loop.output import mark_dirty, pending_output
    from edge.loop.refused_topics import ENDS, TAKES, check_refused
    from edge.loop.routes import known_route
    from edge.loop.state import ANSWER_PENDING, PARK_HANDLER, PARK_OUTPUT, PARK_QUOTA
    from edge.loop.traces import note_event, trace_refused
    from edge.loop.verdicts import authorize_route

    INBOUND_BYTES = 64 * 1024  # of an iteration's byte limit, for a message passed to the core
    NEW_IDENTIFIER, REPEAT_ANSWERED, REPEAT_WAITS = 0, 1, 2  # of _answer_repeat; compiled: inbound.pxd

__all__: list[str] = []


def park_if_full(hot: LoopState, conn: LoopConnection, route: Route) -> cython.bint:
    """Park the publisher on a full destination; return whether there was one."""
    if hot.high and park_if_slow(hot, conn, route):
        return True
    if hot.full_peers > 0 or hot.outbox_bytes > hot.outbox_bytes_max:
        return park_if_peers_full(hot, conn, route)
    return False


def fail(hot: LoopState, conn: LoopConnection, reason_code: cython.int) -> None:
    """Report a protocol error of the client; no later packet of it is parsed."""
    conn.parked |= PARK_HANDLER
    hot.handler.error(conn, reason_code)
    if not conn.closed:
        conn.parked |= PARK_HANDLER
    mark_dirty(hot, conn)


# -- topics


def find_route(
    hot: LoopState, conn: LoopConnection, data: cython.p_uchar, at: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> Route | None:
    """Return the Route of the topic in ``data``; None: parked for the answer, or failed."""
    return _route_of(hot, conn, data[at : at + count], 0, False)


def _route_of(hot: LoopState, conn: LoopConnection, topic: bytes, qos: cython.int, retain: cython.bint) -> Route | None:
    route: Route | None
    if conn.last_version == hot.routes_version and conn.last_topic == topic and not (retain and hot.authorizing):
        return conn.last_route
    route = known_route(hot, topic)
    if route is None:
        if not valid_topic(topic, 0, len(topic)):
            fail(hot, conn, MALFORMED_PACKET)
            return None
        conn.parked |= PARK_HANDLER
        hot.handler.miss(conn, topic)
        if conn.parked != 0 or conn.closed:
            hot.missed = True
            mark_dirty(hot, conn)
            return None
        route = known_route(hot, topic)
        if route is None:  # resumed without an answer: no message may pass without a Route
            fail(hot, conn, IMPLEMENTATION_SPECIFIC_ERROR)
            return None
    conn.last_version = hot.routes_version
    if hot.authorizing and route.reason_code == 0 and not _is_allowed(hot, conn, route, retain):
        route = authorize_route(hot, conn, route, topic, qos, retain)
    conn.last_topic = topic
    conn.last_route = route
    if conn.refused is not None:
        return _unless_refused(hot, conn, route, qos)
    return route


def _is_allowed(hot: LoopState, conn: LoopConnection, route: Route, retain: cython.bint) -> cython.bint:
    """Return whether the Route allows the connection's class to publish; called for nearly every message."""
    if retain or not route.allowed & conn.rights_bit:
        return False
    return route.rights_epoch == hot.rights_epoch and conn.rights_epoch == hot.rights_epoch


def _unless_refused(hot: LoopState, conn: LoopConnection, route: Route, qos: cython.int) -> Route | None:
    """Refuse QoS 1 behind a message that a full disk refused; messages for the core are checked when sent."""
    conn.last_version = -1  # the next message is checked as well
    if qos != 1 or route.reason_code != 0:
        return route
    decision: cython.int = check_refused(hot, conn, route.topic)
    if decision == ENDS:
        fail(hot, conn, QUOTA_EXCEEDED)
        return None
    if decision == TAKES:
        return route
    refusing: Route = Route(route.topic, reason_code=QUOTA_EXCEEDED)
    refusing.traced = route.traced
    return refusing


# -- packets


def handle_publish(
    hot: LoopState,
    conn: LoopConnection,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Handle a PUBLISH that cannot join a run; False: parse it again after a park."""
    packet: PublishView = hot.packet
    topic: bytes | None
    route: Route | None
    error_code: cython.int = _load(hot, conn, packet, data, at, body, stop)
    if error_code != 0:
        fail(hot, conn, error_code)
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
    topic = _topic_of(hot, conn, packet, data[body + 2 : body + 2 + get16(data, body)])
    if topic is None:
        return True
    if packet.qos == 2 and conn.received is not None:
        error_code = _answer_repeat(hot, conn, packet.packet_identifier)
        if error_code != NEW_IDENTIFIER:
            return error_code == REPEAT_ANSWERED
    if packet.qos > 0 and conn.quota >= conn.quota_max:
        error_code = check_excess(hot, conn)
        if error_code == EXCEEDED:
            fail(hot, conn, EXCEEDED)
            return True
        if error_code == WAITS:
            conn.parked |= PARK_QUOTA
            hot.parked_quota += 1
            mark_dirty(hot, conn)
            return False
    if packet.qos == 2 and conn.version != 5 and conn.received is not None and len(conn.received) >= hot.received_max:
        fail(hot, conn, RECEIVE_MAXIMUM_EXCEEDED)
        return True
    route = _route_of(hot, conn, topic, packet.qos, packet.retain)
    if route is None or park_if_full(hot, conn, route):
        return False
    packet.topic = topic
    packet.data = data  # a Handler call may have used the record
    packet.traced = conn.traced or route.traced
    hot.packets_in += 1
    _accept(hot, conn, route, packet)
    return True


def _load(
    hot: LoopState,
    conn: LoopConnection,
    packet: PublishView,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.int:
    """Validate and load all fields but the topic; 0 or a reason code."""
    first: cython.int = data[at]
    position: cython.Py_ssize_t
    packet.qos = (first >> 1) & 3
    packet.dup = first & 8 != 0
    if packet.dup:
        conn.fresh = False
    packet.retain = first & 1 != 0
    if packet.qos == 3 or (packet.dup and packet.qos == 0):  # [MQTT-3.3.1-4] [MQTT-3.3.1-2]
        return MALFORMED_PACKET
    if stop - body < 2:
        return MALFORMED_PACKET
    position = body + 2 + get16(data, body)
    packet.packet_identifier = 0
    if packet.qos > 0:
        if position + 2 > stop:
            return MALFORMED_PACKET
        packet.packet_identifier = get16(data, position)
        position += 2
    if position > stop:
        return MALFORMED_PACKET
    packet.data = data
    packet.version = conn.version
    packet.pending_key = -1
    packet.origin_kind = 0
    packet.origin_a = 0  # no number yet
    packet.session = conn.session
    packet.owner_epoch = conn.owner_epoch
    if conn.version == 5:
        error_code: cython.int = walk_properties(packet, data, position, stop, hot.user_bytes_max, hot.users_max)
        if error_code != 0:
            return error_code
    else:
        packet.alias_at = -1
        packet.has_reserved = False
        packet.expiry_at = -1
        packet.expiry_s = NO_EXPIRY
        packet.properties_at = position
        packet.properties_bytes = 0
        packet.plain_bytes = 0
        packet.payload_at = position
        packet.payload_bytes = stop - position
    if packet.qos > 0 and packet.packet_identifier == 0:  # [MQTT-2.2.1-3]
        return PROTOCOL_ERROR
    if packet.qos > conn.qos_max:  # [MQTT-3.2.2-11]
        return QOS_NOT_SUPPORTED
    if packet.retain and not conn.retain_available:  # [MQTT-3.2.2-14]
        return RETAIN_NOT_SUPPORTED
    return 0


def _answer_repeat(hot: LoopState, conn: LoopConnection, packet_identifier: cython.int) -> cython.int:
    """Answer a QoS 2 PUBLISH whose identifier is in use on this connection by PUBREC [MQTT-4.3.3-10].

    It waits, unparsed, while the first one has no PUBREC yet, or while PUBREL is being recorded. The partition detects
    repeats from earlier connections of a durable session.
    """
    code = conn.received.get(packet_identifier)  # type: ignore[union-attr]  # the caller checked
    if code is None:
        return NEW_IDENTIFIER
    if code < 0:
        conn.parked |= PARK_QUOTA
        hot.parked_quota += 1
        mark_dirty(hot, conn)
        return REPEAT_WAITS
    hot.packets_in += 1
    hot.dropped_repeated += 1
    conn.quota += 1 if conn.version != 5 else 0  # answer counts it back
    write_ack(hot, conn, 2, packet_identifier, code)
    return REPEAT_ANSWERED


def _topic_of(hot: LoopState, conn: LoopConnection, packet: PublishView, topic: bytes) -> bytes | None:
    """Resolve the topic alias; None after an error [MQTT-3.3.2-7] to [MQTT-3.3.2-12]."""
    known: bytes | None
    if packet.alias_at < 0:
        if not topic:
            fail(hot, conn, PROTOCOL_ERROR if conn.version == 5 else MALFORMED_PACKET)
            return None
        return topic
    if packet.alias == 0 or packet.alias > conn.alias_max:
        fail(hot, conn, TOPIC_ALIAS_INVALID)
        return None
    if conn.aliases is None:
        conn.aliases = [None] * (conn.alias_max + 1)
    if topic:
        if not valid_topic(topic, 0, len(topic)):
            fail(hot, conn, MALFORMED_PACKET)
            return None
        conn.aliases[packet.alias] = topic
        return topic
    known = conn.aliases[packet.alias]
    if known is None:
        fail(hot, conn, PROTOCOL_ERROR)
    return known


def _accept(hot: LoopState, conn: LoopConnection, route: Route, packet: PublishView) -> None:
    """Accept the packet: send it to all destinations, and acknowledge it after they have."""
    message: PendingAck | None = None
    qos: cython.int = packet.qos
    identifier: cython.int = packet.packet_identifier
    trace_tag: cython.ulonglong = 0  # number in traces of a message without destinations
    hot.publish_bytes_in += packet.payload_bytes
    if packet.traced and (route.reason_code != 0 or (route.empty and not _is_for_core(conn, route, packet))):
        trace_refused(hot, conn, route, packet)
        trace_tag = packet.origin_b
        packet.traced = False
    if qos == 0:
        hot.publish_in_qos0 += 1
        if route.reason_code != 0:
            note_denied(hot, conn, route.reason_code, packet.topic)
        elif _is_for_core(conn, route, packet):
            _give_to_core(hot, conn, route, packet)
        elif not route.empty:
            fan_out(hot, conn, route, packet, None, -1)
            hot.origin_tag = 0
        return
    conn.quota += 1
    if qos == 1:
        hot.publish_in_qos1 += 1
    else:
        hot.publish_in_qos2 += 1
        if conn.received is None:
            conn.received = {}
        conn.received[identifier] = ANSWER_PENDING
    if route.reason_code == 0 and _is_for_core(conn, route, packet):
        _give_to_core(hot, conn, route, packet)
        return
    code: cython.int = 0
    if route.reason_code != 0:
        if route.reason_code != QUOTA_EXCEEDED:  # counted by the check
            note_denied(hot, conn, route.reason_code, packet.topic)
        code = route.reason_code if conn.version == 5 else 0
    elif route.empty:
        code = NO_MATCHING_SUBSCRIBERS
    if route.remote or conn.ack_queue or hot.ledger is not None or conn.origins is not None:
        message = new_message(hot, qos, conn, identifier)
        message.waiting = 1  # for this function, so that the message cannot complete during the fan-out
        if conn.excess:
            hold_excess(conn, message, len(packet.topic) + packet.plain_bytes + packet.payload_bytes)
        reserve_ack(conn, message)
        if code < FAILURE:
            fan_out(hot, conn, route, packet, message, -1)
        if trace_tag:
            message.origin_b = trace_tag
        destination_done(hot, message, code)
        return
    # The acknowledgement precedes the copies: a subscriber of its own topic reads PUBREC before PUBLISH.
    write_ack(hot, conn, qos, identifier, code)
    if code == 0:
        fan_out(hot, conn, route, packet, None, -1)
        if packet.traced:
            hot.origin_tag = 0
            note_event(hot, "acknowledged", conn, packet, identifier, qos, code)


def _is_for_core(conn: LoopConnection, route: Route, packet: PublishView) -> cython.bint:
    """Return whether the core sends a packet that may be published."""
    if packet.retain or (packet.qos == 2 and conn.session != 0):
        return True
    return (route.named or packet.has_reserved) and (packet.qos > 0 or not route.empty)


def _give_to_core(hot: LoopState, conn: LoopConnection, route: Route, packet: PublishView) -> None:
    """Pass the parsed packet to the core; its acknowledgement keeps its place in the order."""
    inbound = InboundPublish(
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
    inbound.traced = packet.traced
    if packet.qos > 0:
        inbound.reserved_ack = new_message(hot, packet.qos, conn, packet.packet_identifier)
        inbound.reserved_ack.waiting = 1
        if conn.excess:
            hold_excess(conn, inbound.reserved_ack, len(packet.topic) + packet.plain_bytes + packet.payload_bytes)
        reserve_ack(conn, inbound.reserved_ack)
    conn.parked |= PARK_HANDLER
    hot.iteration_bytes += INBOUND_BYTES
    hot.handler.inbound(conn, inbound, route)
    mark_dirty(hot, conn)


def _plain_properties(packet: PublishView) -> bytes:
    """Return the publisher's properties without alias and expiry."""
    plain: Buffer = Buffer(packet.plain_bytes + 1)
    reserve(plain, packet.plain_bytes)
    copy_plain(plain, 0, packet)
    plain.end = packet.plain_bytes
    return take_bytes(plain, packet.plain_bytes)
