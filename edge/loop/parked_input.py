"""Input of a parked connection: PINGREQ is answered and Routes are prefetched before the packets are parsed.

A waiting packet (for a Route, an acknowledgement, a slow subscriber) keeps its position, and so do all packets behind
it. There are two exceptions. PINGRESP has no order with other packets, so it is sent when PINGREQ is received. And the
Route of a topic may be requested before its packet is parsed: it is cached and invalidated as any other.

``LoopConnection.partial`` has the first unparsed bytes. Pieces follow it; there are none while it is empty. Positions
count from the first byte of ``partial``, and each is the start of a packet. Source: MQTT 5.0 sections 3.12, 4.6;
docs/protocol.md rule 4.6.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.read_ahead import ReadAhead
from edge.loop.state import LoopConnection, LoopState

if not cython.compiled:
    from edge.loop.buffers import get16, read_varint, reserve, varint_end
    from edge.loop.encode import valid_topic
    from edge.loop.output import output_of, pending_output
    from edge.loop.state import PARK_OUTPUT

    PIECE_BYTES = 64 * 1024  # one of them is parsed per iteration
    PREFETCH_TOPICS_MAX = 500  # requested in one call

__all__: list[str] = []


# -- reading


def may_read_ahead(hot: LoopState, conn: LoopConnection) -> cython.bint:
    """Return whether more of a parked client is read, within its share of ``read_ahead_bytes_max``."""
    ahead: ReadAhead | None = conn.ahead
    kept: cython.Py_ssize_t = 0
    if conn.version == 0 or conn.is_link or conn.closed or not conn.hearing or not hot.reading:
        return False
    if conn.parked & PARK_OUTPUT or hot.held_bytes > hot.held_bytes_max // 2:  # above held_bytes_max clients are closed
        return False
    if ahead is not None:
        if ahead.opaque:
            return False
        kept = ahead.bytes
    # A quarter of the rest, so that the next client has a share too.
    return 4 * (kept + PIECE_BYTES) <= hot.read_ahead_max - hot.read_ahead_bytes


def keep_piece(hot: LoopState, conn: LoopConnection, data: bytes) -> cython.int:
    """Append bytes to the input of a connection that is parked, or has pieces, and answer the PINGREQs in them."""
    ahead: ReadAhead = ahead_of(conn)
    kept: cython.Py_ssize_t = len(conn.partial) + ahead.bytes
    rest: cython.Py_ssize_t
    newest: cython.Py_ssize_t = len(ahead.pieces) - 1
    if newest < 0 and len(conn.partial) + len(data) <= PIECE_BYTES:
        conn.partial += data
    elif newest >= 0 and len(ahead.pieces[newest]) + len(data) <= PIECE_BYTES:
        ahead.pieces[newest] += data  # so that a client that writes single bytes does not create a piece for each
        _count(hot, ahead, len(data))
    else:
        if not ahead.opaque and ahead.scanned < kept:  # a packet with an incomplete length must not be divided there
            rest = kept - ahead.scanned
            last = ahead.pieces.pop() if ahead.pieces else conn.partial
            data = last[len(last) - rest :] + data
            last = last[: len(last) - rest]
            if ahead.bytes > 0:
                _count(hot, ahead, -rest)
                if last:
                    ahead.pieces.append(last)
            else:
                conn.partial = last
        if conn.partial:
            ahead.pieces.append(data)
            _count(hot, ahead, len(data))
        else:
            conn.partial = data
    answer_pings(hot, conn)
    return 0


def ahead_of(conn: LoopConnection) -> ReadAhead:
    """Return the connection's record, created at its first use."""
    if conn.ahead is None:
        conn.ahead = ReadAhead()
    return conn.ahead


def _count(hot: LoopState, ahead: ReadAhead, count: cython.Py_ssize_t) -> None:
    ahead.bytes += count
    hot.read_ahead_bytes += count


# -- continued parsing


def count_parsed(conn: LoopConnection, count: cython.Py_ssize_t) -> None:
    """Shift the positions after ``count`` bytes of ``partial`` were parsed."""
    ahead: ReadAhead = conn.ahead  # type: ignore[assignment]  # the caller checked
    ahead.scanned = max(0, ahead.scanned - count)
    ahead.prefetched = max(0, ahead.prefetched - count)


def next_piece(hot: LoopState, conn: LoopConnection) -> cython.int:
    """Append the next piece to ``partial``, which the next iteration parses."""
    ahead: ReadAhead = conn.ahead  # type: ignore[assignment]  # the caller checked
    if conn.parked != 0 or conn.ready:
        if not conn.partial:
            conn.partial = ahead.pieces.popleft()
            _count(hot, ahead, -len(conn.partial))
        return 0
    parts = [conn.partial]
    total: cython.Py_ssize_t = len(conn.partial)
    while ahead.pieces and (len(parts) == 1 or total < conn.needed):
        piece = ahead.pieces.popleft()
        parts.append(piece)
        total += len(piece)
        _count(hot, ahead, -len(piece))
    conn.partial = b"".join(parts)
    conn.ready = True
    hot.ready.append(conn)
    return 0


