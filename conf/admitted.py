"""Connections with a place in an `AdmissionPool`: a cancel scope displaces them, a late first byte ends them.

The shell of ``conf/admission.py`` for ports that serve each connection in a task of its own. A port accepts all that
wait in the backlog before it serves one of them: under a flood an honest client would wait behind the others there.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from conf.admission import AdmissionPool, AdmissionSlot

__all__ = ["REST_S", "NotAdmitted", "place_for", "serve_admitted"]

ACCEPTS_PER_TURN = 64
REST_S = 0.1  # before the next accept, where one failed: the backlog keeps who comes

Scope = trio.CancelScope
Serve = Callable[[trio.SocketStream, AdmissionSlot[Scope]], Awaitable[object]]


class NotAdmitted(Exception):
    """A request or connection was refused a place, or lost it to a newcomer. The pool has counted it."""


@contextmanager
def place_for(
    pool: AdmissionPool[Scope], now: float, address: str, *, crowded: bool = False
) -> Iterator[AdmissionSlot[Scope]]:
    """Hold a place while the block runs, or until the block calls ``leave``.

    Args:
        pool: Of the port.
        now: Seconds, of the clock that the pool is given elsewhere too.
        address: Of the peer, "" for one that is not known.
        crowded: The port has no room for a further connection: one has to be displaced.

    Raises:
        NotAdmitted: No place is free, or a newcomer displaced the owner of this one.
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
    """Accept connections, give them places, and serve each in a task, until cancelled; the listener is closed then.

    Args:
        listener: Listens; it is of no use to others from here on.
        pool: Places of connections that have not authenticated.
        now: Seconds.
        serve: Gets a connection that has sent its first byte, and its place, which it leaves when the peer has
            authenticated. It is cancelled when the connection is displaced. The connection is closed behind it.
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
                    except ConnectionError:  # it is gone already
                        continue
                    except OSError:  # no descriptor is free, or the like
                        await trio.sleep(REST_S)
                        break
                    address = str(peer[0]) if isinstance(peer, tuple) else ""
                    place = _admit(pool, now(), address, trio.CancelScope())
                    if place is None:
                        accepted.close()
                        continue
                    accepted.setblocking(False)
                    with suppress(OSError):  # nothing is there yet
                        if accepted.recv(1, socket.MSG_PEEK):
                            place.heard()  # before others of this turn are compared with it
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
                    nursery.start_soon(hold, stream, place)


def _admit(
    pool: AdmissionPool[Scope], now: float, address: str, scope: Scope, *, crowded: bool = False
) -> AdmissionSlot[Scope] | None:
    place, displaced = pool.admit(now, address, scope, crowded=crowded)
    if displaced is not None:
        displaced.owner.cancel()
    return place
