"""Shared state of a recording's clients: seed, clock, history, phases, outstanding messages.

A run has three phases: work, until its time has elapsed; quiet, in which clients reconnect without new operations; and
the end, when no message is outstanding or the quiet phase reaches its limit. Outstanding deliveries only delay the end;
the checkers decide about loss.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from stratamq.history.client import Address, ClientOptions, PendingOperation, RecordingClient
from stratamq.history.operations import Kind, OperationPhase
from stratamq.history.writer import HistoryWriter

BACKOFF_S = (0.02, 0.25)  # between connection attempts; short, to measure the broker's downtime
IDLE_S = 0.5  # without a receive, after all expected messages, before the quiet phase ends

__all__ = ["BACKOFF_S", "RecordSettings", "Run"]


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The options of one recording.

    Attributes:
        clients: Number of programs; 0 for the workload's default.
        operations_per_s: Target rate of each publishing program.
        prepare_s: Longest wait for the first connections and subscriptions; then the work starts without them.
        protocol_version: 4 or 5 for all clients; 0 for both, mixed.
        detection_s: Time in which the broker certainly detects the end of a connection; for the checkers.
    """

    brokers: tuple[Address, ...]
    workload: str
    seconds: float
    seed: int
    clients: int = 0
    drain_s: float = 20.0
    operations_per_s: float = 20.0
    detection_s: float = 2.0
    prepare_s: float = 10.0
    protocol_version: int = 0
    software: str = ""


