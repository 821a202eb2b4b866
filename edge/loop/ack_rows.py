"""Rows of the acknowledgement ledger: one per successful PUBACK or PUBREC, buffered per iteration.

A row is ``[origin kind, origin a, origin b, QoS, UTC ms of arrival, topic hash, partition, ...]``, JSON, with a
trailing comma. The compiled loop writes it, because a Python call per message costs more than the rest of an
acknowledgement. ``wire/sstable/ledger.py`` makes lines and files; format: docs/jobs.md.
"""

import cython

from edge.loop.state import LoopState, PendingAck, Route

if not cython.compiled:
    from edge.loop.buffers import append_bytes, append_decimal, take_bytes

__all__: list[str] = []

NS_PER_MS = 1_000_000
ALL_BYTES = 1 << 30


def record_ack(hot: LoopState, message: PendingAck) -> None:
    """Add the row of an acknowledged message."""
    rows = hot.ledger_rows
    route: Route | None = message.route
    if route is None:
        return  # refused before any fan-out but acknowledged: no delivery was promised
    if not route.recorded:
        route.recorded = hot.ledger.route_text(route)
    append_bytes(rows, b"[")
    append_decimal(rows, message.origin_kind)
    append_bytes(rows, b",")
    if message.origin_kind == 0:  # this edge's number: unique with its incarnation
        append_decimal(rows, hot.incarnation)
        append_bytes(rows, b",")
        append_decimal(rows, message.origin_b or message.tag)
    else:
        append_decimal(rows, message.origin_a)
        append_bytes(rows, b",")
        append_decimal(rows, message.origin_b)
    append_bytes(rows, b",")
    append_decimal(rows, message.qos)
    append_bytes(rows, b",")
    append_decimal(rows, (message.at_ns + hot.ledger_offset_ns) // NS_PER_MS)
    append_bytes(rows, route.recorded)
    if message.retained_partition >= 0:
        append_bytes(rows, b",")
        append_decimal(rows, message.retained_partition)
    append_bytes(rows, b"],")
    hot.ledger_count += 1


def flush_rows(hot: LoopState) -> None:
    """Pass the buffered rows to the ledger."""
    count = hot.ledger_count
    hot.ledger_count = 0
    hot.ledger.take_rows(take_bytes(hot.ledger_rows, ALL_BYTES), count)
