"""Trace events of the loop for marked messages and connections.

No function here is called for others: a mark is checked once per run of packets, per message and per copy. The core
marks a connection or a Route; the current message inherits the mark, and between nodes it is a flag of the record.
Decision: docs/adr/0170-traces.md.
"""

import cython

from edge.loop.state import (
    BackloggedMessage,
    LoopConnection,
    LoopPeer,
    LoopState,
    OutboundWindow,
    PendingAck,
    PublishView,
    Route,
)

if not cython.compiled:
    from edge.loop.layout import FAILURE

__all__: list[str] = []

NO_ORIGIN = (0, 0, 0)


def note_event(
    hot: LoopState,
    stage: str,
    conn: LoopConnection | None,
    packet: PublishView,
    identifier: cython.int,
    qos: cython.int,
    detail: object,
) -> None:
    """Report an event of the current message.

    Args:
        hot: The loop.
        stage: Of ``admin/explain/message.py``.
        conn: Connection of the message or copy; None: none at this edge.
        packet: The message.
        identifier: Its packet identifier, or the number of the pushed entry.
        qos: Its QoS, or the copy's.
        detail: The core formats it: a Route, a Peer, or a text.
    """
    trace = hot.trace
    if trace is None:
        return
    payload: bytes = b""
    count: cython.Py_ssize_t = trace.payload_bytes
    if count > 0:
        count = min(count, packet.payload_bytes)
        payload = packet.data[packet.payload_at : packet.payload_at + count]
    origin = (packet.origin_kind, packet.origin_a, packet.origin_b) if packet.traced else NO_ORIGIN
    context = conn.context if conn is not None else None
    trace.event(stage, context, packet.topic, origin, identifier, qos, packet.traced, detail, payload)


def trace_sent(
    hot: LoopState,
    publisher: LoopConnection | None,
    route: Route,
    packet: PublishView,
    message: PendingAck | None,
    retained_partition: cython.int,
) -> None:
    """Set the origin of a marked message before its fan-out, and report its arrival and destinations."""
    again: cython.bint = hot.origin_tag != 0  # its copy for the retained partition was sent before
    if packet.origin_kind == 0:
        packet.origin_a = hot.incarnation
        if hot.origin_tag == 0 and message is None:
            hot.tags += 1
            hot.origin_tag = hot.tags  # QoS 0 has no other number; the caller resets it
        packet.origin_b = hot.origin_tag if hot.origin_tag else message.tag  # type: ignore[union-attr]
    if message is not None:
        message.traced = True
        message.route = route
        message.origin_kind = packet.origin_kind
        message.origin_a = packet.origin_a
        message.origin_b = packet.origin_b
    if not again:
        note_event(hot, "received", publisher, packet, packet.packet_identifier, packet.qos, "")
    if route.remote or retained_partition >= 0:
        note_event(hot, "forwarded", publisher, packet, 0, packet.qos, (route, retained_partition))


def trace_copy(hot: LoopState, packet: PublishView, copy: PendingAck, share: bytes) -> None:
    """Report the message of a shared group's copy, which has its own origin."""
    if hot.trace is not None:
        origin = (0, hot.incarnation, copy.tag)
        message = (packet.origin_kind, packet.origin_a, packet.origin_b)
        hot.trace.event("forwarded", None, packet.topic, origin, 0, packet.qos, True, (message, share), b"")


def trace_refused(hot: LoopState, conn: LoopConnection, route: Route, packet: PublishView) -> None:
    """Report a marked message without destinations: no subscriber, or not authorized."""
    packet.origin_a = hot.incarnation
    hot.tags += 1
    packet.origin_b = hot.tags
    note_event(hot, "received", conn, packet, packet.packet_identifier, packet.qos, "")
    note_event(hot, "refused", conn, packet, packet.packet_identifier, packet.qos, route.reason_code or "no_subscriber")


