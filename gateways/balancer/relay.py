"""Relayed connections: bytes both ways with half-closes, one trio wake-up for all ready sockets.

Each readable end is read once an iteration, at most 64 KiB, and written to the other end at once. Unwritten bytes are
buffered, and reading pauses meanwhile. An edge that closed waits at most ``LINGER_S`` for its client. Otherwise a
client that neither reads nor closes would hold two descriptors without limit.
"""

import math
import select
import socket
from collections.abc import Callable

import trio

__all__ = ["LINGER_CHECK_S", "LINGER_S", "RelayPump"]

READ_BYTES = 64 * 1024
EVENTS_PER_ITERATION = 256
IN, OUT, LEFT = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP
LINGER_S = 30.0  # after the edge's end of stream: for the client to read the rest and close
LINGER_CHECK_S = 5.0  # interval of checks of lingering connections
UNREGISTERED = 1 << 31  # not in epoll


class _End:
    """One end of a relayed connection; ``waiting`` are its unwritten bytes."""

    __slots__ = ("armed", "closes", "ended", "has_ended", "other", "socket", "waiting", "watched")

    def __init__(self, end: socket.socket, ended: Callable[[], None], watched: int) -> None:
        self.socket = end
        self.watched = watched  # LEFT, of an edge that has not closed yet
        self.other: _End = self
        self.waiting = b""
        self.has_ended = False  # end of stream was read
        self.closes = False  # shut down writing after ``waiting`` is written
        self.armed = IN | watched
        self.ended = ended


class RelayPump:
    """All relayed connections of a balancer."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._lingering: dict[_End, float] = {}  # deadline by edge that closed, in order

    def __len__(self) -> int:
        return len(self._ends) // 2

    def add(self, client: socket.socket, edge: socket.socket, first: bytes, ended: Callable[[], None]) -> None:
        """Relay bytes between two connected sockets, which this object then owns.

        Args:
          client: One end.
          edge: The other one; ``first`` is written to it first.
          first: Bytes of this process.
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
        """Relay bytes until cancelled."""
        try:
            while True:
                with trio.move_on_after(LINGER_CHECK_S if self._lingering else math.inf):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, EVENTS_PER_ITERATION):
                    end = self._ends.get(fd)
                    if end is not None:
                        self._event(end, events)
                if self._lingering:
                    self._close_lingering(trio.current_time())
        finally:
            for end in list(self._ends.values()):
                end.socket.close()
            self._ends.clear()
            self._epoll.close()

    def _close_lingering(self, now: float) -> None:
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
        elif events & select.EPOLLHUP:  # level-triggered, and reading is paused
            self._epoll.unregister(end.socket.fileno())
            end.armed = UNREGISTERED
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
        """Write buffered and new bytes; reading from the other end pauses while bytes remain."""
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
        """Close both ends if both have ended and nothing is buffered."""
        if not all(each.closes and not each.waiting for each in (end, end.other)):
            return False
        self._close(end)
        return True

    def _arm(self, end: _End) -> None:
        wanted = (0 if end.has_ended or end.other.waiting else IN) | (OUT if end.waiting else 0) | end.watched
        if wanted == end.armed or (end.armed == UNREGISTERED and not wanted):
            return
        if end.armed == UNREGISTERED:
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
