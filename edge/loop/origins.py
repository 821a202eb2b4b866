"""Origins of what this edge delivered to its own sessions, so that a repeat through another edge reaches nobody twice.

A link delivers a frame once, but a QoS 2 message of a durable publisher is fanned out again when the publisher comes
back before PUBREC, and a will when the edge that fired it dies. They may come out of the order of their counters, and
are remembered one by one, those of a session and of a partition's wills in a window. A partition has no more wills in
flight than its window tells apart. Publishing sessions have no such bound: the one that was silent for longest is
forgotten first, and counted. Source: docs/protocol.md rule 4.9; MQTT 5.0 section 4.3.3.
"""

from typing import Any

import cython

from edge.loop.state import HotState
from wire.messages.origin_window import OriginWindow

__all__: list[str] = []

SESSION_WINDOW = 1_024  # counters that may be under way for one publisher (``storage.inbound_unreleased_max``)

if not cython.compiled:  # compiled, these are C constants: origins.pxd
    SESSION = 1
    WILL = 2


def take_origin(hot: HotState, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong) -> cython.bint:
    """Remember the origin of an ordinary copy; false, counted, if one with this origin was delivered here before."""
    if kind == SESSION:
        return _remember(hot, hot.session_origins, origin_a, origin_b, SESSION_WINDOW, hot.limits.session_origins_max)
    if kind != WILL:
        return True
    partition: cython.ulonglong = origin_a >> 32  # under any epoch
    most: cython.Py_ssize_t = hot.limits.will_partitions_max
    return _remember(hot, hot.will_origins, partition, origin_b, hot.limits.will_window, most)


def _remember(
    hot: HotState, table: Any, sender: object, counter: cython.ulonglong, size: cython.int, most: cython.Py_ssize_t
) -> cython.bint:
    """Remember a counter of a sender; false, counted, if it was remembered before."""
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
    hot: HotState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> cython.bint:
    """Whether a member here got this message as its group's pick before."""
    if kind != SESSION:
        return False
    window = hot.picked_origins.get((share, origin_a))
    return window is not None and window.has(origin_b)


def note_pick(
    hot: HotState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> None:
    """A member here got this message as its group's pick."""
    if kind == SESSION:
        most: cython.Py_ssize_t = hot.limits.picked_origins_max
        _remember(hot, hot.picked_origins, (share, origin_a), origin_b, SESSION_WINDOW, most)
