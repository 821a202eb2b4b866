"""Connections with a slot in an `AdmissionPool`: a cancel scope displaces them, a late first byte closes them.

The shell of ``conf/admission.py`` for ports that serve each connection in its own task. A port accepts its whole
backlog before it serves a connection; otherwise an honest client would wait behind a flood there.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from conf.admission import AdmissionPool, AdmissionSlot

__all__ = ["ACCEPT_RETRY_S", "NotAdmitted", "place_for", "serve_admitted"]

ACCEPTS_PER_TURN = 64
ACCEPT_RETRY_S = 0.1  # before the next accept after a failed one: new connections stay in the backlog

Scope = trio.CancelScope
Serve = Callable[[trio.SocketStream, AdmissionSlot[Scope]], Awaitable[object]]


class NotAdmitted(Exception):
    """A request or connection was refused a slot, or displaced. The pool has counted it."""


@contextmanager
def place_for(
    pool: AdmissionPool[Scope], now: float, address: str, *, crowded: bool = False
) -> Iterator[AdmissionSlot[Scope]]:
    """Hold a slot within the block, or until the block calls ``leave``.

    Args:
        pool: Of the port.
        now: Seconds, of the clock that the pool uses elsewhere too.
        address: Of the peer, "" if unknown.
        crowded: The port cannot hold another connection: one must be displaced.

    Raises:
        NotAdmitted: No slot is free, or a new connection displaced this one.
    """
    scope = trio.CancelScope()
    place = _admit(pool, now, address, scope, crowded=crowded)
    if place is None:
        raise NotAdmitted("no place is free")
    try:
        with scope:
            yield place
    finally:
        place.leave()
    if scope.cancelled_caught:
        raise NotAdmitted("displaced by a newcomer")


async def serve_admitted(
    listener: trio.SocketListener, pool: AdmissionPool[Scope], now: Callable[[], float], serve: Serve
) -> None:
    """Accept connections, assign slots, and serve each in a task, until cancelled; then close the listener.

    Args:
        listener: A listening socket; owned by this function.
        pool: Slots of unauthenticated connections.
        now: Seconds.
        serve: Called with a connection that has sent its first byte, and its slot, which it leaves after
            authentication. It is cancelled when the connection is displaced. The connection is closed afterwards.
    """

    async def hold(stream: trio.SocketStream, place: AdmissionSlot[Scope]) -> None:
        try:
            with place.owner:
                with trio.move_on_after(pool.bounds.first_byte_s or math.inf) as bound:
                    await trio.lowlevel.wait_readable(stream.socket)
                if bound.cancelled_caught:
                    pool.counts["silent"] += 1
                else:
                    place.heard()
                    await serve(stream, place)
        finally:
            place.leave()
            stream.socket.close()

    with socket.socket(fileno=listener.socket.detach()) as listening:
        listening.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listening)
                for _ in range(ACCEPTS_PER_TURN):
                    try:
                        accepted, peer = listening.accept()
                    except (BlockingIOError, InterruptedError):
                        break
                    except ConnectionError:  # already closed
                        continue
                    except OSError:  # no free descriptor, or similar
                        await trio.sleep(ACCEPT_RETRY_S)
                        break
                    address = str(peer[0]) if isinstance(peer, tuple) else ""
                    place = _admit(pool, now(), address, trio.CancelScope())
                    if place is None:
                        accepted.close()
                        continue
                    accepted.setblocking(False)
                    with suppress(OSError):  # no data yet
                        if accepted.recv(1, socket.MSG_PEEK):
                            place.heard()  # before it is compared with others of this iteration
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
                    nursery.start_soon(hold, stream, place)


def _admit(
    pool: AdmissionPool[Scope], now: float, address: str, scope: Scope, *, crowded: bool = False
) -> AdmissionSlot[Scope] | None:
    place, displaced = pool.admit(now, address, scope, crowded=crowded)
    if displaced is not None:
        displaced.owner.cancel()
    return place
