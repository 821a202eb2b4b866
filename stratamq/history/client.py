"""A recording client for trio programs: awaitable requests, one connection at a time.

``client_record.py`` builds packets and history lines, ``trio_way.py`` transports bytes; this module waits.
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
        addresses: Broker addresses; the first one is tried first.
        on_receive: Called with every delivered message: (client, topic, payload identifier, retain).
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
        self._change = trio.Event()  # replaced whenever it was set

    # Requests

    async def connect(self, options: ClientOptions | None = None) -> bool:
        """Make one attempt; return whether the broker accepted.

        Drops an older connection of this client first. After a failure the next address is tried; after a success any
        address, because a session must be found at every edge.
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
        """Send a message when connected and the window has capacity; return without waiting for the answer."""
        while not (self.has_room if qos else self.connected):
            await self._change.wait()
        return self._publish(topic, payload, qos, retain)

    async def outcome(self, pending: PendingOperation) -> OperationPhase:
        """Wait for the answer, until the end of the connection, or of the run for publishes that are resent."""
        while pending.phase is None:
            await self._change.wait()
        return pending.phase

    async def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT and wait until the broker closes, which proves that it was read."""
        if self.connected:
            self._send_disconnect(reason_code)
            await self._connection.ended.wait()  # bounded by the goodbye timer

    async def wait_connected(self) -> None:
        """Wait until a connection has its CONNACK."""
        while not self.connected:
            await self._change.wait()

    async def wait_ended(self) -> None:
        """Wait until there is no connection."""
        while self.connected:
            await self._change.wait()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self._on_receive(self, topic, payload, retain)

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()
