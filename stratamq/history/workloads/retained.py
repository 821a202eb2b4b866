"""retained: concurrent writers and readers of a few retained topics, as registers (R12).

A read is a fresh subscription: its value is the first message with RETAIN set. Silence is no value while the run works
(a slow broker is silent too): only at rest, at the end, and after a long wait, does it mean that there is none. A
reader that met silence reconnects, so that a late answer is not taken for that of the next read.
Observers stay subscribed, and subscribe anew now and then: they must never be sent back in time.
"""

from __future__ import annotations

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.operations import OperationPhase
from stratamq.history.run import Run
from stratamq.history.workloads.workload import Workload, paced

TOPICS = 5
READ_PATIENCE_S = 1.0
FINAL_PATIENCE_S = 3.0
EPHEMERAL = ClientOptions(clean_start=True, session_expiry_interval_s=0)

__all__ = ["RetainedWorkload"]


class RetainedWorkload(Workload):
    """A third of the clients write, a third read, a third observe."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        third = max(1, self.count(9, 3) // 3)
        self.topics = [f"{run.name('retained')}/{number}" for number in range(TOPICS)]
        self.writers = [run.client(f"w{i}", ClientOptions()) for i in range(third)]
        self.readers = [run.client(f"r{i}", EPHEMERAL) for i in range(third)]
        self.observers = [run.client(f"o{i}", ClientOptions(protocol_version=4)) for i in range(third)]
        self.final_readers = [run.client(f"f{i}", EPHEMERAL) for i in range(TOPICS)]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for client in (*self.writers, *self.observers):
            self.run.start_member(client, {})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for writer in self.writers:
                nursery.start_soon(self._write, writer)
            for reader in self.readers:
                nursery.start_soon(self._read_on, reader)
            for observer in self.observers:
                nursery.start_soon(self._observe, observer)

    async def read_final_state(self) -> None:
        """Read at rest, after the last fault, what the checkers compare."""
        async with trio.open_nursery() as nursery:
            for reader, topic in zip(self.final_readers, self.topics, strict=True):
                nursery.start_soon(self._read_at_rest, reader, topic)

    async def _write(self, writer: RecordingClient) -> None:
        rng = self.run.rng(writer.process)
        count = 0
        while True:
            count += 1
            payload = "" if rng.random() < 0.1 else f"{writer.process}-{count}"
            pending = await self.run.publish(writer, rng.choice(self.topics), payload, 1, set(), retain=True)
            await writer.outcome(pending)
            await paced(self.run, rng.uniform(0, 2))

    async def _read_on(self, reader: RecordingClient) -> None:
        rng = self.run.rng(reader.process)
        while True:
            if not reader.connected and not await reader.connect():
                await paced(self.run, 1.0)
                continue
            if not await self._read(reader, rng.choice(self.topics), READ_PATIENCE_S, silence_is_none=False):
                reader.drop()
            await paced(self.run, rng.uniform(0, 2))

    async def _read_at_rest(self, reader: RecordingClient, topic: str) -> None:
        for _ in range(20):
            if await reader.connect():
                await self._read(reader, topic, FINAL_PATIENCE_S, silence_is_none=True)
                return
            await trio.sleep(0.2)

    async def _read(self, reader: RecordingClient, topic: str, patience_s: float, silence_is_none: bool) -> bool:
        """Subscribe, take the first retained message, unsubscribe; return whether there was a value."""
        found: list[str] = []
        arrived = trio.Event()

        def take(arrived_on: str, payload: str) -> None:
            if arrived_on == topic:
                found.append(payload)
                arrived.set()

        reading = reader.begin_read(topic)
        self.run.watch_retained(reader, take)
        subscribing = reader.subscribe(topic, 1)
        granted = subscribing is not None and await reader.outcome(subscribing) is OperationPhase.OK
        with trio.move_on_after(patience_s if granted else 0):
            await arrived.wait()
        self.run.watch_retained(reader, None)
        known = found or (granted and silence_is_none and reader.connected)
        phase = OperationPhase.OK if known else OperationPhase.UNKNOWN
        reader.end_read(reading, phase, found[0] if found else "")
        unsubscribing = reader.unsubscribe(topic)
        if unsubscribing is not None:
            await reader.outcome(unsubscribing)
        return bool(found)

    async def _observe(self, observer: RecordingClient) -> None:
        rng = self.run.rng(observer.process)
        while True:
            await observer.wait_connected()
            pending = observer.subscribe(rng.choice(self.topics), rng.choice((0, 1, 2)))
            if pending is not None:
                await observer.outcome(pending)
            await paced(self.run, rng.uniform(0, 10))
