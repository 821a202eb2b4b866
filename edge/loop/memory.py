"""Bytes that this edge holds for clients: partial packets, unsent output, messages pending for a window.

One sum is updated wherever a connection's share changes: after a read of a partial packet, after a flush, and where a
message becomes pending or is sent. A message pending for several clients counts once. The core decides on the measures
(``edge/clients/memory_guard.py``). Decision: docs/adr/0023-work-in-slices.md.
"""

import cython

from edge.loop.state import BackloggedMessage, LoopConnection, LoopState

__all__: list[str] = []

if not cython.compiled:
    KEPT_BYTES = 160  # of a pending message, without its packet


def count_held(hot: LoopState, conn: LoopConnection) -> cython.int:
    """Update a connection's share."""
    held: cython.Py_ssize_t = 0
    if not conn.closed or conn.fd >= 0:
        held = len(conn.partial)
        if conn.ahead is not None:
            held += conn.ahead.bytes
        if conn.out is not None:
            held += conn.out.capacity
        if conn.unsent is not None:
            held += len(conn.unsent)
        if conn.outbound is not None:
            held += conn.outbound.picks_bytes
    hot.held_bytes += held - conn.held_bytes
    conn.held_bytes = held
    return 0


def add_holder(hot: LoopState, kept: BackloggedMessage) -> cython.int:
    """Count one more client for which a message is pending."""
    if kept.holders == 0:
        hot.held_bytes += kept.bytes + KEPT_BYTES
    kept.holders += 1
    return 0


def remove_holder(hot: LoopState, kept: BackloggedMessage) -> cython.int:
    """Count one client less."""
    kept.holders -= 1
    assert kept.holders >= 0
    if kept.holders == 0:
        hot.held_bytes -= kept.bytes + KEPT_BYTES
    return 0


def release_pending(hot: LoopState, conn: LoopConnection) -> cython.int:
    """Release the pending messages of a closed connection."""
    outbound = conn.outbound
    if outbound is not None and outbound.pending:
        for waiting in outbound.pending:
            remove_holder(hot, waiting[6])
        outbound.pending.clear()
        outbound.pending_bytes = 0
    return count_held(hot, conn)


def share_of(conn: LoopConnection) -> cython.Py_ssize_t:
    """Return the bytes that are held only for this connection."""
    if conn.outbound is None:
        return conn.held_bytes
    return conn.held_bytes + conn.outbound.pending_bytes
