"""Journal notes of dropped messages: limited per iteration; further drops are only counted.

No function here is called for a message that is not dropped.
"""

import cython

from edge.loop.state import LoopConnection, LoopState, PublishView

__all__: list[str] = []

if not cython.compiled:  # compiled, names in capitals are C constants: notes.pxd
    from edge.loop.layout import TOPIC_NAME_INVALID
    from edge.loop.traces import trace_dropped

    NOTES_PER_ITERATION = 16
    DENIED_GAP_NS = 1_000_000_000


def note_drops(
    hot: LoopState, conn: LoopConnection | None, reason: str, topic: bytes, count: cython.Py_ssize_t
) -> None:
    """Record the drop of several messages of one run as one note."""
    note_drop(hot, conn, reason, topic, None)
    if conn is not None:
        conn.dropped += count - 1


def note_drop(
    hot: LoopState, conn: LoopConnection | None, reason: str, topic: bytes, packet: PublishView | None
) -> None:
    """Record a drop, if there is a journal.

    Args:
        hot: The loop.
        conn: Connection of the copy or message; None: none at this edge.
        reason: Of ``conf/drop_reasons.py``.
        topic: Of the message.
        packet: The message, if it carries its origin.
    """
    if (packet is not None and packet.traced) or (conn is not None and conn.traced):
        trace_dropped(hot, conn, reason, topic, packet)
    if conn is not None:
        conn.dropped += 1
    journal = hot.journal
    if journal is None:
        return
    if hot.noted_ns != hot.now_ns:
        hot.noted_ns = hot.now_ns
        hot.notes = 0
    hot.notes += 1
    if hot.notes > NOTES_PER_ITERATION:
        hot.notes_left_out += 1
        return
    context = conn.context if conn is not None else None
    if packet is None:
        journal.dropped(context, reason, topic, 0, 0, 0)
    else:
        journal.dropped(context, reason, topic, packet.origin_kind, packet.origin_a, packet.origin_b)


def note_denied(hot: LoopState, conn: LoopConnection, reason_code: cython.int, topic: bytes) -> None:
    """Count and record an unauthorized message; the core receives at most one per second and connection.

    It counts regardless of the origin of the decision: a decision cached for the client's class is a refusal too.
    """
    if reason_code == TOPIC_NAME_INVALID:
        hot.dropped_too_deep += 1
        note_drop(hot, conn, "too_deep", topic, None)
        return
    hot.dropped_denied += 1
    note_drop(hot, conn, "not_authorized", topic, None)
    if hot.journal is None or (conn.denied_ns != 0 and hot.now_ns - conn.denied_ns < DENIED_GAP_NS):
        return
    conn.denied_ns = hot.now_ns
    hot.journal.denied(conn.context, topic)
