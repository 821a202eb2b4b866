"""Copies for a subscriber whose retained messages are still being read and are sent first.

A copy becomes the record that other nodes would receive. The core keeps it (``Handler.hold``) and returns it
(``PublishMethods.deliver_held``). Subscribers of one message share its record. Decision: docs/adr/0033-held-copies.md.
"""

from collections.abc import Sequence

import cython

from edge.loop.state import LoopConnection, LoopState, PublishView, Sub

if not cython.compiled:
    from edge.loop.encode import load_plain
    from edge.loop.layout import HELD_FULL, NOT_HELD
    from edge.loop.output import wait_for
    from edge.loop.records import record_of

__all__: list[str] = []


def hold_copies(
    hot: LoopState, publisher: LoopConnection | None, sub: Sub, topic: bytes, records: Sequence[bytes]
) -> cython.bint:
    """Pass a subscriber's copies to the core; False: no retained read is in progress, so the loop delivers them."""
    full: cython.bint = False
    result: cython.int
    for record in records:
        result = hot.handler.hold(sub, topic, record)
        if result == NOT_HELD:
            return False
        hot.iteration_bytes += len(record)
        full = result == HELD_FULL
    if full and publisher is not None and not sub.conn.lagging:
        wait_for(hot, publisher, sub.conn)
    return True


def records_of_run(
    hot: LoopState,
    topic: bytes,
    five: cython.bint,
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> list[bytes]:
    """Return the packets of a run as records."""
    packet: PublishView = hot.second
    records: list[bytes] = []
    packet.topic = topic
    packet.origin_kind = 0
    packet.session = 0
    packet.owner_epoch = 0
    while start < end:
        start = load_plain(packet, data, start, five)
        records.append(record_of(hot, packet, 0))
    return records
