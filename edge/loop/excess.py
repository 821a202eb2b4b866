"""Messages above Receive Maximum: clients that send again all they have, at once, whatever CONNACK says.

What lies above it is taken up to a second bound, in messages and in bytes; then the client is not read until some of it
is finished. A client ends with 0x93 when its excess waited too long for nothing but its own PUBRELs, or when it has
nothing to send again and goes beyond with QoS 2 all the same.
Source: MQTT 5.0 sections 3.1.2.4, 3.3.4, 4.9; docs/adr/0021-above-receive-maximum.md.
"""

import cython

from edge.loop.state import HotState, LoopConnection, PendingAck

if not cython.compiled:
    from edge.loop.layout import RECEIVE_MAXIMUM_EXCEEDED
    from edge.loop.output import unpark
    from edge.loop.state import PARK_QUOTA

    TAKEN, WAITS, EXCEEDED = 0, 1, RECEIVE_MAXIMUM_EXCEEDED  # of judge_excess

__all__: list[str] = []


def judge_excess(hot: HotState, conn: LoopConnection) -> cython.int:
    """Judge a PUBLISH that comes while as many are open as the client was told; asked for none below that."""
    if conn.version != 5:
        return WAITS  # it was told nothing
    if conn.fresh and conn.received is not None and len(conn.received) >= conn.quota_max:
        return EXCEEDED  # a new session, no DUP so far, and all that is open waits for its PUBRELs [MQTT-3.3.4-7]
    if conn.quota - conn.quota_max >= hot.excess_max or conn.excess_bytes >= hot.excess_bytes_max:
        return WAITS
    if not conn.excess:
        conn.excess = True
        conn.owes_since_ns = 0
        hot.excess_begun += 1
    return TAKEN


def hold_excess(conn: LoopConnection, message: PendingAck, count: cython.Py_ssize_t) -> None:
    """Count the bytes of a message that waits for us while its client is above Receive Maximum."""
    message.excess_bytes = count
    conn.excess_bytes += count


def end_excess(hot: HotState, conn: LoopConnection, message: PendingAck) -> None:
    """The message is about to be answered."""
    conn.excess_bytes -= message.excess_bytes
    assert conn.excess_bytes >= 0
    message.excess_bytes = 0
    if conn.parked & PARK_QUOTA:
        unpark(hot, conn, PARK_QUOTA)


def owes_too_long(hot: HotState, conn: LoopConnection, now_ns: cython.longlong) -> cython.bint:
    """Whether nothing but the client's own PUBRELs has kept its excess waiting, for longer than it may since the last.

    While a message waits for us, or we do not read, or hold back what we wrote, it is not the client.
    """
    if conn.quota <= conn.quota_max:
        conn.excess = False
        return False
    if conn.ack_queue or conn.parked & ~PARK_QUOTA or not hot.leased:
        conn.owes_since_ns = 0
    elif conn.owes_since_ns == 0:
        conn.owes_since_ns = now_ns
    return conn.owes_since_ns > 0 and now_ns - conn.owes_since_ns >= hot.excess_wait_ns
