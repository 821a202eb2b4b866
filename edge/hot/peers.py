# mypy: disable-error-code="no-any-return, assignment, union-attr"
"""Messages towards other nodes: one PUBLISH batch per peer and round, and an outbox per partition.

Decides which record a message becomes (formats: ``wire/messages/batches.py``), which peer is a partition's, what is
kept until it is acknowledged and what is sent again. A link is never dropped from: when one has no room, its publishers
are parked before they are read. Who counts the acknowledgements is ``edge/hot/acks.py``.
Source: docs/protocol.md rules 4.3, 4.5, 4.6; docs/adr/0005-wire-format.md.
"""

from collections import deque
from typing import TypeAlias

import cython

from edge.hot.buffers import Buffer
from edge.hot.state import Conn, HotState, Message, Outbox, Packet, Peer, Route
from wire.links.link import LinkFull

if not cython.compiled:
    from edge.hot.buffers import (
        copy_bytes,
        copy_span,
        get16,
        get32,
        get64,
        give_buffer,
        put16,
        put32,
        put64,
        reserve,
        take_buffer,
        take_bytes,
    )
    from edge.hot.encode import copy_plain
    from edge.hot.layout import (
        FRAME_BYTES,
        MESSAGE_EXPIRY_AT,
        MESSAGE_FLAGS_AT,
        MESSAGE_HEAD,
        MESSAGE_ORIGIN_A_AT,
        MESSAGE_ORIGIN_B_AT,
        MESSAGE_ORIGIN_KIND_AT,
        MESSAGE_OWNER_EPOCH_AT,
        MESSAGE_PARTITIONS_AT,
        MESSAGE_PAYLOAD_BYTES_AT,
        MESSAGE_PROPERTY_BYTES_AT,
        MESSAGE_RECORD,
        MESSAGE_SESSION_AT,
        MESSAGE_TAG_AT,
        MESSAGE_TOPIC_BYTES_AT,
        MESSAGE_VERSION_AT,
        NO_EXPIRY,
        PLACE_BYTES,
        PLACE_EPOCH_AT,
        PUBLISH,
        PUBLISH_ACK,
        PUBLISH_ACK_BYTES,
        PUSH_ACK,
        PUSH_ACK_BYTES,
        QOS_BITS,
        REPEAT_FLAG,
        RETAIN_FLAG,
        RUN_FLAGS_AT,
        RUN_HEAD,
        RUN_PACKET_BYTES_AT,
        RUN_RECORD,
        RUN_TOPIC_BYTES_AT,
        RUN_VERSION_AT,
        SHARE_FLAG,
    )
    from edge.hot.output import mark_dirty, unpark
    from edge.hot.state import PARK_PEER

__all__: list[str] = []

if not cython.compiled:  # compiled, these are C constants: peers.pxd
    BATCH_BYTES = 1024 * 1024  # a batch beyond it becomes a frame at once, if there is a lease
    SECOND_NS = 1_000_000_000

Partitions = tuple[int, ...]  # named, because Cython reads the spelled-out forms as C tuples
Messages: TypeAlias = "list[Message] | None"


# -- records


