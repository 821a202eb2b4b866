"""Fan-out of one message or run to all destinations: local sessions, edges, partitions, shared groups.

A shared group's copy of a QoS 1/2 message is its own ``PendingAck`` with its own tag: it may share a partition with
the ordinary copy, and may be refused and sent elsewhere. Its parent waits for it.
Source: MQTT 5.0 section 4.8.2; docs/protocol.md rules 4.3, 5.4.
"""

import cython

from edge.loop.state import (
    LoopConnection,
    LoopPeer,
    LoopState,
    OutboundWindow,
    PendingAck,
    PublishView,
    Remote,
    Route,
    ShareGroup,
    Sub,
)

if not cython.compiled:
    from edge.loop.acks import destination_done, new_message
    from edge.loop.batches import append_record, append_run
    from edge.loop.deliver import deliver_local, deliver_run, deliver_to
    from edge.loop.encode import load_plain
    from edge.loop.layout import QUOTA_EXCEEDED, SERVER_BUSY, SERVER_UNAVAILABLE
    from edge.loop.notes import note_drop, note_drops
    from edge.loop.origins import note_pick, take_origin, was_picked
    from edge.loop.outboxes import send_to_edge, send_to_partition, send_to_partitions
    from edge.loop.picks import keep_pick
    from edge.loop.records import load_record, record_of, topic_of, with_owner, with_tag
    from edge.loop.traces import trace_copy, trace_sent

    PICK_BYTES = 4096  # of an iteration's byte limit, for one pick: about as long as appending so much

__all__: list[str] = []


def fan_out(
    hot: LoopState,
    publisher: LoopConnection | None,
    route: Route,
    packet: PublishView,
    message: PendingAck | None,
    retained_partition: cython.int,
) -> None:
    """Send the current message to all destinations; ``message.waiting`` counts those that acknowledge.

    Args:
        hot: The loop.
        publisher: Its connection, for No Local and backpressure.
        route: The destinations.
        packet: The message.
        message: Set for QoS 1/2.
        retained_partition: The partition that retains the message, -1 for none.
    """
    record: bytes
    if packet.traced:
        trace_sent(hot, publisher, route, packet, message, retained_partition)
    if hot.ledger is not None and message is not None:
        message.route = route
        message.retained_partition = retained_partition
        message.origin_kind = packet.origin_kind
        message.origin_a = packet.origin_a
        message.origin_b = packet.origin_b if packet.origin_kind else hot.origin_tag
    if message is not None and (route.subs or route.edges):
        message.delivered = True
        if packet.origin_kind == 0:  # this edge's number: identifies a copy that is dropped here
            packet.origin_a = hot.incarnation
            packet.origin_b = hot.origin_tag if hot.origin_tag else message.tag
    if route.subs and take_origin(hot, packet.origin_kind, packet.origin_a, packet.origin_b):
        deliver_local(hot, publisher, route, packet)
    if not route.remote and retained_partition < 0:
        return
    if message is None and not hot.leased:
        note_drop(hot, publisher, "no_lease", packet.topic, packet)
        hot.dropped_no_lease += 1  # QoS 1/2 was parked before, or is the core's own and is held in the batch
        return
    if route.edges or route.partitions or retained_partition >= 0:
        record = record_of(hot, packet, message.tag if message is not None else 0)
        for peer in route.edges:
            send_to_edge(hot, peer, record, message)
        if retained_partition >= 0 and hot.owner_block:
            _send_owned(hot, route, record, message, retained_partition)
            retained_partition = -1
        elif route.partitions:
            send_to_partitions(hot, route, record, message)
        if retained_partition >= 0 and (message is not None or retained_partition not in route.partitions):
            send_to_partition(hot, retained_partition, record, message, b"")
    for group in route.groups:
        _pick(hot, publisher, route, packet, message, group)


def _send_owned(
    hot: LoopState, route: Route, record: bytes, message: PendingAck | None, retained_partition: cython.int
) -> None:
    """Send a message with its owner to its retained partition only.

    QoS 1 and 2 are sent to no other partition in the same call (``edge/publishing/sending.py``), so one record is kept.
    """
    partition: cython.int
    send_to_partition(hot, retained_partition, with_owner(record, hot.owner_block), message, b"")
    for partition in route.partitions:
        if partition != retained_partition:
            send_to_partition(hot, partition, record, message, b"")


