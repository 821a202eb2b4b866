"""Sending of messages to other nodes, with an outbox per partition of unacknowledged ones.

Decides the peer of a partition, the messages kept until their acknowledgement, and the replay to a new primary. A
publisher is parked before it is read when a peer of its route, or the outboxes, are full. ``edge/loop/acks.py`` counts
acknowledgements. Source: docs/protocol.md rules 4.3, 4.5, 4.6.
"""

import cython

from edge.loop.state import LoopConnection, LoopPeer, LoopState, PartitionOutbox, PendingAck, Route

if not cython.compiled:
    from edge.loop.batches import append_record
    from edge.loop.notes import note_drop
    from edge.loop.output import mark_dirty, unpark
    from edge.loop.records import topic_of, with_remaining_expiry
    from edge.loop.state import PARK_PEER

__all__: list[str] = []


def find_targets(hot: LoopState, route: Route) -> None:
    """Group the route's partitions by their current primary."""
    by_peer: dict[LoopPeer, list[int]] = {}
    partition: cython.int
    for partition in route.partitions:
        peer = _primary_of(hot, partition)
        if peer is not None:
            by_peer.setdefault(peer, []).append(partition)
    route.targets = [(peer, tuple(partitions)) for peer, partitions in by_peer.items()]
    route.targets_version = hot.primaries_version


def park_if_peers_full(hot: LoopState, publisher: LoopConnection, route: Route) -> cython.bint:
    """Park the publisher if a peer of the route, or the outboxes, are full; return whether it is parked."""
    full: cython.bint = False
    peer: LoopPeer
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
        _park(hot, publisher)
    return full


def park_if_primary_full(hot: LoopState, publisher: LoopConnection, partition: cython.int) -> None:
    """Park the publisher of a retained message if its partition's primary is full; the message is still accepted.

    No Route names that partition, so ``park_if_peers_full`` does not check it.
    """
    peer: LoopPeer | None = _primary_of(hot, partition)
    if peer is not None and not publisher.parked & PARK_PEER and _wait_for_peer(publisher, peer):
        _park(hot, publisher)


def _park(hot: LoopState, publisher: LoopConnection) -> None:
    publisher.parked |= PARK_PEER
    hot.parked_peer += 1
    mark_dirty(hot, publisher)


def _wait_for_peer(publisher: LoopConnection, peer: LoopPeer) -> cython.bint:
    if peer.full and not peer.dead:
        peer.waiters.append(publisher)
        return True
    return False


def send_to_edge(hot: LoopState, peer: LoopPeer, record: bytes, message: PendingAck | None) -> None:
    """Send to an edge; a message is acknowledged there by TAKEN of the link for its frame."""
    if peer.dead:
        hot.dropped_peer += 1
        note_drop(hot, None, "peer_gone", topic_of(record), None)
        return
    if message is not None:
        peer.batch_messages.append(message)
        message.waiting += 1
    append_record(hot, peer, record, (), b"")


def send_to_partitions(hot: LoopState, route: Route, record: bytes, message: PendingAck | None) -> None:
    """Send to every partition of the route: one record per primary."""
    outbox: PartitionOutbox
    partition: cython.int
    if route.targets_version != hot.primaries_version:
        find_targets(hot, route)
    if message is None:
        covered: cython.Py_ssize_t = 0
        for target in route.targets:
            append_record(hot, target[0], record, target[1], b"")
            covered += len(target[1])
        if covered < len(route.partitions):
            hot.dropped_no_primary += len(route.partitions) - covered
            note_drop(hot, None, "no_primary", route.topic, None)
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
    for target in route.targets:
        append_record(hot, target[0], record, target[1], b"")


def send_to_partition(
    hot: LoopState, partition: cython.int, record: bytes, message: PendingAck | None, share: bytes
) -> None:
    """Send to one partition: the retained one, a shared pick, or one whose outbox is held."""
    peer: LoopPeer | None = _primary_of(hot, partition)
    if message is None:
        if peer is None:
            hot.dropped_no_primary += 1
            note_drop(hot, None, "no_primary", topic_of(record), None)
        else:
            append_record(hot, peer, record, (partition,), share)
        return
    outbox: PartitionOutbox = _outbox(hot, partition)
    if message.tag in outbox.messages:
        return  # the retained partition also has subscribers: one copy, one acknowledgement
    _keep(hot, outbox, record, message)
    if outbox.held or peer is None:
        outbox.held = True
        outbox.unsent.append(message)
        return
    append_record(hot, peer, record, (partition,), share)


def _primary_of(hot: LoopState, partition: cython.int) -> LoopPeer | None:
    if partition < 0 or partition >= len(hot.primaries):  # compiled, list indices are not checked
        raise ValueError(f"partition {partition} does not exist, there are {len(hot.primaries)}")
    peer: LoopPeer | None = hot.primaries[partition]
    return peer


def _outbox(hot: LoopState, partition: cython.int) -> PartitionOutbox:
    outbox: PartitionOutbox | None = hot.outboxes[partition]
    if outbox is None:
        outbox = PartitionOutbox()
        hot.outboxes[partition] = outbox
    return outbox


def _keep(hot: LoopState, outbox: PartitionOutbox, record: bytes, message: PendingAck) -> None:
    outbox.messages[message.tag] = message
    message.record = record
    message.waiting += 1
    hot.outbox_bytes += len(record)


def leave_outbox(hot: LoopState, message: PendingAck) -> None:
    """Remove a message that a partition finished, and resume publishers when the outboxes have capacity."""
    hot.outbox_bytes -= len(message.record)
    assert hot.outbox_bytes >= 0
    if hot.outbox_waiters and hot.outbox_bytes < hot.outbox_bytes_max // 2:
        waiters = hot.outbox_waiters
        hot.outbox_waiters = []
        for conn in waiters:
            unpark(hot, conn, PARK_PEER)


def add_former(hot: LoopState, outbox: PartitionOutbox, former: LoopPeer) -> None:
    """Keep a replaced primary: it may still acknowledge its messages, because its successor has them too."""
    lowest: cython.ulonglong = next(iter(outbox.messages), hot.tags + 1)
    sent: cython.ulonglong = outbox.unsent[0].tag - 1 if outbox.unsent else hot.tags
    known: dict[LoopPeer, int] = outbox.former if outbox.former is not None else {}
    outbox.former = {peer: tag for peer, tag in known.items() if tag >= lowest and not peer.dead}
    outbox.former[former] = max(sent, known.get(former, 0))


def pump_outboxes(hot: LoopState) -> None:
    """Continue replays within the capacity of the new primaries' links; once per iteration while there are any."""
    still: dict[int, bool] = {}
    outbox: PartitionOutbox | None
    for partition in hot.pumping:
        outbox = hot.outboxes[partition]
        if outbox is not None and not _pump(hot, partition, outbox):
            still[partition] = True
    hot.pumping = still


def _pump(hot: LoopState, partition: cython.int, outbox: PartitionOutbox) -> cython.bint:
    peer: LoopPeer | None = outbox.target
    message: PendingAck
    if peer is None or peer.dead:
        return True  # the core sets the next one
    while outbox.unsent:
        if peer.full:
            return False
        message = outbox.unsent.popleft()
        if message.tag in outbox.messages:
            append_record(
                hot,
                peer,
                with_remaining_expiry(hot, message),
                (partition,),
                message.pick.share if message.pick is not None else b"",
            )
    outbox.held = False
    outbox.target = None
    return True
