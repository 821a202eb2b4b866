"""Topics of a connection with a message that a full partition refused: later messages are refused for a while too.

A client may repeat the refused message on its next connection, if this one ends before it has read the refusal. A
message accepted behind it meanwhile would have overtaken it. The partition has the same rule, but loses its marks with
the primary; the connection ends with its edge. The rule is for durable sessions only: other clients repeat no message.
A mark lasts four leases from the refusal at the partition, and ends in a pause of half a lease, so that the client
reads the refusals written here. A client without a pause is disconnected, and restarts in order.
No function here is called for a connection without marks. Source: docs/protocol.md rule 4.12.
"""

import cython

from edge.loop.state import LoopConnection, LoopState, PendingAck

if not cython.compiled:
    from edge.loop.layout import QUOTA_EXCEEDED
    from edge.loop.records import topic_of

    TAKES, REFUSES, ENDS = 0, 1, 2  # of check_refused

__all__: list[str] = []

LEASES_REFUSED = 4  # equal to the partition's: storage/messages/publishers.py
TOPICS_MAX = 256  # of one connection; above it each topic counts as refused
EVERY_TOPIC = b""  # no topic name is empty


def note_refused(hot: LoopState, message: PendingAck) -> None:
    """Mark the topic of a message that a full partition refused at its connection."""
    conn: LoopConnection | None = message.conn
    if conn is None or conn.closed or conn.session == 0:
        return
    marks = conn.refused
    if marks is None:
        marks = conn.refused = {}
    topic: bytes = topic_of(message.record)
    if len(marks) >= TOPICS_MAX and topic not in marks:
        marks.clear()
        topic = EVERY_TOPIC
    marks[topic] = (hot.now_ns, hot.now_ns)
    conn.last_version = -1  # its Route is found again for each message, and the mark with it


def check_refused(hot: LoopState, conn: LoopConnection, topic: bytes) -> cython.int:
    """Decide on a message of QoS 1 or 2 on a connection with marks."""
    first_ns: cython.longlong
    last_ns: cython.longlong
    marks = conn.refused
    if marks is None:
        return TAKES
    marked: bytes = topic if topic in marks else EVERY_TOPIC
    times = marks.get(marked)
    if times is None:
        return TAKES
    first_ns, last_ns = times
    if hot.now_ns - first_ns < LEASES_REFUSED * hot.lease_ns:
        marks[marked] = (first_ns, hot.now_ns)
        hot.refused_behind += 1
        return REFUSES
    if hot.now_ns - last_ns < hot.lease_ns // 2:
        return ENDS
    del marks[marked]
    if not marks:
        conn.refused = None
    return TAKES


def end_behind_refused(hot: LoopState, message: PendingAck) -> None:
    """Disconnect before a message is sent to another primary, which does not know of the refusal before it.

    The former primary may have accepted the message, so that the client must receive no refusal.
    """
    first: PendingAck = message if message.parent is None else message.parent
    conn: LoopConnection | None = first.conn
    if conn is None or conn.closed or conn.refused is None:
        return
    if EVERY_TOPIC in conn.refused or topic_of(message.record) in conn.refused:
        hot.acks_withheld += 1
        hot.handler.error(conn, QUOTA_EXCEEDED)
