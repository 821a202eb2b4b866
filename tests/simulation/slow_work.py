"""Clients that acknowledge slowly must receive every retained message of a filter.

A writer publishes some hundred retained messages. Readers of each kind (version, QoS, Receive Maximum, stored session
or not) subscribe repeatedly, and acknowledge one message after another with a delay. Bounds of edges and queues are
small (``Options.slow``). A read without a fault delivers all messages that were accepted before SUBSCRIBE: no bound of
live messages drops one. Other clients never acknowledge.
"""

import random
from collections import deque
from typing import Any

from mqtt.client_session import Event, PublishReceived
from stratamq.history.operations import Kind, OperationPhase
from tests.simulation.cluster import Cluster
from tests.simulation.program import Program, sleep
from tests.simulation.sim_client import ClientOptions
from tests.simulation.workload import EPHEMERAL, WorkingClient

__all__ = ["SlowClient", "SlowWork"]

TOPICS = 120
FILTERS = ("slow/#", "slow/+/+")
READ_MAX_S = 120.0  # duration of a read without a fault
ACK_S = (0.002, 0.02, 0.1)  # mean time until a message is acknowledged


class SlowClient(WorkingClient):
    """A client that acknowledges one message at a time, after a delay; ``pace_s`` below 0: it never acknowledges."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pace_s = ACK_S[0]
        self.published = False  # whether the last message was accepted
        self.topics: set[str] = set()  # of messages received on this connection
        self._events: deque[tuple[int, Event]] = deque()
        self._rng = random.Random(f"{self.process}/slow")

    def _take(self, event: Event) -> None:
        if not (isinstance(event, PublishReceived) and event.packet.qos):
            super()._take(event)
            return
        self._events.append((self.connection, event))
        if len(self._events) == 1:
            self._wait()

    def _wait(self) -> None:
        if self.pace_s >= 0:
            self.world.scheduler.at(self.now() + self._rng.expovariate(1 / self.pace_s), self._take_next)

    def _take_next(self) -> None:
        if not (self.connected or self.options.clean_start):
            self._wait()
            return
        connection, event = self._events.popleft()
        # a stored session does not deliver again a message that an earlier connection received but did not acknowledge
        if self.connected and (connection == self.connection or not self.options.clean_start):
            super()._take(event)
            self._flush()
        if self._events:
            self._wait()

    def _answered(self, kind: Kind, phase: OperationPhase) -> None:
        if kind is Kind.PUBLISH:
            self.published = phase is OperationPhase.OK
        super()._answered(kind, phase)

    def _accepted(self) -> None:
        self.topics.clear()
        if self.pace_s < 0:
            self._events.clear()
        super()._accepted()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self.topics.add(topic)
        super()._handed_over(topic, payload, retain)


class SlowWork:
    """The programs of one seed."""

    def __init__(self, cluster: Cluster) -> None:
        self.failures: list[str] = []
        self.reads = 0  # checked reads
        self._cluster = cluster
        self._accepted: set[str] = set()
        self._readers: list[tuple[SlowClient, int]] = []
        self._programs: list[Program] = []
        self._rng = cluster.rng("slow")
        self._begin()

    def _client(self, process: str, options: ClientOptions) -> SlowClient:
        client = self._cluster.client(process, options, "", SlowClient)
        assert isinstance(client, SlowClient)
        return client

    def _begin(self) -> None:
        rng = self._rng
        self._run(self._write(self._client("slow-writer", ClientOptions())))
        for number in range(6):
            receive_maximum = rng.choice((1, 2, 20))
            options = (
                ClientOptions(protocol_version=5 - number % 2, receive_maximum=receive_maximum)
                if number % 3 == 0
                else ClientOptions(5 - number % 2, clean_start=True, session_expiry_interval_s=0)
            )
            reader = self._client(f"slow{number}", options)
            reader.pace_s = rng.choice(ACK_S)
            self._readers.append((reader, rng.choice((1, 2))))
            self._run(self._read_on(*self._readers[-1]))
        for number in range(3):
            stalled = self._client(f"stalled{number}", EPHEMERAL)
            stalled.pace_s = -1.0
            self._run(self._stall(stalled))

    def _run(self, program: Any) -> None:
        self._programs.append(Program(self._cluster.scheduler, program))

    async def _connect(self, client: SlowClient) -> bool:
        if client.connected:
            return True
        edges = [name for name in self._cluster.nodes if name.startswith("e")]
        client.connect(f"{self._rng.choice(edges)}:2")
        await client.change.until(lambda: client.connected or not client.trying)
        if not client.connected:
            await sleep(self._rng.uniform(0.02, 0.25))
        return client.connected

    async def _write(self, writer: SlowClient) -> None:
        """Publish each message until it is accepted."""
        topics = [f"slow/{number % 7}/{number}" for number in range(TOPICS)]
        attempt = 0
        while topics:
            if not await self._connect(writer):
                continue
            writer.published = False
            attempt += 1
            if writer.publish(topics[0], f"{topics[0]} {attempt}", 1, retain=True):
                await writer.change.until(lambda: not writer.publishing or not writer.connected)
                if writer.published:
                    self._accepted.add(topics.pop(0))
            else:
                await sleep(0.05)

    async def _stall(self, client: SlowClient) -> None:
        while True:
            if await self._connect(client):
                for topic_filter in FILTERS:
                    client.subscribe(topic_filter, 1)
                    await client.change.until(lambda: not client.asking, 3.0)
                await client.change.until(lambda: not client.connected, 5.0)

    async def _read_on(self, reader: SlowClient, qos: int) -> None:
        while True:
            await self._read(reader, qos)
            if self._rng.random() < 0.3:
                reader.drop()
            await sleep(self._rng.uniform(0.1, 1.0))

    async def _read(self, reader: SlowClient, qos: int, patience_s: float = READ_MAX_S) -> bool:
        """Subscribe and wait for every retained message; return whether all were received."""
        if not await self._connect(reader):
            return False
        topic_filter = self._rng.choice(FILTERS)
        owed, connection = set(self._accepted), reader.connection
        reader.topics.clear()
        reader.subscribe(topic_filter, qos)
        await reader.change.until(lambda: not reader.asking)
        if not reader.connected or topic_filter not in reader.subscribed:
            return False
        await reader.change.until(lambda: owed <= reader.topics or not reader.connected, patience_s)
        if not reader.connected or reader.connection != connection:
            return False
        self.reads += 1
        missing = owed - reader.topics
        if missing:
            some = ", ".join(sorted(missing)[:3])
            lacking = f"{reader.process} lacks {len(missing)} of {len(owed)} retained messages: {some}"
            self.failures.append(f"{lacking}, {patience_s:g} s after SUBACK for {topic_filter}")
        reader.unsubscribe(topic_filter)
        await reader.change.until(lambda: not reader.asking)
        return not missing

    def finish(self) -> None:
        """Stop the work and start the last reads."""
        for program in self._programs:
            program.stop()
        self._programs.clear()
        for reader, qos in self._readers:
            self._run(self._read_at_rest(reader, qos))

    async def _read_at_rest(self, reader: SlowClient, qos: int) -> None:
        reader.drop()
        await sleep(0.5)
        for _ in range(20):
            if await self._read(reader, qos):
                return

    @property
    def unfinished(self) -> list[str]:
        """Return readers whose last read has not ended, with their received topics."""
        pairs = zip(self._programs, self._readers, strict=True)
        return [
            f"{reader.process} did not end its last read: connected={reader.connected}, trying={reader.trying}, "
            f"asking={reader.asking}, {len(reader.topics)} of {len(self._accepted)} messages"
            for program, (reader, _) in pairs
            if not program.done
        ]

    @property
    def settled(self) -> bool:
        """Whether the last reads have ended."""
        return all(program.done for program in self._programs)
