"""Messages above Receive Maximum, from clients that resend all in-flight messages at once despite CONNACK.

The edge accepts such messages up to a second limit, in messages and in bytes. Then it stops reading the client until
some are finished. It disconnects a client with 0x93 if only the client's own PUBRELs have been missing for too long. It
does so as well if a client with nothing to resend exceeds the limit with QoS 2.
Source: MQTT 5.0 sections 3.1.2.4, 3.3.4, 4.9; docs/adr/0021-above-receive-maximum.md.
"""

import cython

from edge.loop.state import LoopConnection, LoopState, PendingAck

if not cython.compiled:
    from edge.loop.layout import RECEIVE_MAXIMUM_EXCEEDED
    from edge.loop.output import unpark
    from edge.loop.state import PARK_QUOTA

    TAKEN, WAITS, EXCEEDED = 0, 1, RECEIVE_MAXIMUM_EXCEEDED  # of check_excess

__all__: list[str] = []


def check_excess(hot: LoopState, conn: LoopConnection) -> cython.int:
    """Decide on a PUBLISH that reaches Receive Maximum; not called below it."""
    if conn.version != 5:
        return WAITS  # it has no Receive Maximum
    if conn.fresh and conn.received is not None and len(conn.received) >= conn.quota_max:
        return EXCEEDED  # a new session, no DUP so far, and all open messages wait for its PUBRELs [MQTT-3.3.4-7]
    if conn.quota - conn.quota_max >= hot.excess_max or conn.excess_bytes >= hot.excess_bytes_max:
        return WAITS
    if not conn.excess:
        conn.excess = True
        conn.excess_since_ns = 0
        hot.excess_begun += 1
    return TAKEN


def hold_excess(conn: LoopConnection, message: PendingAck, count: cython.Py_ssize_t) -> None:
    """Count the bytes of an unacknowledged message while its client is above Receive Maximum."""
    message.excess_bytes = count
    conn.excess_bytes += count


def end_excess(hot: LoopState, conn: LoopConnection, message: PendingAck) -> None:
    """Subtract the message's bytes before its acknowledgement."""
    conn.excess_bytes -= message.excess_bytes
    assert conn.excess_bytes >= 0
    message.excess_bytes = 0
    if conn.parked & PARK_QUOTA:
        unpark(hot, conn, PARK_QUOTA)


def update_excess_timer(hot: LoopState, conn: LoopConnection, now_ns: cython.longlong) -> cython.bint:
    """Return whether only the client's own missing PUBRELs have kept its excess open for too long.

    While a message waits for the broker, or reading or output is paused, the client is not at fault.
    """
    if conn.quota <= conn.quota_max:
        conn.excess = False
        return False
    if conn.ack_queue or conn.parked & ~PARK_QUOTA or not hot.leased:
        conn.excess_since_ns = 0
    elif conn.excess_since_ns == 0:
        conn.excess_since_ns = now_ns
    return conn.excess_since_ns > 0 and now_ns - conn.excess_since_ns >= hot.excess_wait_ns