def fan_out_run(
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
    """Send consecutive QoS 0 packets of one topic to all destinations; arguments as of ``deliver_run``."""
    packet: PublishView = hot.packet
    record: bytes
    peer: LoopPeer
    if route.subs:
        deliver_run(hot, publisher, route, version, data, start, end, packet_max, count)
    if not route.remote:
        return
    if not hot.leased:
        hot.dropped_no_lease += count
        note_drops(hot, publisher, "no_lease", route.topic, count)
        return
    for peer in route.edges:
        if peer.dead:
            hot.dropped_peer += count
            note_drops(hot, publisher, "peer_gone", route.topic, count)
        else:
            append_run(hot, peer, version, route.topic, data, start, end - start)
            hot.forwarded_out += count
    if not route.partitions and not route.groups:
        return
    packet.topic = route.topic
    _of_session(packet, publisher)
    while start < end:
        start = load_plain(packet, data, start, version == 5)
        if route.partitions:
            record = record_of(hot, packet, 0)
            send_to_partitions(hot, route, record, None)
        for group in route.groups:
            _pick(hot, publisher, route, packet, None, group)


def _of_session(packet: PublishView, publisher: LoopConnection | None) -> None:
    packet.origin_kind = 0
    packet.session = publisher.session if publisher is not None else 0
    packet.owner_epoch = publisher.owner_epoch if publisher is not None else 0


def _pick(
    hot: LoopState,
    publisher: LoopConnection | None,
    route: Route,
    packet: PublishView,
    message: PendingAck | None,
    group: ShareGroup,
) -> None:
    if was_picked(hot, group.share, packet.origin_kind, packet.origin_a, packet.origin_b):
        hot.dropped_repeated += 1
        return
    hot.iteration_bytes += PICK_BYTES
    chosen = hot.handler.pick(group, route, publisher, packet.topic, packet.qos)
    if chosen is None:
        hot.dropped_no_pick += 1
        note_drop(hot, publisher, "no_subscriber_took", packet.topic, packet)
    elif isinstance(chosen, Sub):
        if message is not None:
            message.delivered = True
        deliver_pick(hot, chosen, packet, group.share)
    elif message is None:
        _send_pick(hot, chosen, record_of(hot, packet, 0), None)
    else:
        copy = new_message(hot, packet.qos, None, 0)
        copy.parent = message
        copy.group = group
        copy.record = record_of(hot, packet, copy.tag)
        if packet.traced:
            trace_copy(hot, packet, copy, group.share)
        message.waiting += 1
        _send_pick(hot, chosen, copy.record, copy)


def deliver_pick(hot: LoopState, sub: Sub, packet: PublishView, share: bytes) -> None:
    """Deliver a group's copy to its selected local member, and keep it until the member has it."""
    conn: LoopConnection = sub.conn
    outbound: OutboundWindow
    qos: cython.int = packet.qos if packet.qos < sub.qos else sub.qos
    inflight: cython.int = conn.outbound.inflight if conn.outbound is not None else 0
    if conn.closed:
        hot.dropped_closed += 1
        note_drop(hot, conn, "closed", packet.topic, packet)
        return
    note_pick(hot, share, packet.origin_kind, packet.origin_a, packet.origin_b)
    retain: cython.bint = packet.retain and sub.retain_as_published
    if not deliver_to(hot, conn, packet, qos, retain, sub.identifiers) or qos == 0:
        return
    outbound = conn.outbound  # type: ignore[assignment]  # deliver_to created it
    sent: cython.bint = outbound.inflight > inflight
    if sent and qos == 2:
        return
    record: bytes = record_of(hot, packet, 0)
    if outbound.picks_bytes + len(record) > hot.pending_bytes_max:
        hot.picks_not_kept += 1
    elif sent:
        keep_pick(outbound, 1, share, record, hot.now_ns)
    else:
        assert outbound.pending is not None  # the copy was not sent: it is pending there
        waiting = outbound.pending.pop()
        outbound.pending.append((*waiting[:4], share, record, waiting[6]))
        outbound.picks_bytes += len(record)


def _send_pick(hot: LoopState, remote: Remote, record: bytes, copy: PendingAck | None) -> None:
    peer: LoopPeer | None = remote.peer
    if copy is not None:
        copy.pick = remote
    if peer is None:
        send_to_partition(hot, remote.partition, record, copy, remote.share)
    elif peer.dead:
        if copy is None:
            hot.dropped_peer += 1
            note_drop(hot, None, "peer_gone", topic_of(record), None)
        else:
            copy.waiting += 1
            handle_refusal(hot, copy, SERVER_UNAVAILABLE)
    else:
        if copy is not None:
            copy.waiting += 1
            peer.picks[copy.tag] = copy
        append_record(hot, peer, record, (), remote.share)


def handle_refusal(hot: LoopState, copy: PendingAck, reason_code: cython.int) -> None:
    """Handle the refusal or failure of a pick: the core selects another, until none is left [MQTT-4.8.2-5].

    With none left, the message is refused if a member could not receive it, and dropped if there is no member.
    """
    if reason_code in (QUOTA_EXCEEDED, SERVER_BUSY):  # a destination with members, but without capacity
        copy.reason_code = reason_code
    chosen = hot.handler.refused(copy, copy.pick, reason_code)
    if chosen is not copy:  # else the core must record its choice first
        redispatch(hot, copy, chosen)


def redispatch(hot: LoopState, copy: PendingAck, chosen: object) -> None:
    """Send a refused copy to the destination that the core selected instead, None for none."""
    remote: Remote
    if chosen is None:
        if copy.reason_code == 0:
            hot.dropped_no_pick += 1
            note_drop(hot, None, "no_subscriber_took", topic_of(copy.record), None)
    elif isinstance(chosen, Sub):
        load_record(hot.second, copy.record)
        assert copy.group is not None  # set for every copy of a group
        deliver_pick(hot, chosen, hot.second, copy.group.share)
        copy.reason_code = 0
        copy.delivered = True
    else:
        copy.waiting -= 1
        # Other messages were sent since it was numbered: a partition treats a lower number as a repeat.
        hot.tags += 1
        copy.tag = hot.tags
        copy.record = with_tag(hot, copy.record, copy.tag)
        remote = chosen  # type: ignore[assignment]  # the core returns a Sub, a Remote or None
        _send_pick(hot, remote, copy.record, copy)
        return
    destination_done(hot, copy, 0)
