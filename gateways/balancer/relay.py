"""Relayed connections: bytes both ways, half-closes kept, with one wake-up of trio for all sockets that are ready.

Each readable end is read once a turn, 64 KiB at most, and written to the other end at once; what that does not take
waits, and the reading end rests meanwhile. An edge that has closed waits for its client ``LINGER_S`` at most: one that
neither reads nor closes would hold two descriptors for ever. Decides nothing else.
"""

import math
import select
import socket
from collections.abc import Callable

import trio

__all__ = ["LINGER_S", "LOOK_S", "RelayPump"]

READ_BYTES = 64 * 1024
EVENTS_PER_TURN = 256
IN, OUT, LEFT = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP
LINGER_S = 30.0  # from the edge's end: for the client to take the rest, and to close
LOOK_S = 5.0  # between looks at those that linger
RESTING = 1 << 31  # not among epoll's


class _End:
    """One end of a relayed connection: ``waiting`` is what it has not taken yet."""

    __slots__ = ("armed", "closes", "ended", "has_ended", "other", "socket", "waiting", "watched")

    def __init__(self, end: socket.socket, ended: Callable[[], None], watched: int) -> None:
        self.socket = end
        self.watched = watched  # LEFT, of an edge that has not closed yet
        self.other: _End = self
        self.waiting = b""
        self.has_ended = False  # nothing more comes from it
        self.closes = False  # nothing more goes to it, once it has taken what waits
        self.armed = IN | watched
        self.ended = ended


class RelayPump:
    """All relayed connections of a balancer."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._lingering: dict[_End, float] = {}  # edges that have closed, and until when; in that order

    def __len__(self) -> int:
        return len(self._ends) // 2

    def add(self, client: socket.socket, edge: socket.socket, first: bytes, ended: Callable[[], None]) -> None:
        """Move bytes between two connected sockets, which are this object's from here on.

        Args:
            client: One end.
            edge: The other one, which gets ``first`` before all else.
            first: Of this end.
            ended: Called once, when both are closed.
        """
        ends = _End(client, ended, 0), _End(edge, ended, LEFT)
        for end, other in (ends, ends[::-1]):
            end.other = other
            end.socket.setblocking(False)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends[end.socket.fileno()] = end
            self._epoll.register(end.socket.fileno(), end.armed)
        if first:
            self._write(ends[1], first)

    async def run(self) -> None:
        """Move bytes until cancelled."""
        try:
            while True:
                with trio.move_on_after(LOOK_S if self._lingering else math.inf):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, EVENTS_PER_TURN):
                    end = self._ends.get(fd)
                    if end is not None:
                        self._event(end, events)
                if self._lingering:
                    self._end_lingering(trio.current_time())
        finally:
            for end in list(self._ends.values()):
                end.socket.close()
            self._ends.clear()
            self._epoll.close()

    def _end_lingering(self, now: float) -> None:
        for end, until in list(self._lingering.items()):
            if now < until:
                return
            self._close(end)

    def _event(self, end: _End, events: int) -> None:
        if events & end.watched:
            end.watched = 0
            self._lingering[end] = trio.current_time() + LINGER_S
            self._arm(end)
        if events & OUT:
            self._write(end, b"")
        if end.socket.fileno() < 0:
            return
        if events & select.EPOLLERR:
            self._close(end)
        elif end.armed & IN:
            if events & (IN | select.EPOLLHUP):
                self._read(end)
        elif events & select.EPOLLHUP:  # said again and again, and nothing may be read now
            self._epoll.unregister(end.socket.fileno())
            end.armed = RESTING
            self._end_if_done(end)

    def _read(self, end: _End) -> None:
        try:
            count = end.socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._close(end)
            return
        if count:
            self._write(end.other, self._view[:count])
            return
        end.has_ended = True
        end.other.closes = True
        self._write(end.other, b"")

    def _write(self, end: _End, data: bytes | memoryview) -> None:
        """Write what waits and what comes; the other end rests while there is a rest."""
        if end.waiting:
            data = end.waiting + bytes(data)
        try:
            sent = end.socket.send(data) if data else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._close(end)
            return
        end.waiting = bytes(data[sent:]) if sent < len(data) else b""
        if not end.waiting and end.closes:
            if self._end_if_done(end):
                return
            try:
                end.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._close(end)
                return
        self._arm(end)
        self._arm(end.other)

    def _end_if_done(self, end: _End) -> bool:
        """Close both ends when neither has anything to say or to take."""
        if not all(each.closes and not each.waiting for each in (end, end.other)):
            return False
        self._close(end)
        return True

    def _arm(self, end: _End) -> None:
        wanted = (0 if end.has_ended or end.other.waiting else IN) | (OUT if end.waiting else 0) | end.watched
        if wanted == end.armed or (end.armed == RESTING and not wanted):
            return
        if end.armed == RESTING:
            self._epoll.register(end.socket.fileno(), wanted)
        else:
            self._epoll.modify(end.socket.fileno(), wanted)
        end.armed = wanted

    def _close(self, end: _End) -> None:
        for each in (end, end.other):
            self._ends.pop(each.socket.fileno(), None)
            self._lingering.pop(each, None)
            each.socket.close()
        end.ended()
