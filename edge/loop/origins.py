"""Origins of messages that this edge delivered to its own sessions; they suppress repeats through another edge.

A link delivers a frame once. But a durable publisher's QoS 2 message is fanned out again if the publisher reconnects
before PUBREC, and a will if the edge that published it dies. Repeats may arrive in another order than their counters.
So counters are remembered one by one, in a window per session or per partition's wills. A partition has at most one
window of wills in flight. Publishing sessions have no such limit: the longest idle one is evicted first, and counted.
Source: docs/protocol.md rule 4.9; MQTT 5.0 section 4.3.3.
"""

from typing import Any

import cython

from edge.loop.state import LoopState
from wire.messages.origin_window import OriginWindow

__all__: list[str] = []

SESSION_WINDOW = 1_024  # counters in flight per publisher (``storage.inbound_unreleased_max``)

if not cython.compiled:  # compiled, these are C constants: origins.pxd
    SESSION = 1
    WILL = 2


def take_origin(
    hot: LoopState, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> cython.bint:
    """Store the origin of an ordinary copy; false, counted, if a copy with this origin was delivered here before."""
    if kind == SESSION:
        return _remember(hot, hot.session_origins, origin_a, origin_b, SESSION_WINDOW, hot.limits.session_origins_max)
    if kind != WILL:
        return True
    partition: cython.ulonglong = origin_a >> 32  # under any epoch
    most: cython.Py_ssize_t = hot.limits.will_partitions_max
    return _remember(hot, hot.will_origins, partition, origin_b, hot.limits.will_window, most)


def _remember(
    hot: LoopState, table: Any, sender: object, counter: cython.ulonglong, size: cython.int, most: cython.Py_ssize_t
) -> cython.bint:
    """Store a counter of a sender; false, counted, if it was stored before."""
    window = table.get(sender)
    if window is None:
        if len(table) >= most:
            table.popitem(False)
            hot.origins_forgotten += 1
        window = table[sender] = OriginWindow(size)
    elif window.has(counter):
        hot.dropped_repeated += 1
        return False
    else:
        table.move_to_end(sender)
    window.add(counter)
    return True


def was_picked(
    hot: LoopState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> cython.bint:
    """Return whether a member here received this message as its group's pick before."""
    if kind != SESSION:
        return False
    window = hot.picked_origins.get((share, origin_a))
    return window is not None and window.has(origin_b)


def note_pick(
    hot: LoopState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> None:
    """Store the origin of a message that a member here received as its group's pick."""
    if kind == SESSION:
        most: cython.Py_ssize_t = hot.limits.picked_origins_max
        _remember(hot, hot.picked_origins, (share, origin_a), origin_b, SESSION_WINDOW, most)
