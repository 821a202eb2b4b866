"""Other nodes from the edge core's view: links, primaries of partitions, peers for a session's acknowledgements.

Third base class of ``BrokerLoop`` (``edge/loop/broker_loop.py``). Source: docs/protocol.md rules 4.3 to 4.6.
"""

from collections import deque

import cython

from edge.loop.publications import PublishMethods
from edge.loop.state import LoopConnection, LoopPeer, PartitionOutbox, PendingAck
from wire.links.link import OPERATOR_BYTES_MAX, RESEND_BYTES_MAX, LinkCore
from wire.links.silence import SILENCE_S
from wire.messages.hello import TIER_OPERATOR, TIER_STORAGE

if not cython.compiled:
    from edge.loop.acks import destination_done
    from edge.loop.batches import flush_peer, release_peer
    from edge.loop.fanout import handle_refusal
    from edge.loop.layout import SERVER_UNAVAILABLE, SUPERSEDED
    from edge.loop.outboxes import add_former, leave_outbox
    from edge.loop.output import mark_dirty, unpark
    from edge.loop.pushes import flush_push_acks
    from edge.loop.refused_topics import end_behind_refused
    from edge.loop.state import PARK_HANDLER

__all__ = ["Peering"]

# Unacknowledged bytes to a storage node: all CONNECTs and acknowledgements here wait behind them, and a busy node
# handles a few thousand messages per second. With less, publishers of long messages would wait for each round trip.
STORAGE_UNACKED_BYTES = 256 * 1024
LINK_SILENCE_NS = int(SILENCE_S * 1_000_000_000)


