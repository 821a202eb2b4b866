"""A recording client on a trio socket: ``client_record.py`` says what is sent and written down, this file waits.

Owns one socket at a time and its three loops: bytes in, bytes out, timers. Between a line of the history and what
follows from it there is no await.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from mqtt.client_session import Timer
from stratamq.history.client_record import ClientOptions, ClientRecord, PendingOperation
from stratamq.history.operations import Phase
from stratamq.history.writer import HistoryWriter

READ_BYTES = 65_536

__all__ = ["Address", "ClientOptions", "PendingOperation", "RecordingClient"]

Address = tuple[str, int]


class Clock(Protocol):
    def now_ns(self) -> int: ...


class RecordingClient(ClientRecord):
    """One program with one client identifier.

    Args:
        nursery: Runs the task of each connection.
        addresses: Where to connect; the first one first.
        on_receive: Called with every message handed over: (client, topic, payload identifier, retain).
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        writer: HistoryWriter,
        clock: Clock,
        process: str,
        client_id: str,
        addresses: tuple[Address, ...],
        rng: random.Random,
        options: ClientOptions,
        on_receive: Callable[[RecordingClient, str, str, bool], None],
    ) -> None:
        super().__init__(writer, process, client_id, options)
        self._nursery, self._clock, self._rng = nursery, clock, rng
        self._addresses, self._address = addresses, 0
        self._on_receive = on_receive
        self._something_changed = trio.Event()  # replaced whenever it was set
        self._link: _Link | None = None

    # Requests

    async def connect(self, options: ClientOptions | None = None) -> bool:
        """Make one attempt; return whether the broker accepted.

        An older connection of this client is dropped first: one program has one connection. After a failure the next
        address is tried; after a success any, because a session must be found wherever its client comes back.
        """
        self.drop()
        if options is not None:
            self.options = options
        address = self._addresses[self._address]
        attempt = self._begin(f"{address[0]}:{address[1]}")
        link = self._link = _Link()
        self._nursery.start_soon(self._serve, link, address)
        accepted = await self.outcome(attempt) is Phase.OK
        if accepted:
            self._address = self._rng.randrange(len(self._addresses))
        else:
            self._address = (self._address + 1) % len(self._addresses)
        return accepted

    async def publish(self, topic: str, payload: str, qos: int, retain: bool = False) -> PendingOperation:
        """Send when connected and the window has room; return without waiting for the answer."""
        while not (self.has_room if qos else self.connected):
            await self._something_changed.wait()
        return self._publish(topic, payload, qos, retain)

    async def outcome(self, pending: PendingOperation) -> Phase:
        """Wait for the answer: bounded by the end of the connection, or of the run for publishes that are resent."""
        while pending.phase is None:
            await self._something_changed.wait()
        return pending.phase

    async def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT and wait for the broker to close, which says that it was read."""
        link = self._link
        if link is None or not self.connected:
            return
        self._say_goodbye(reason_code)
        await link.ended.wait()  # bounded by the goodbye timer

    async def wait_connected(self) -> None:
        while not self.connected:
            await self._something_changed.wait()

    async def wait_ended(self) -> None:
        while self.connected:
            await self._something_changed.wait()

    # What the record asks for

    def now(self) -> float:
        """Return the time of the session's timers."""
        return trio.current_time()

    def now_ns(self) -> int:
        """Return the time of the history's next line."""
        return self._clock.now_ns()

    def _write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.outgoing += data
            self._link.wake.set()

    def _close(self, reason: str, *, in_order: bool = False) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.scope.cancel()
            self._ended(reason, in_order=in_order)

    def _timer_started(self, timer: Timer) -> None:
        del timer  # the loop asks the session for its deadline
        if self._link is not None:
            self._link.timer_started.set()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self._on_receive(self, topic, payload, retain)

    def _changed(self) -> None:
        self._something_changed.set()
        self._something_changed = trio.Event()

    # The connection

    async def _serve(self, link: _Link, address: Address) -> None:
        """Run one connection from the first SYN to its end."""
        try:
            with link.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._time_loop, link)
                    await self._run_link(link, address)
                    nursery.cancel_scope.cancel()
        finally:
            link.ended.set()
            if link is self._link:
                self._close("peer", in_order=link.closed_in_order)

    async def _run_link(self, link: _Link, address: Address) -> None:
        try:
            stream = await trio.open_tcp_stream(*address)
        except OSError:
            return
        async with stream:
            if link is not self._link:  # dropped while it was opened
                return
            self._open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_loop, link, stream)
                await self._read_loop(link, stream)
                nursery.cancel_scope.cancel()

    async def _read_loop(self, link: _Link, stream: trio.SocketStream) -> None:
        while link is self._link:
            try:
                data = await stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return
            if not data:
                link.closed_in_order = True
                return
            if link is self._link:
                self._arrived(data)

    async def _write_loop(self, link: _Link, stream: trio.SocketStream) -> None:
        while True:
            data, link.outgoing = bytes(link.outgoing), bytearray()
            try:
                if data:
                    await stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the reader sees the end, after what was still readable
            if not link.outgoing:
                link.wake = trio.Event()
                await link.wake.wait()

    async def _time_loop(self, link: _Link) -> None:
        while link is self._link:
            link.timer_started = trio.Event()
            with trio.move_on_at(self.session.next_deadline()):
                await link.timer_started.wait()
            if link is self._link:
                self._time_passed()


@dataclass(slots=True)
class _Link:
    """One connection while it lasts."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    outgoing: bytearray = field(default_factory=bytearray)  # bounded by the window and one answer per packet read
    wake: trio.Event = field(default_factory=trio.Event)
    timer_started: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    closed_in_order: bool = False