def append_run(
    hot: HotState,
    peer: Peer,
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
    hot.round_bytes += count
    _appended(hot, peer, RUN_HEAD + topic_bytes + count)


def record_of(hot: HotState, packet: Packet, tag: cython.ulonglong) -> bytes:
    """Return the message at hand as a MSG record without partitions and share."""
    record: Buffer = hot.scratch
    topic: bytes = packet.topic
    topic_bytes: cython.Py_ssize_t = len(topic)
    size: cython.Py_ssize_t = MESSAGE_HEAD + topic_bytes + packet.plain_bytes + packet.payload_bytes
    record.start = 0
    record.end = 0
    reserve(record, size)
    record.data[0] = MESSAGE_RECORD
    record.data[MESSAGE_VERSION_AT] = 5 if packet.version == 5 else 4
    record.data[MESSAGE_FLAGS_AT] = packet.qos | (RETAIN_FLAG if packet.retain else 0)
    record.data[MESSAGE_ORIGIN_KIND_AT] = packet.origin_kind
    put64(record, MESSAGE_TAG_AT, tag)
    put64(record, MESSAGE_ORIGIN_A_AT, packet.origin_a if packet.origin_kind else hot.incarnation)
    put64(record, MESSAGE_ORIGIN_B_AT, packet.origin_b if packet.origin_kind else hot.named if hot.named else tag)
    put64(record, MESSAGE_SESSION_AT, packet.session)
    put64(record, MESSAGE_OWNER_EPOCH_AT, packet.owner_epoch)
    put32(record, MESSAGE_EXPIRY_AT, packet.expiry_s)
    put16(record, MESSAGE_PARTITIONS_AT, 0)
    put16(record, MESSAGE_TOPIC_BYTES_AT, topic_bytes)
    put32(record, MESSAGE_PROPERTY_BYTES_AT, packet.plain_bytes)
    put32(record, MESSAGE_PAYLOAD_BYTES_AT, packet.payload_bytes)
    copy_bytes(record, MESSAGE_HEAD, topic)
    if packet.plain_bytes > 0:
        copy_plain(record, MESSAGE_HEAD + topic_bytes, packet)
    at: cython.Py_ssize_t = MESSAGE_HEAD + topic_bytes + packet.plain_bytes
    copy_span(record, at, packet.data, packet.payload_at, packet.payload_bytes)
    record.end = size
    return take_bytes(record, size)


def renumbered(hot: HotState, record: bytes, tag: cython.ulonglong) -> bytes:
    """Return the record under another number, which is its origin too if the former one was."""
    data: cython.p_uchar = record
    again: Buffer = hot.scratch
    size: cython.Py_ssize_t = len(record)
    again.start = 0
    again.end = 0
    reserve(again, size)
    copy_span(again, 0, record, 0, size)
    put64(again, MESSAGE_TAG_AT, tag)
    if record[MESSAGE_ORIGIN_KIND_AT] == 0 and get64(data, MESSAGE_ORIGIN_B_AT) == get64(data, MESSAGE_TAG_AT):
        put64(again, MESSAGE_ORIGIN_B_AT, tag)
    again.end = size
    return take_bytes(again, size)


def append_record(
    hot: HotState, peer: Peer, record: bytes, flags: cython.int, partitions: Partitions, share: bytes
) -> None:
    """Append a MSG record, with the partitions it is for, as of which partition_epoch, and the shared pick it is."""
    batch: Buffer = _batch_of(hot, peer)
    count: cython.Py_ssize_t = len(partitions)
    size: cython.Py_ssize_t = len(record) + PLACE_BYTES * count
    partition: cython.int
    if share:
        flags |= SHARE_FLAG
        size += 2 + len(share)
    at: cython.Py_ssize_t = reserve(batch, size)
    copy_span(batch, at, record, 0, MESSAGE_HEAD)
    batch.data[at + MESSAGE_FLAGS_AT] |= flags
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
    hot.round_bytes += size
    _appended(hot, peer, size)


def load_record(packet: Packet, record: bytes) -> None:
    """Load a record made by ``record_of``, to deliver it to a session here after all."""
    packet.keep = record
    packet.data = record
    packet.version = record[MESSAGE_VERSION_AT]
    packet.qos = record[MESSAGE_FLAGS_AT] & QOS_BITS
    packet.retain = record[MESSAGE_FLAGS_AT] & RETAIN_FLAG != 0
    packet.dup = False
    packet.pending_key = -1
    packet.expiry_s = get32(packet.data, MESSAGE_EXPIRY_AT)
    packet.alias_at = -1
    packet.expiry_at = -1
    topic_bytes: cython.Py_ssize_t = get16(packet.data, MESSAGE_TOPIC_BYTES_AT)
    packet.topic = record[MESSAGE_HEAD : MESSAGE_HEAD + topic_bytes]
    packet.origin_kind = record[MESSAGE_ORIGIN_KIND_AT]
    packet.origin_a = get64(packet.data, MESSAGE_ORIGIN_A_AT)
    packet.origin_b = get64(packet.data, MESSAGE_ORIGIN_B_AT)
    packet.properties_at = MESSAGE_HEAD + topic_bytes
    packet.properties_bytes = get32(packet.data, MESSAGE_PROPERTY_BYTES_AT)
    packet.plain_bytes = packet.properties_bytes
    packet.payload_at = packet.properties_at + packet.properties_bytes
    packet.payload_bytes = get32(packet.data, MESSAGE_PAYLOAD_BYTES_AT)


# -- routes


def find_targets(hot: HotState, route: Route) -> None:
    """Group the route's partitions by their present primary."""
    by_peer: dict[Peer, list[int]] = {}
    partition: cython.int
    for partition in route.partitions:
        peer = _primary_of(hot, partition)
        if peer is not None:
            by_peer.setdefault(peer, []).append(partition)
    route.targets = [(peer, tuple(partitions)) for peer, partitions in by_peer.items()]
    route.targets_version = hot.primaries_version


def route_is_full(hot: HotState, publisher: Conn, route: Route) -> cython.bint:
    """Park the publisher if a peer of the route, or the outboxes, have no room."""
    full: cython.bint = False
    peer: Peer
    if route.partitions and hot.outbox_bytes > hot.outbox_bytes_max:
        hot.outbox_waiters.append(publisher)
        full = True
    elif hot.full_peers > 0:
        if route.targets_version != hot.primaries_version:
            find_targets(hot, route)
        for peer in route.edges:
            full = full or _wait_for_peer(publisher, peer)
        for target in route.targets:
            full = full or _wait_for_peer(publisher, target[0])
    if full:
        publisher.parked |= PARK_PEER
        hot.parked_peer += 1
        mark_dirty(hot, publisher)
    return full


def _wait_for_peer(publisher: Conn, peer: Peer) -> cython.bint:
    if peer.full and not peer.struck:
        peer.waiters.append(publisher)
        return True
    return False


# -- sending


def list_peer(hot: HotState, peer: Peer) -> None:
    """Have the peer's batches flushed this round."""
    if not peer.listed:
        peer.listed = True
        hot.busy_peers.append(peer)


def _batch_of(hot: HotState, peer: Peer) -> Buffer:
    if peer.batch is None:
        peer.batch = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.batch


def publish_acks_of(hot: HotState, peer: Peer) -> Buffer:
    """Return the peer's PUBLISH_ACK payload of this round, for appending."""
    if peer.publish_acks is None:
        peer.publish_acks = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.publish_acks


def push_acks_of(hot: HotState, peer: Peer) -> Buffer:
    """Return the peer's PUSH_ACK payload of this round, for appending."""
    if peer.push_acks is None:
        peer.push_acks = take_buffer(hot.pool)
    list_peer(hot, peer)
    return peer.push_acks


def _appended(hot: HotState, peer: Peer, count: cython.Py_ssize_t) -> None:
    peer.room -= count
    if peer.room < hot.peer_low_bytes and not peer.full:
        peer.full = True
        hot.full_peers += 1
    if peer.batch.end - peer.batch.start > BATCH_BYTES:
        _cut_batch(hot, peer, count)


def _cut_batch(hot: HotState, peer: Peer, count: cython.Py_ssize_t) -> None:
    """Make frames of a long batch; where its last record, of ``count`` bytes, fits no more, that begins the next one.

    Without a lease the frames wait, of what the core publishes itself: a message per client at most.
    """
    batch: Buffer = peer.batch
    earlier: cython.Py_ssize_t = batch.end - batch.start - count
    if earlier + count > FRAME_BYTES and earlier > 0:
        # Its messages are done with the frame behind it: a later one is never taken before it.
        send_frame(hot, peer, PUBLISH, take_bytes(batch, earlier), None)
    if hot.leased:
        _flush_publish(hot, peer)


def send_to_edge(hot: HotState, peer: Peer, record: bytes, message: Message | None) -> None:
    """Send to an edge; with a message, it is done there when the link says TAKEN for the frame."""
    if peer.struck:
        hot.dropped_peer += 1
        return
    if message is not None:
        peer.batch_messages.append(message)
        message.waiting += 1
    append_record(hot, peer, record, 0, (), b"")


def send_to_partitions(hot: HotState, route: Route, record: bytes, message: Message | None) -> None:
    """Send to every partition of the route: one record per primary."""
    outbox: Outbox
    partition: cython.int
    if route.targets_version != hot.primaries_version:
        find_targets(hot, route)
    if message is None:
        covered: cython.Py_ssize_t = 0
        for target in route.targets:
            append_record(hot, target[0], record, 0, target[1], b"")
            covered += len(target[1])
        hot.dropped_no_primary += len(route.partitions) - covered
        return
    simple: cython.bint = True
    for partition in route.partitions:
        outbox = _outbox(hot, partition)
        if outbox.held or hot.primaries[partition] is None:
            simple = False
    if not simple:
        for partition in route.partitions:
            send_to_partition(hot, partition, record, message, b"")
        return
    for partition in route.partitions:
        _keep(hot, _outbox(hot, partition), record, message)
    message.sent = True
    for target in route.targets:
        append_record(hot, target[0], record, 0, target[1], b"")


def send_to_partition(
    hot: HotState, partition: cython.int, record: bytes, message: Message | None, share: bytes
) -> None:
    """Send to one partition: its register, a shared pick, or one whose outbox is held."""
    peer: Peer | None = _primary_of(hot, partition)
    if message is None:
        if peer is None:
            hot.dropped_no_primary += 1
        else:
            append_record(hot, peer, record, 0, (partition,), share)
        return
    outbox: Outbox = _outbox(hot, partition)
    if message.tag in outbox.messages:
        return  # the register's partition is among the subscribers' as well: one copy, one acknowledgement
    _keep(hot, outbox, record, message)
    if outbox.held or peer is None:
        outbox.held = True
        outbox.unsent.append(message)
        return
    message.sent = True
    append_record(hot, peer, record, 0, (partition,), share)


def _primary_of(hot: HotState, partition: cython.int) -> Peer | None:
    if partition < 0 or partition >= len(hot.primaries):  # compiled, list indices are not checked
        raise ValueError(f"partition {partition} of {len(hot.primaries)}")
    return hot.primaries[partition]


def _outbox(hot: HotState, partition: cython.int) -> Outbox:
    outbox: Outbox | None = hot.outboxes[partition]
    if outbox is None:
        outbox = Outbox()
        hot.outboxes[partition] = outbox
    return outbox


def _keep(hot: HotState, outbox: Outbox, record: bytes, message: Message) -> None:
    outbox.messages[message.tag] = message
    message.record = record
    message.waiting += 1
    hot.outbox_bytes += len(record)


def leave_outbox(hot: HotState, message: Message) -> None:
    """A partition finished a message: forget it there, and let publishers go on when there is room again."""
    hot.outbox_bytes -= len(message.record)
    if hot.outbox_waiters and hot.outbox_bytes < hot.outbox_bytes_max // 2:
        waiters = hot.outbox_waiters
        hot.outbox_waiters = []
        for conn in waiters:
            unpark(hot, conn, PARK_PEER)


def note_former(hot: HotState, outbox: Outbox, former: Peer) -> None:
    """A primary is replaced: what it was sent it may still acknowledge, for its successor has that as well."""
    lowest: cython.ulonglong = next(iter(outbox.messages), hot.tags + 1)
    sent: cython.ulonglong = outbox.unsent[0].tag - 1 if outbox.unsent else hot.tags
    known: dict[Peer, int] = outbox.former if outbox.former is not None else {}
    outbox.former = {peer: tag for peer, tag in known.items() if tag >= lowest and not peer.struck}
    outbox.former[former] = max(sent, known.get(former, 0))


def pump_outboxes(hot: HotState) -> None:
    """Go on with replays as far as the new primaries' links have room; once per round while there are any."""
    still: list[int] = []
    outbox: Outbox | None
    for partition in hot.pumping:
        outbox = hot.outboxes[partition]
        if outbox is not None and not _pump(hot, partition, outbox):
            still.append(partition)
    hot.pumping = still


def _pump(hot: HotState, partition: cython.int, outbox: Outbox) -> cython.bint:
    peer: Peer | None = outbox.target
    message: Message
    if peer is None or peer.struck:
        return True  # the core names the next one
    while outbox.unsent:
        if peer.full:
            return False
        message = outbox.unsent.popleft()
        if message.tag in outbox.messages:
            append_record(
                hot,
                peer,
                _aged(hot, message),
                REPEAT_FLAG if message.sent else 0,
                (partition,),
                message.pick.share if message.pick is not None else b"",
            )
            message.sent = True
    outbox.held = False
    outbox.target = None
    return True


def _aged(hot: HotState, message: Message) -> bytes:
    """The record with the expiry that is left [MQTT-3.3.2-6]."""
    record: bytes = message.record
    expiry_s: cython.ulong = get32(record, MESSAGE_EXPIRY_AT)
    waited_s = (hot.now_ns - message.at_ns) // SECOND_NS
    if expiry_s == NO_EXPIRY or waited_s == 0:
        return record
    left_s: int = max(0, int(expiry_s) - waited_s)
    return record[:MESSAGE_EXPIRY_AT] + left_s.to_bytes(4, "big") + record[MESSAGE_EXPIRY_AT + 4 :]


# -- frames


def flush_batches(hot: HotState) -> None:
    """Make frames of this round's batches; without a lease they wait, a fenced node sends nothing."""
    if not hot.leased:
        return
    peer: Peer
    busy = hot.busy_peers
    hot.busy_peers = []
    for peer in busy:
        peer.listed = False
        if not peer.struck:
            flush_peer(hot, peer)


def flush_peer(hot: HotState, peer: Peer) -> None:
    """Make frames of what waits for one peer."""
    _flush_publish(hot, peer)
    if peer.publish_acks is not None:
        _send_acks(hot, peer, PUBLISH_ACK, PUBLISH_ACK_BYTES, _payload(hot, peer.publish_acks))
        peer.publish_acks = None
    if peer.push_acks is not None:
        _send_acks(hot, peer, PUSH_ACK, PUSH_ACK_BYTES, _payload(hot, peer.push_acks))
        peer.push_acks = None
    note_room(hot, peer)


def _send_acks(hot: HotState, peer: Peer, kind: cython.int, record_bytes: cython.Py_ssize_t, payload: bytes) -> None:
    """Send acknowledgements in frames of whole records; only without a lease they gather to more than one."""
    most: cython.Py_ssize_t = BATCH_BYTES // record_bytes * record_bytes
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(payload)
    while end - at > most:
        send_frame(hot, peer, kind, payload[at : at + most], None)
        at += most
    send_frame(hot, peer, kind, payload[at:] if at > 0 else payload, None)


def _payload(hot: HotState, batch: Buffer) -> bytes:
    payload: bytes = take_bytes(batch, batch.end - batch.start)
    give_buffer(hot.pool, batch)
    return payload


def _flush_publish(hot: HotState, peer: Peer) -> None:
    if peer.batch is not None:
        messages = peer.batch_messages
        peer.batch_messages = []
        send_frame(hot, peer, PUBLISH, _payload(hot, peer.batch), messages)
        peer.batch = None


def send_frame(hot: HotState, peer: Peer, kind: cython.int, payload: bytes, messages: Messages) -> None:
    """Give a frame to the link; one that it has no room for waits here, in order, and so does any without a lease."""
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


def note_room(hot: HotState, peer: Peer) -> None:
    """Look at the link's room again: send what was blocked, release the publishers when there is enough."""
    if peer.blocked and not hot.leased:
        list_peer(hot, peer)  # looked at again with the first batches under a lease
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
    if room < hot.peer_low_bytes:
        if not peer.full:
            peer.full = True
            hot.full_peers += 1
    elif peer.full and room >= 2 * hot.peer_low_bytes:
        release_peer(hot, peer)


def release_peer(hot: HotState, peer: Peer) -> None:
    """The peer has room, or is dead: its waiters go on."""
    if peer.full:
        peer.full = False
        hot.full_peers -= 1
    waiters = peer.waiters
    peer.waiters = []
    for conn in waiters:
        unpark(hot, conn, PARK_PEER)