class Peering(PublishMethods):
    """Links, outboxes of partitions, primaries of sessions."""

    def add_peer(self, node: int, tier: str, incarnation: int) -> LoopPeer:
        """Create a peer with a new LinkCore; retire the older incarnation first."""
        room = OPERATOR_BYTES_MAX if tier == TIER_OPERATOR else RESEND_BYTES_MAX
        low = room - STORAGE_UNACKED_BYTES if tier == TIER_STORAGE else self.peer_low_bytes
        peer = LoopPeer(node, tier, incarnation, LinkCore(room), low)
        self.peers.append(peer)
        return peer

    def unbind_link(self, peer: LoopPeer) -> None:
        """Close the older connection of an incarnation before a newer one is bound and TAKEN is sent."""
        older = peer.conn
        if older is not None:
            older.peer = None
            peer.conn = None
            peer.link.disconnected()
            self.close(older, linger=False)

    def bind_link(self, conn: LoopConnection, peer: LoopPeer, peer_taken: int) -> None:
        """Bind a connection to a peer after HELLO: resend unacknowledged frames, close an older connection.

        Raises:
            LinkError: From ``LinkCore.connected``; retire the peer.
        """
        older = peer.conn
        peer.link.connected(peer_taken)
        peer.conn = conn
        conn.peer = peer
        conn.silence_ns = LINK_SILENCE_NS  # a peer without power closes no connection
        if older is not None and not older.closed:
            older.peer = None
            self.close(older, linger=False)
        unpark(self, conn, PARK_HANDLER)
        mark_dirty(self, conn)

    def control(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Send one numbered frame behind earlier published messages. Kept while the link is down.

        Raises:
            LinkFull: The frame was not sent.
        """
        flush_peer(self, peer) if self.leased else None
        number = peer.link.send(kind, payload)
        peer.room = peer.link.room()
        if peer.conn is not None:
            mark_dirty(self, peer.conn)
        _ = number

    def retire_peer(self, peer: LoopPeer) -> None:
        """Remove an incarnation that the map declared dead: finish its messages as an edge, close its link.

        Messages to partitions stay in their outboxes until ``replay_partition``.
        """
        if peer.dead:
            return
        peer.dead = True
        if peer in self.peers:
            self.peers.remove(peer)
        for partition, primary in enumerate(self.primaries):
            if primary is peer:
                self.set_primary(partition, None)
        release_peer(self, peer)
        batches = [messages for _, messages in peer.inflight]
        batches += [messages for _, _, messages in peer.blocked if messages]
        batches.append(peer.batch_messages)
        peer.inflight.clear()
        peer.blocked.clear()
        peer.batch_messages = []
        peer.batch = None
        peer.publish_acks = None
        peer.push_acks = None
        message: PendingAck
        for messages in batches:
            for message in messages:
                destination_done(self, message, 0)
        picks = list(peer.picks.values())
        peer.picks.clear()
        for message in picks:
            handle_refusal(self, message, SERVER_UNAVAILABLE)
        if peer.conn is not None:
            self.close(peer.conn, linger=False)

    def set_partitions(self, count: int) -> None:
        """Set the number of partitions of the map; it never decreases."""
        missing = count - len(self.primaries)
        if missing > 0:
            self.primaries += [None] * missing
            self.epochs += [0] * missing
            self.outboxes += [None] * missing

    def set_lease_length(self, lease_ns: int) -> None:
        """Set the length of a lease of the map: rule 4.12 counts in leases."""
        self.lease_ns = lease_ns

    def set_epoch(self, partition: int, partition_epoch: int) -> None:
        """Set the epoch of a partition: a primary refuses messages with an earlier epoch.

        Call it before ``set_primary`` and ``replay_partition``, which resend messages of the former epoch.
        """
        self.epochs[partition] = partition_epoch

    def set_primary(self, partition: int, peer: LoopPeer | None) -> None:
        """Set another primary of the map, or none. The outbox is held until ``replay_partition``."""
        outbox: PartitionOutbox | None = self.outboxes[partition]
        former: LoopPeer | None = self.primaries[partition]
        if former is peer:
            return
        self.primaries[partition] = peer
        self.primaries_version += 1
        if outbox is None:
            outbox = PartitionOutbox()
            self.outboxes[partition] = outbox
        if former is not None:
            add_former(self, outbox, former)
        # No message may overtake unacknowledged ones of the former primary; without those there is no need to hold.
        if not outbox.messages and peer is not None:
            outbox.held = False
            outbox.unsent.clear()
        elif not outbox.held:
            outbox.held = True
        outbox.target = None

    def replay_partition(self, partition: int, peer: LoopPeer) -> int:
        """Send every unacknowledged message of the partition to its new primary in order.

        Later messages queue behind them. Messages that a durable publisher will repeat on its next connection are
        removed: the new primary may not know that connection, and would accept them behind newer messages.

        Returns:
            The number of messages to send.
        """
        outbox: PartitionOutbox | None = self.outboxes[partition]
        if outbox is None:
            return 0
        if self.primaries[partition] is not peer:
            self.set_primary(partition, peer)
        outbox.held = True
        outbox.target = peer
        message: PendingAck
        for message in list(outbox.messages.values()):
            end_behind_refused(self, message)
        for message in list(outbox.messages.values()):
            if _will_repeat(message):
                del outbox.messages[message.tag]
                leave_outbox(self, message)
                destination_done(self, message, SUPERSEDED)  # no client receives it
        outbox.unsent = deque(outbox.messages.values())
        self.pumping[partition] = True
        return len(outbox.unsent)

    def owes_partitions(self) -> bool:
        """Return whether messages to partitions are unacknowledged."""
        return self.outbox_bytes > 0

    def lowest_tag(self, partition: int) -> int:
        """Return the watermark of this edge's origins: every lower tag is finished at that partition."""
        outbox: PartitionOutbox | None = self.outboxes[partition]
        if outbox is None or not outbox.messages:
            return self.tags + 1
        return next(iter(outbox.messages))

    def set_primary_of(self, conn: LoopConnection, peer: LoopPeer | None) -> None:
        """Set the peer for this session's PUSH_ACKs. None: they wait (at most one per open entry)."""
        conn.peer = peer
        flush_push_acks(self, conn)

    def open_pushes(self, conn: LoopConnection) -> list[tuple[int, int, int]]:
        """Return (session_seq, packet identifier, state) of unacknowledged entries: 1, 2 PUBLISH; 3 PUBREL."""
        if conn.outbound is None or conn.outbound.pushes is None:
            return []
        return [
            (session_seq, identifier, state) for identifier, (session_seq, _, state) in conn.outbound.pushes.items()
        ]


def _will_repeat(message: PendingAck) -> bool:
    """Return whether the publisher of a durable session disconnected: it repeats unacknowledged messages."""
    first: PendingAck = message if message.parent is None else message.parent
    conn: LoopConnection | None = first.conn
    return conn is not None and conn.closed and conn.session != 0
