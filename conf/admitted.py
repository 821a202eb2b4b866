"""Connections with a place in an `AdmissionPool`: a cancel scope displaces them, a late first byte ends them.

The shell of ``conf/admission.py`` for ports that serve each connection in a task of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from conf.admission import AdmissionPool, Place

__all__ = ["NotAdmitted", "await_first_byte", "place_for"]


class NotAdmitted(Exception):
    """A connection was refused a place, lost it to a newcomer, or sent nothing in time. The pool has counted it."""


@contextmanager
def place_for(pool: AdmissionPool[trio.CancelScope], now: float, address: str) -> Iterator[Place[trio.CancelScope]]:
    """Hold a place while the block runs, or until the block calls ``leave``.

    Args:
        pool: Of the port.
        now: Seconds, of the clock that the pool is given elsewhere too.
        address: Of the peer, "" for one that is not known.
    Raises:
        NotAdmitted: No place is free, or a newcomer displaced this connection.
    """
    scope = trio.CancelScope()
    place, displaced = pool.admit(now, address, scope)
    if displaced is not None:
        displaced.owner.cancel()
    if place is None:
        raise NotAdmitted("no place is free")
    try:
        with scope:
            yield place
    finally:
        place.leave()
    if scope.cancelled_caught:
        raise NotAdmitted("displaced by a newcomer")


async def await_first_byte(pool: AdmissionPool[trio.CancelScope], place: Place[trio.CancelScope], socket: Any) -> None:
    """Wait until the peer has sent something, or has closed.

    Raises:
        NotAdmitted: It has not within the pool's ``first_byte_s``.
    """
    with trio.move_on_after(pool.bounds.first_byte_s) as bound:
        await trio.lowlevel.wait_readable(socket)
    if bound.cancelled_caught:
        pool.counts["silent"] += 1
        raise NotAdmitted("nothing was sent in time")
    place.heard()
