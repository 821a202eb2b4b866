"""Copies for shared groups at local members, kept until acknowledged, for another member if the session ends before.

Copies that a member was sent at QoS 1 and did not acknowledge, and unsent ones, go to another member (section 4.8.2:
"SHOULD send the Application Message to another Client"). At QoS 2, sent copies do not [MQTT-4.8.2-5], nor refused ones
[MQTT-4.8.2-6]. The limit is that of messages pending for the client's window; above it copies are not kept. The core
selects the other member. Source: MQTT 5.0 section 4.8.2.
"""

import cython

from edge.loop.state import InboundPublish, LoopConnection, LoopState, OutboundWindow, PublishView
from wire.messages.batches import NO_EXPIRY

if not cython.compiled:
    from edge.loop.memory import release_pending
    from edge.loop.notes import note_drop
    from edge.loop.records import load_record

__all__ = ["read_pick"]

SECOND_NS = 1_000_000_000


def keep_pick(
    outbound: OutboundWindow, qos: cython.int, share: bytes, record: bytes, since_ns: cython.longlong
) -> cython.int:
    """Keep a copy that was sent with the latest packet identifier."""
    if qos != 1:
        return 0
    if outbound.picks is None:
        outbound.picks = {}
    identifier: cython.int = outbound.next_identifier - 1 if outbound.next_identifier > 1 else 65_535
    outbound.picks[identifier] = (share, record, since_ns)
    outbound.picks_bytes += len(record)
    return 0


def drop_pick(outbound: OutboundWindow, packet_identifier: cython.int) -> cython.int:
    """Delete a copy that the client acknowledged or refused."""
    kept = outbound.picks.pop(packet_identifier, None) if outbound.picks is not None else None
    if kept is not None:
        outbound.picks_bytes -= len(kept[1])
    return 0


def take_unacked_picks(hot: LoopState, conn: LoopConnection) -> list[tuple[bytes, InboundPublish]]:
    """Return and remove (share, message) of every copy for another member, in order."""
    outbound: OutboundWindow | None = conn.outbound
    found: list[tuple[bytes, InboundPublish]] = []
    if outbound is None or outbound.picks_bytes == 0:
        return found
    kept: list[tuple[bytes, bytes, int]] = list(outbound.picks.values()) if outbound.picks is not None else []
    if outbound.pending:
        kept += [(waiting[4], waiting[5], waiting[3]) for waiting in outbound.pending if waiting[5]]
        release_pending(hot, conn)
    outbound.picks = None
    outbound.picks_bytes = 0
    for share, record, since_ns in kept:
        publish = read_pick(hot, conn, record, since_ns)
        if publish is not None:
            found.append((share, publish))
    return found


def read_pick(hot: LoopState, conn: LoopConnection | None, record: bytes, since_ns: int) -> InboundPublish | None:
    """Return the message of a copy for another member, None if it expired meanwhile."""
    packet: PublishView = hot.second
    load_record(packet, record)
    left_s: cython.longlong = packet.expiry_s
    if left_s != NO_EXPIRY:
        left_s -= (hot.now_ns - cython.cast(cython.longlong, since_ns)) // SECOND_NS
        if left_s <= 0:  # [MQTT-3.3.2-5]
            hot.dropped_expired += 1
            note_drop(hot, conn, "expired", packet.topic, packet)
            return None
    properties: bytes = record[packet.properties_at : packet.payload_at]
    payload: bytes = record[packet.payload_at : packet.payload_at + packet.payload_bytes]
    return InboundPublish(packet.topic, payload, packet.qos, packet.retain, properties, packet.version, left_s)