def trace_answered(hot: LoopState, conn: LoopConnection, message: PendingAck) -> None:
    """Report the PUBACK or PUBREC of a marked message."""
    if hot.trace is None or message.route is None:
        return
    origin = (message.origin_kind, message.origin_a, message.origin_b)
    stage = "acknowledged" if message.reason_code < FAILURE else "refused"
    hot.trace.event(
        stage,
        conn.context,
        message.route.topic,
        origin,
        message.packet_identifier,
        message.qos,
        True,
        message.reason_code,
        b"",
    )


def trace_written(
    hot: LoopState,
    conn: LoopConnection,
    packet: PublishView,
    qos: cython.int,
    identifier: cython.int,
    session_seq: cython.ulonglong,
) -> None:
    """Report a copy written to a client; its acknowledgement is reported too."""
    note_event(hot, "written", conn, packet, identifier, qos, session_seq)
    outbound: OutboundWindow | None = conn.outbound
    if qos > 0 and outbound is not None:
        if outbound.traced is None:
            outbound.traced = {}
        origin = (packet.origin_kind, packet.origin_a, packet.origin_b) if packet.traced else NO_ORIGIN
        outbound.traced[identifier] = (packet.topic, origin, session_seq, packet.traced)


def trace_waiting(hot: LoopState, conn: LoopConnection, packet: PublishView, qos: cython.int) -> None:
    """Report a copy that waits for the client's window."""
    outbound: OutboundWindow | None = conn.outbound
    if outbound is not None and outbound.pending:
        entry = outbound.pending.pop()
        outbound.pending.append(entry)
        kept: BackloggedMessage = entry[6]
        kept.origin = (packet.origin_kind, packet.origin_a, packet.origin_b) if packet.traced else NO_ORIGIN
    note_event(hot, "queued", conn, packet, 0, qos, "waits for the window")


def trace_drained(hot: LoopState, conn: LoopConnection, topic: bytes, qos: cython.int, origin: object) -> None:
    """Report the write of a copy that waited for the window."""
    outbound: OutboundWindow = conn.outbound  # type: ignore[assignment]  # it waited there
    identifier: cython.int = outbound.next_identifier - 1 if outbound.next_identifier > 1 else 65_535
    if outbound.traced is None:
        outbound.traced = {}
    outbound.traced[identifier] = (topic, origin, 0, origin != NO_ORIGIN)
    if hot.trace is not None:
        hot.trace.event("written", conn.context, topic, origin, identifier, qos, origin != NO_ORIGIN, 0, b"")


def trace_acked(
    hot: LoopState, conn: LoopConnection, packet_type: cython.int, identifier: cython.int, reason_code: cython.int
) -> None:
    """Report a client's acknowledgement of a reported copy."""
    outbound: OutboundWindow = conn.outbound  # type: ignore[assignment]  # the caller checked
    known = outbound.traced.get(identifier) if outbound.traced is not None else None
    if known is None:
        return
    if packet_type != 5 or reason_code >= FAILURE:  # PUBREC is half of a flow
        del outbound.traced[identifier]  # type: ignore[union-attr]
        if not outbound.traced:
            outbound.traced = None
    if hot.trace is None:
        return
    topic, origin, session_seq, marked = known
    hot.trace.acked(conn.context, topic, origin, identifier, packet_type, marked, reason_code, session_seq)


def trace_accepted(hot: LoopState, peer: LoopPeer, packet: PublishView) -> None:
    """Report a marked message from another edge."""
    note_event(hot, "accepted", None, packet, 0, packet.qos, peer)


def trace_dropped(
    hot: LoopState, conn: LoopConnection | None, reason: str, topic: bytes, packet: PublishView | None
) -> None:
    """Report a dropped message or copy."""
    if hot.trace is None:
        return
    context = conn.context if conn is not None else None
    if packet is not None and packet.traced:
        origin = (packet.origin_kind, packet.origin_a, packet.origin_b)
        hot.trace.event("dropped", context, topic, origin, 0, packet.qos, True, reason, b"")
    else:
        hot.trace.event("dropped", context, topic, NO_ORIGIN, 0, 0, False, reason, b"")