def drop_pieces(hot: LoopState, conn: LoopConnection) -> None:
    """Drop the pieces of a closed connection."""
    ahead: ReadAhead = conn.ahead  # type: ignore[assignment]  # the caller checked
    _count(hot, ahead, -ahead.bytes)
    conn.ahead = None


# -- scanning


def answer_pings(hot: LoopState, conn: LoopConnection) -> cython.int:
    """Answer each PINGREQ in the input of a parked connection that was not scanned before [MQTT-3.12.4-1]."""
    ahead: ReadAhead = ahead_of(conn)
    if ahead.opaque:
        if ahead.bytes > 0 or ahead.pings > 0:
            return 0
        ahead.opaque = False
        ahead.scanned = 0
    last: bytes = ahead.pieces[len(ahead.pieces) - 1] if ahead.bytes > 0 else conn.partial
    data: cython.p_uchar = last
    base: cython.Py_ssize_t = len(conn.partial) + ahead.bytes - len(last)
    at: cython.Py_ssize_t = ahead.scanned - base
    end: cython.Py_ssize_t = len(last)
    stop: cython.Py_ssize_t
    assert at >= 0, "all but the last piece is scanned"
    while at < end and not ahead.opaque:
        stop = _packet_end(conn, data, at, end)
        if stop == -1:
            break
        if stop == -2 or data[at] >> 4 in (1, 14):  # malformed, or behind CONNECT or DISCONNECT
            ahead.opaque = True
        elif data[at] == 0xC0 and stop == at + 2:
            if pending_output(conn) > hot.output_high:
                ahead.opaque = True
            else:
                _answer(hot, conn)
                ahead.pings += 1
        at = stop if stop > at else at
    ahead.scanned = base + at
    return 0


def _answer(hot: LoopState, conn: LoopConnection) -> None:
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, 2)
    out.data[at] = 0xD0
    out.data[at + 1] = 0
    out.end = at + 2
    hot.pings_early += 1


def _packet_end(
    conn: LoopConnection, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the end of the packet at ``at``, perhaps beyond ``end``; -1: its length is incomplete, -2: malformed."""
    stop: cython.Py_ssize_t
    if at + 1 >= end:
        return -1
    stop = varint_end(data, at + 1, end)
    if stop < 0:
        return stop
    stop += read_varint(data, at + 1, stop)
    return stop if stop - at <= conn.packet_bytes_max else -2


def prefetch(
    hot: LoopState, conn: LoopConnection, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> None:
    """Request Routes for the PUBLISH packets behind the one at ``at``, whose own Route is requested.

    Never for more messages than the client's rate allows now.
    """
    ahead: ReadAhead = ahead_of(conn)
    left: cython.longlong = _messages_allowed(hot, conn)
    stop: cython.Py_ssize_t
    body: cython.Py_ssize_t
    topic: bytes
    topics: dict[bytes, int] = {}
    at = max(at, ahead.prefetched)
    while at < end and len(topics) < left:
        stop = _packet_end(conn, data, at, end)
        if stop < 0 or stop > end or data[at] >> 4 in (1, 14):
            break
        if data[at] >> 4 == 3:
            body = varint_end(data, at + 1, end)
            if body + 2 > stop or body + 2 + get16(data, body) > stop:
                break
            topic = data[body + 2 : body + 2 + get16(data, body)]
            if topic and topic not in hot.routes:
                if not valid_topic(topic, 0, len(topic)):
                    break
                topics.setdefault(topic, at)
        at = stop
    if topics:
        names = list(topics)
        taken: cython.Py_ssize_t = hot.handler.prefetch(conn, names)
        if taken < len(names):
            at = topics[names[taken]]
    ahead.prefetched = at


def _messages_allowed(hot: LoopState, conn: LoopConnection) -> cython.longlong:
    """Return the number of messages that the rates of the client and its address allow, PREFETCH_TOPICS_MAX at most."""
    left: cython.longlong = PREFETCH_TOPICS_MAX
    until: cython.longlong = hot.now_ns + 1_000_000_000
    if conn.publish_gap_ns > 0:
        left = min(left, (until - max(conn.next_message_ns, hot.now_ns)) // conn.publish_gap_ns)
    if conn.purse is not None and conn.purse.publish_gap_ns > 0:
        left = min(left, (until - max(conn.purse.next_message_ns, hot.now_ns)) // conn.purse.publish_gap_ns)
    return left
