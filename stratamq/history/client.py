"""A recording client for programs that run on trio: requests that are waited for, one connection at a time.

``client_record.py`` says what is sent and written down, ``trio_way.py`` moves the bytes; this file waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import trio

from stratamq.history.client_record import ClientOptions, ClientRecord, PendingOperation
from stratamq.history.operations import OperationPhase
from stratamq.history.trio_way import Address, TrioTransport
from stratamq.history.writer import HistoryWriter

__all__ = ["Address", "ClientOptions", "PendingOperation", "RecordingClient"]


class RunClock(Protocol):
    """Clock of the run, shared by all clients."""

    def now_ns(self) -> int:
        """Return ns since the run began."""


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
        clock: RunClock,
        process: str,
        client_id: str,
        addresses: tuple[Address, ...],
        rng: random.Random,
        options: ClientOptions,
        on_receive: Callable[[RecordingClient, str, str, bool], None],
    ) -> None:
        super().__init__(writer, trio.current_time, clock.now_ns, process, client_id, options)
        self._nursery, self._rng = nursery, rng
        self._addresses, self._address = addresses, 0
        self._on_receive = on_receive
        self._something_changed = trio.Event()  # replaced whenever it was set

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
        self._connection = TrioTransport(self)
        attempt = self._begin(f"{address[0]}:{address[1]}", self._connection)
        self._flush()
        self._nursery.start_soon(self._connection.run, address)
        accepted = await self.outcome(attempt) is OperationPhase.OK
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

    async def outcome(self, pending: PendingOperation) -> OperationPhase:
        """Wait for the answer: bounded by the end of the connection, or of the run for publishes that are resent."""
        while pending.phase is None:
            await self._something_changed.wait()
        return pending.phase

    async def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT and wait for the broker to close, which says that it was read."""
        if self.connected:
            self._say_goodbye(reason_code)
            await self._connection.ended.wait()  # bounded by the goodbye timer

    async def wait_connected(self) -> None:
        """Return when there is a connection with CONNACK."""
        while not self.connected:
            await self._something_changed.wait()

    async def wait_ended(self) -> None:
        """Return when there is none."""
        while self.connected:
            await self._something_changed.wait()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self._on_receive(self, topic, payload, retain)

    def _changed(self) -> None:
        self._something_changed.set()
        self._something_changed = trio.Event()
