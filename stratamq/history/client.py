"""A recording client on a trio socket: ``client_record.py`` says what is sent and written down, this file waits.

Owns one socket at a time, its two loops and its timeouts. Between a line of the history and what follows from it there
is no await.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from mqtt.codec import StreamDecoder
from mqtt.errors import MqttError
from mqtt.packets import Connack, Pingreq
from stratamq.history.client_record import (
    CONNECT_TIMEOUT_S,
    GOODBYE_TIMEOUT_S,
    ClientOptions,
    ClientRecord,
    PendingOperation,
)
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
        accepted: bool = await self._nursery.start(self._serve, self._addresses[self._address])
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
        with trio.move_on_after(GOODBYE_TIMEOUT_S):
            await link.ended.wait()
        link.scope.cancel()
        await link.ended.wait()  # the task ends at once when cancelled

    def drop(self) -> None:
        """Cut the connection without DISCONNECT."""
        if self._link is not None:
            self._end(self._link, "local")

    async def wait_connected(self) -> None:
        while not self.connected:
            await self._something_changed.wait()

    async def wait_ended(self) -> None:
        while self.connected:
            await self._something_changed.wait()

    def give_up(self) -> None:
        """Write open publishes down as unknown: the run is over."""
        self.drop()
        self._forget()

    # What the record asks for

    def now_ns(self) -> int:
        """Return the time of the history's next line."""
        return self._clock.now_ns()

    def _write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.outgoing += data
            self._link.wake.set()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self._on_receive(self, topic, payload, retain)

    def _changed(self) -> None:
        self._something_changed.set()
        self._something_changed = trio.Event()

    # The connection

    async def _serve(self, address: Address, task_status: trio.TaskStatus[bool]) -> None:
        """Run one connection from CONNECT to its end; report whether it was accepted."""
        self._begin(f"{address[0]}:{address[1]}")
        link = self._link = _Link(StreamDecoder(self.options.protocol_version))
        try:
            with link.scope:
                await self._run_link(link, address, task_status)
        finally:
            link.ended.set()
            self._end(link, "silent" if link.scope.cancelled_caught else "peer")
            if not link.reported:
                task_status.started(False)

    async def _run_link(self, link: _Link, address: Address, task_status: trio.TaskStatus[bool]) -> None:
        link.scope.deadline = trio.current_time() + CONNECT_TIMEOUT_S
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
                await self._read_loop(link, stream, nursery, task_status)
                nursery.cancel_scope.cancel()

    async def _read_loop(
        self, link: _Link, stream: trio.SocketStream, nursery: trio.Nursery, task_status: trio.TaskStatus[bool]
    ) -> None:
        while True:
            try:
                data = await stream.receive_some(READ_BYTES)
                packets = link.decoder.feed(data)
            except (trio.BrokenResourceError, MqttError):
                return
            if not data:
                link.closed_in_order = True
                return
            for packet in packets:
                if link is not self._link:
                    return
                self._packet(packet)
                if isinstance(packet, Connack) and not link.reported:
                    link.reported = True
                    task_status.started(self.connected)
                    if not self.connected:
                        return
                    nursery.start_soon(self._ping_loop, link)
            if link.reported:
                link.scope.deadline = trio.current_time() + self.options.silence_s

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

    async def _ping_loop(self, link: _Link) -> None:
        while link is self._link:
            await trio.sleep(self.options.silence_s / 3)
            if link is self._link:
                self._send(Pingreq())

    def _end(self, link: _Link, reason: str) -> None:
        """End a connection, once."""
        if link is self._link:
            self._link = None
            link.scope.cancel()
            self._ended(reason, in_order=link.closed_in_order)


@dataclass(slots=True)
class _Link:
    """One connection while it lasts."""

    decoder: StreamDecoder
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    outgoing: bytearray = field(default_factory=bytearray)  # bounded by the window and one answer per packet read
    wake: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    reported: bool = False
    closed_in_order: bool = False
