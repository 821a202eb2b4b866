"""Output of a connection: its limits, and the publishers that wait for it.

Above ``output_high`` the publishers that feed a connection are parked until it is below ``output_low``, or for
``lag_after_ns``. Then it is *lagging* and loses QoS 0 instead, so that one dead reader does not block publishers for
long.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from typing import TYPE_CHECKING

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopConnection, LoopState, OutboundWindow

if not cython.compiled:
    from edge.loop.buffers import give_buffer, reserve, take_buffer
    from edge.loop.layout import FAILURE, PACKET_IDENTIFIER_NOT_FOUND
    from edge.loop.state import PARK_OUTPUT, PARK_SLOW

if not cython.compiled and TYPE_CHECKING:  # the C names of linux.pxd and libc
    from edge.loop.linux import MSG_DONTWAIT, MSG_NOSIGNAL, send

__all__: list[str] = []


def mark_dirty(hot: LoopState, conn: LoopConnection) -> None:
    """Schedule the connection for the flush of this iteration."""
    if not conn.dirty:
        conn.dirty = True
        last: LoopConnection | None = hot.dirty_last
        if last is None:
            hot.dirty_first = conn
        else:
            last.next_dirty = conn
        hot.dirty_last = conn


def take_dirty(hot: LoopState) -> LoopConnection | None:
    """Return the first scheduled connection, with the others linked behind it, and clear the list."""
    first: LoopConnection | None = hot.dirty_first
    hot.dirty_first = None
    hot.dirty_last = None
    return first


def unlink_dirty(conn: LoopConnection) -> LoopConnection | None:
    """Unlink the first connection and return the next; it can be scheduled again."""
    after: LoopConnection | None = conn.next_dirty
    conn.next_dirty = None
    conn.dirty = False
    return after


def output_of(hot: LoopState, conn: LoopConnection) -> Buffer:
    """Return the connection's output for appending; it will be flushed this iteration."""
    if conn.out is None:
        conn.out = take_buffer(hot.pool)
    if not conn.dirty:
        mark_dirty(hot, conn)
    return conn.out


def pending_output(conn: LoopConnection) -> cython.Py_ssize_t:
    """Return the number of bytes not yet accepted by the socket."""
    if conn.out is None:
        return 0
    return conn.out.end - conn.out.start


def unpark(hot: LoopState, conn: LoopConnection, bit: cython.int) -> None:
    """Clear one park reason; without any left, parsing or the close continues in the next iteration."""
    conn.parked &= ~bit
    if conn.parked == 0 and not conn.closed and not conn.parsing:
        if (conn.partial or not conn.hearing) and not conn.ready:
            conn.ready = True
            hot.ready.append(conn)
        mark_dirty(hot, conn)


def note_high(hot: LoopState, conn: LoopConnection) -> None:
    """Track a connection whose output exceeded the limit."""
    if not conn.high:
        conn.high = True
        conn.high_since_ns = hot.now_ns
        hot.high.append(conn)


def wait_for(hot: LoopState, publisher: LoopConnection, subscriber: LoopConnection) -> None:
    """Park a publisher until the subscriber is below the limit or lagging."""
    note_high(hot, subscriber)
    if subscriber.waiters is None:
        subscriber.waiters = []
    subscriber.waiters.append(publisher)
    publisher.waits += 1
    if not publisher.parked & PARK_SLOW:
        publisher.parked |= PARK_SLOW
        hot.parked_slow += 1
        mark_dirty(hot, publisher)


def release_waiters(hot: LoopState, conn: LoopConnection) -> None:
    """Release the publishers parked on a connection."""
    waiters = conn.waiters
    if waiters is None:
        return
    conn.waiters = None
    for publisher in waiters:
        _release(hot, publisher)


def _release(hot: LoopState, publisher: LoopConnection) -> None:
    publisher.waits -= 1
    assert publisher.waits >= 0
    if publisher.waits == 0:
        unpark(hot, publisher, PARK_SLOW)


def after_send(hot: LoopState, conn: LoopConnection) -> None:
    """After a send: return an empty buffer to the pool, and end the pause when the output is low."""
    if conn.out is not None and conn.out.start == conn.out.end:
        conn.out.start = 0
        conn.out.end = 0
        give_buffer(hot.pool, conn.out)
        conn.out = None
        conn.has_acks = False
    if pending_output(conn) <= hot.output_low:
        conn.lagging = False
        if conn.waiters is not None:
            release_waiters(hot, conn)
        if conn.parked & PARK_OUTPUT:
            unpark(hot, conn, PARK_OUTPUT)
        if conn.reports_capacity:
            update_capacity(hot, conn)


def update_capacity(hot: LoopState, conn: LoopConnection) -> None:
    """Schedule a core call when a connection has consumed enough of its output; its source waits for that.

    A quarter, not the half that ``PublishMethods.can_take`` fills: the source then sends for a while.
    """
    outbound: OutboundWindow | None = conn.outbound
    if pending_output(conn) > hot.output_low:
        return
    if (
        outbound is not None
        and outbound.pending
        and (len(outbound.pending) > hot.pending_max // 4 or outbound.pending_bytes > hot.pending_bytes_max // 4)
    ):
        return
    conn.reports_capacity = False
    hot.conns_with_capacity.append(conn)


def end_lag(hot: LoopState) -> None:
    """Mark connections that were above the limit for too long as lagging; once per iteration while there are any."""
    still: list[LoopConnection] = []
    conn: LoopConnection
    for conn in hot.high:
        if conn.closed or pending_output(conn) <= hot.output_low:
            conn.high = False
            conn.lagging = False
            release_waiters(hot, conn)
            continue
        still.append(conn)
        if not conn.lagging and hot.now_ns - conn.high_since_ns >= hot.lag_after_ns:
            conn.lagging = True
            release_waiters(hot, conn)
    hot.high = still


def send_now(
    conn: LoopConnection, data: cython.p_uchar, start: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Send without a copy if no order is required; return the number of bytes sent, 0 for none."""
    if cython.compiled:  # pragma: no cover
        sent: cython.Py_ssize_t = send(conn.fd, data + start, count, MSG_DONTWAIT | MSG_NOSIGNAL)
        return sent if sent > 0 else 0
    else:
        return 0


def write_short(
    hot: LoopState, conn: LoopConnection, first: cython.int, packet_identifier: cython.int, reason_code: cython.int
) -> cython.int:
    """Append PUBACK, PUBREC, PUBREL or PUBCOMP; the reason code is omitted when it is 0 or for 3.1.1."""
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, 5)
    data: cython.p_uchar = out.data
    with_code: cython.bint = reason_code != 0 and conn.version == 5
    data[at] = first
    data[at + 1] = 3 if with_code else 2
    data[at + 2] = (packet_identifier >> 8) & 0xFF
    data[at + 3] = packet_identifier & 0xFF
    if with_code:
        data[at + 4] = reason_code & 0xFF
        at += 1
    out.end = at + 4
    return 0


def answer_unknown(
    hot: LoopState, conn: LoopConnection, first: cython.int, packet_identifier: cython.int, reason_code: cython.int
) -> cython.int:
    """Answer PUBACK, PUBREC or PUBCOMP of an unknown message: PUBREL completes the client's flow after PUBREC.

    Not after PUBREC with an error: that has ended the flow [MQTT-4.3.3-4].
    """
    hot.acks_unknown += 1
    if first >> 4 == 5 and reason_code < FAILURE:
        write_short(hot, conn, 0x62, packet_identifier, PACKET_IDENTIFIER_NOT_FOUND)
    return 0
