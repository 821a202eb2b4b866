"""State that the clients of one recording share: seed, clock, history, phases, messages still on their way.

A run has three phases: work, until the time is up; quiet, in which clients reconnect and nothing new is sent; and the
end, when nothing is on its way any more or the quiet phase has lasted as long as it may. Which deliveries are
outstanding is only a reason to wait, never a verdict: that is for the checkers.
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

BACKOFF_S = (0.02, 0.25)  # between attempts to connect: quick, since what is measured is the broker's absence
IDLE_S = 0.5  # without a receive, once everything expected is there, before the quiet phase ends

__all__ = ["BACKOFF_S", "RecordSettings", "Run"]


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """One recording as asked for on the command line.

    Attributes:
        clients: Programs in the run; 0 for the workload's own number.
        operations_per_s: Aim of each publishing program.
        prepare_s: Longest wait for the first connections and subscriptions; then the work begins without them.
        protocol_version: 4 or 5 for all clients; 0 for both, mixed.
        detection_s: Time in which the broker has surely noticed the end of a connection; for the checkers.
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
    """Hand out clients and randomness, and know when to stop."""

    def __init__(self, settings: RecordSettings, writer: HistoryWriter, nursery: trio.Nursery) -> None:
        self.settings, self.writer, self.nursery = settings, writer, nursery
        self.clients: list[RecordingClient] = []
        self.working = True
        self.quiet = trio.Event()
        self._origin_ns = time.monotonic_ns()
        self._expected: dict[str, set[str]] = {}  # payload identifier -> clients it is on its way to
        self._delivered: dict[str, trio.Event] = {}  # set when a payload is expected by nobody any more
        self._ready: dict[RecordingClient, trio.Event] = {}  # clients that stay connected: subscribed at least once
        self._away_until: dict[RecordingClient, float] = {}
        self._latest_receive_ns = 0
        self._on_retained: dict[RecordingClient, Callable[[str, str], None]] = {}

    def now_ns(self) -> int:
        """Return ns since the run began."""
        return time.monotonic_ns() - self._origin_ns

    def rng(self, name: str) -> random.Random:
        """Return the randomness of one program; the same for one seed and name, whatever the others do."""
        return random.Random(f"{self.settings.seed}/{name}")

    def client(self, process: str, options: ClientOptions, client_id: str = "") -> RecordingClient:
        """Return a new client; its identifier is unique to the seed so that runs on one broker do not meet."""
        if self.settings.protocol_version:
            options = replace(options, protocol_version=self.settings.protocol_version)
        brokers = self.settings.brokers
        first = (self.settings.seed + len(self.clients)) % len(brokers)  # spread evenly, not by luck
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
        """Return a client identifier or topic level that belongs to this run alone."""
        return f"{self.settings.workload}{self.settings.seed}-{text}"

    def start_member(self, client: RecordingClient, filters: dict[str, int]) -> None:
        """Keep a client connected for the rest of the run, subscribed to these filters (filter -> QoS)."""
        self._ready[client] = trio.Event()
        self.nursery.start_soon(self._stay_connected, client, filters)

    def stay_away(self, client: RecordingClient, seconds: float) -> None:
        """Keep a member that was just disconnected from coming back for so long: its queue is then the broker's."""
        self._away_until[client] = trio.current_time() + seconds

    async def members_ready(self) -> None:
        """Wait until all members have been connected and subscribed once; not for ever: the broker may be ill."""
        with trio.move_on_after(self.settings.prepare_s):
            for ready in self._ready.values():
                await ready.wait()

    async def subscribe_all(self, client: RecordingClient, filters: dict[str, int]) -> bool:
        """Subscribe to each filter in turn; return whether all were granted."""
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

    # Deliveries on their way

    async def publish(
        self,
        client: RecordingClient,
        topic: str,
        payload: str,
        qos: int,
        receivers: set[str],
        retain: bool = False,
    ) -> PendingOperation:
        """Publish when there is room; the receivers (client identifiers) are waited for once it is accepted."""
        if qos and receivers:
            self._expected[payload] = set(receivers)
            self._delivered[payload] = trio.Event()
        try:
            pending = await client.publish(topic, payload, qos, retain)
        except trio.Cancelled:  # while it waited for room: it was never sent
            self.abandon(payload)
            raise
        if qos:
            self.nursery.start_soon(self._unless_accepted, client, pending, payload)
        return pending

    async def delivered(self, payload: str, timeout_s: float) -> bool:
        """Wait until every receiver of a publish was handed it, or it was not accepted; False when time is up."""
        event = self._delivered.get(payload)
        with trio.move_on_after(timeout_s):
            if event is not None:
                await event.wait()
        return event is None or event.is_set()

    def abandon(self, payload: str) -> None:
        """Wait for a message no longer: it arrived, or nobody can be sure that it will."""
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
        """Call back with (topic, payload identifier) of messages that come with RETAIN set."""
        if callback is None:
            self._on_retained.pop(client, None)
        else:
            self._on_retained[client] = callback

    async def drain(self, least_s: float) -> None:
        """Wait until everything expected has arrived and a moment more; at least and at most for set times."""
        start = trio.current_time()
        end = start + max(self.settings.drain_s, least_s)
        while trio.current_time() < end:
            idle_s = (self.now_ns() - self._latest_receive_ns) / 1e9
            everyone = all(client.connected for client in self._ready)
            if trio.current_time() - start >= least_s and idle_s >= IDLE_S and everyone and not self._expected:
                return
            await trio.sleep(0.05)

    def mark(self, kind: Kind, target: str = "", reason: str = "") -> None:
        """Write down what the harness did: kill, restart, fault, heal."""
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