class Run:
    """Creates clients and random generators, and tracks outstanding deliveries."""

    def __init__(self, settings: RecordSettings, writer: HistoryWriter, nursery: trio.Nursery) -> None:
        self.settings, self.writer, self.nursery = settings, writer, nursery
        self.clients: list[RecordingClient] = []
        self.working = True
        self.quiet = trio.Event()
        self._origin_ns = time.monotonic_ns()
        self._expected: dict[str, set[str]] = {}  # payload identifier -> clients that must still receive it
        self._delivered: dict[str, trio.Event] = {}  # set when no client expects the payload
        self._ready: dict[RecordingClient, trio.Event] = {}  # clients that stay connected: subscribed at least once
        self._away_until: dict[RecordingClient, float] = {}
        self._latest_receive_ns = 0
        self._on_retained: dict[RecordingClient, Callable[[str, str], None]] = {}

    def now_ns(self) -> int:
        """Return ns since the run began."""
        return time.monotonic_ns() - self._origin_ns

    def rng(self, name: str) -> random.Random:
        """Return the random generator of one program, determined by seed and name."""
        return random.Random(f"{self.settings.seed}/{name}")

    def client(self, process: str, options: ClientOptions, client_id: str = "") -> RecordingClient:
        """Return a new client; its identifier contains the seed, so runs on one broker do not collide."""
        if self.settings.protocol_version:
            options = replace(options, protocol_version=self.settings.protocol_version)
        brokers = self.settings.brokers
        first = (self.settings.seed + len(self.clients)) % len(brokers)  # even distribution
        client = RecordingClient(
            self.nursery,
            self.writer,
            self,
            process,
            client_id or self.name(process),
            brokers[first:] + brokers[:first],
            self.rng(f"{process}/address"),
            options,
            self._received,
        )
        self.clients.append(client)
        return client

    def name(self, text: str) -> str:
        """Return a client identifier or topic level that is unique to this run."""
        return f"{self.settings.workload}{self.settings.seed}-{text}"

    def start_member(self, client: RecordingClient, filters: dict[str, int]) -> None:
        """Keep a client connected for the rest of the run, subscribed to these filters (filter -> QoS)."""
        self._ready[client] = trio.Event()
        self.nursery.start_soon(self._stay_connected, client, filters)

    def stay_away(self, client: RecordingClient, seconds: float) -> None:
        """Prevent a disconnected member from reconnecting for a time, so that its messages are queued."""
        self._away_until[client] = trio.current_time() + seconds

    async def members_ready(self) -> None:
        """Wait until all members have been connected and subscribed once, or until a timeout."""
        with trio.move_on_after(self.settings.prepare_s):
            for ready in self._ready.values():
                await ready.wait()

    async def subscribe_all(self, client: RecordingClient, filters: dict[str, int]) -> bool:
        """Subscribe to all filters; return whether all were granted."""
        for topic_filter, qos in sorted(filters.items()):
            pending = client.subscribe(topic_filter, qos)
            if pending is None or await client.outcome(pending) is not OperationPhase.OK:
                return False
        return True

    async def _stay_connected(self, client: RecordingClient, filters: dict[str, int]) -> None:
        rng = self.rng(f"{client.process}/backoff")
        subscribed = False
        while True:
            await trio.sleep_until(self._away_until.get(client, 0.0))
            if not await client.connect():
                await trio.sleep(rng.uniform(*BACKOFF_S))
                continue
            if not (subscribed and client.session_present):
                subscribed = await self.subscribe_all(client, filters)
            if subscribed:
                self._ready[client].set()
            await client.wait_ended()
            if not client.options.expiry_in_force_s:  # the session ended with the connection
                self._abandon_client(client.client_id)

    # Outstanding deliveries

    async def publish(
        self,
        client: RecordingClient,
        topic: str,
        payload: str,
        qos: int,
        receivers: set[str],
        retain: bool = False,
    ) -> PendingOperation:
        """Publish when the window has capacity; once accepted, its receivers (client identifiers) are expected."""
        if qos and receivers:
            self._expected[payload] = set(receivers)
            self._delivered[payload] = trio.Event()
        try:
            pending = await client.publish(topic, payload, qos, retain)
        except trio.Cancelled:  # while it waited for window capacity: it was never sent
            self.abandon(payload)
            raise
        if qos:
            self.nursery.start_soon(self._unless_accepted, client, pending, payload)
        return pending

    async def delivered(self, payload: str, timeout_s: float) -> bool:
        """Wait until every receiver got the message, or it was not accepted; False after a timeout."""
        event = self._delivered.get(payload)
        with trio.move_on_after(timeout_s):
            if event is not None:
                await event.wait()
        return event is None or event.is_set()

    def abandon(self, payload: str) -> None:
        """Stop waiting for a message that arrived, or that may never arrive."""
        self._expected.pop(payload, None)
        event = self._delivered.pop(payload, None)
        if event is not None:
            event.set()

    def _abandon_client(self, client_id: str) -> None:
        for payload, outstanding in list(self._expected.items()):
            outstanding.discard(client_id)
            if not outstanding:
                self.abandon(payload)

    async def _unless_accepted(self, client: RecordingClient, pending: PendingOperation, payload: str) -> None:
        if await client.outcome(pending) is not OperationPhase.OK:
            self.abandon(payload)

    def watch_retained(self, client: RecordingClient, callback: Callable[[str, str], None] | None) -> None:
        """Set a callback for (topic, payload identifier) of messages with RETAIN set."""
        if callback is None:
            self._on_retained.pop(client, None)
        else:
            self._on_retained[client] = callback

    async def drain(self, least_s: float) -> None:
        """Wait until all expected messages have arrived, and a little longer, between a minimum and a maximum time."""
        start = trio.current_time()
        end = start + max(self.settings.drain_s, least_s)
        while trio.current_time() < end:
            idle_s = (self.now_ns() - self._latest_receive_ns) / 1e9
            everyone = all(client.connected for client in self._ready)
            if trio.current_time() - start >= least_s and idle_s >= IDLE_S and everyone and not self._expected:
                return
            await trio.sleep(0.05)

    def mark(self, kind: Kind, target: str = "", reason: str = "") -> None:
        """Record an action of the harness: kill, restart, fault, heal."""
        self.writer.event(self.now_ns(), kind, target=target, reason=reason)

    def _received(self, client: RecordingClient, topic: str, payload: str, retain: bool) -> None:
        self._latest_receive_ns = self.now_ns()
        outstanding = self._expected.get(payload)
        if outstanding is not None:
            outstanding.discard(client.client_id)
            if not outstanding:
                self.abandon(payload)
        if retain and (callback := self._on_retained.get(client)):
            callback(topic, payload)


Faults = Callable[[Run], Awaitable[None]]
