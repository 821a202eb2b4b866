"""Origins of what this edge delivered to its own sessions, so that a repeat through another edge reaches nobody twice.

A link delivers a frame once, but a QoS 2 message of a durable publisher is fanned out again when the publisher comes
back before PUBREC, and a will when the edge that fired it dies. They may come out of the order of their counters, and
are remembered one by one, a session's in a window. All of it bounded, the oldest is forgotten first: an ephemeral
session has exactly once while its connection and edge live. Source: docs/protocol.md rule 4.9; MQTT 5.0 section 4.3.3.
"""

import cython

from edge.hot.state import HotState
from wire.messages.origin_window import OriginWindow

__all__: list[str] = []

SESSION_WINDOW = 1_024  # counters that may be under way for one publisher (``storage.inbound_unreleased_max``)

if not cython.compiled:  # compiled, these are C constants: origins.pxd
    SESSION = 1
    WILL = 2


def take_origin(hot: HotState, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong) -> cython.bint:
    """Remember the origin of an ordinary copy; false, counted, if one with this origin was delivered here before."""
    if kind == SESSION:
        window = hot.session_origins.get(origin_a)
        if window is None:
            if len(hot.session_origins) >= hot.limits.session_origins_max:
                del hot.session_origins[next(iter(hot.session_origins))]
            window = hot.session_origins[origin_a] = OriginWindow(SESSION_WINDOW)
        elif window.has(origin_b):
            hot.dropped_repeated += 1
            return False
        window.add(origin_b)
        return True
    if kind != WILL:
        return True
    key = (origin_a, origin_b)
    if key in hot.will_origins:
        hot.dropped_repeated += 1
        return False
    if len(hot.will_origins) >= hot.limits.will_origins_max:
        del hot.will_origins[next(iter(hot.will_origins))]
    hot.will_origins[key] = None
    return True


def was_picked(
    hot: HotState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> cython.bint:
    """Whether a member here got this message as its group's pick before."""
    return kind == SESSION and (share, origin_a, origin_b) in hot.picked_origins


def note_pick(
    hot: HotState, share: bytes, kind: cython.int, origin_a: cython.ulonglong, origin_b: cython.ulonglong
) -> None:
    """A member here got this message as its group's pick."""
    if kind != SESSION:
        return
    if len(hot.picked_origins) >= hot.limits.picked_origins_max:
        del hot.picked_origins[next(iter(hot.picked_origins))]
    hot.picked_origins[share, origin_a, origin_b] = None
