"""The transport of a recording client over a trio socket: one attempt and its connection.

Owns the socket and its three loops: input, output, timer. There is no await between a history line and its effect.
"""

from __future__ import annotations

import trio

from mqtt.client_session import Timer
from stratamq.history.client_record import ClientRecord

__all__ = ["Address", "TrioTransport"]

READ_BYTES = 65_536

Address = tuple[str, int]


class TrioTransport:
    """One connection; ``run`` lasts as long as the connection, then ``ended`` is set."""

    def __init__(self, record: ClientRecord) -> None:
        self.ended = trio.Event()
        self._record = record
        self._scope = trio.CancelScope()
        self._outgoing = bytearray()  # bounded by the window and one answer per received packet
        self._wake = trio.Event()
        self._timer_started = trio.Event()
        self._due = float("inf")
        self._closed_in_order = False

    def send(self, data: bytes) -> None:
        """Send bytes; bytes sent before the stream is open are buffered."""
        self._outgoing += data
        self._wake.set()

    def start(self, timer: Timer) -> None:
        """Start a timer; replaces the previous one."""
        self._due = timer.due
        self._timer_started.set()

    def close(self, *, abort: bool) -> None:
        """End every loop."""
        del abort  # the kernel closes cleanly
        self._scope.cancel()

    async def run(self, address: Address) -> None:
        """Run the connection from the first SYN to its end."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._time_loop)
                    await self._live(address)
                    nursery.cancel_scope.cancel()
        finally:
            self.ended.set()
            self._record.lost(self, in_order=self._closed_in_order)

    async def _live(self, address: Address) -> None:
        try:
            stream = await trio.open_tcp_stream(*address)
        except OSError:
            return
        async with stream:
            self._record.opened(self)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_loop, stream)
                await self._read_loop(stream)
                nursery.cancel_scope.cancel()

    async def _read_loop(self, stream: trio.SocketStream) -> None:
        while self._record.is_on(self):
            try:
                data = await stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return
            if not data:
                self._closed_in_order = True
                return
            self._record.arrived(self, data)

    async def _write_loop(self, stream: trio.SocketStream) -> None:
        while True:
            data, self._outgoing = bytes(self._outgoing), bytearray()
            try:
                if data:
                    await stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the reader detects the end after the remaining bytes
            if not self._outgoing:
                self._wake = trio.Event()
                await self._wake.wait()

    async def _time_loop(self) -> None:
        while self._record.is_on(self):
            self._timer_started = trio.Event()
            with trio.move_on_at(self._due):
                await self._timer_started.wait()
            if trio.current_time() >= self._due:
                self._due = float("inf")
                self._record.time_passed(self)
