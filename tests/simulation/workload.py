"""Programs of the clients in a simulated seed, with the operations of ``stratamq/history/workloads``.

One seed mixes kinds of work: durable queues, changing routes, contested client identifiers, wills, retained messages, a
shared group. Every payload is unique. The checkers verify the guarantees.
"""

import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from stratamq.history.operations import Kind, OperationPhase
from tests.simulation.cluster import Cluster
from tests.simulation.program import Change, Program, sleep
from tests.simulation.sim_client import ClientOptions, SimClient

__all__ = ["WORKS", "WorkingClient", "Workload"]

BACKOFF_S = (0.02, 0.25)
HOLD_S = (0.05, 1.0)
ANSWER_S = 3.0
WILL_DELAY_S = 2
WITH_WILL = 0x04
EPHEMERAL = ClientOptions(clean_start=True, session_expiry_interval_s=0)
BACKLOG_WINDOW = 40  # above any Receive Maximum of a seed, below its bounds of unreleased identifiers
BURST = 60
PINNED, PINNED_PACE_S = 4, 0.05
FLEET = 24  # more than receivers distinguish in such a seed
WORKS = ("queue", "routes", "takeover", "wills", "retained", "shared", "qos0")


class WorkingClient(SimClient):
    """A client that programs wait for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.change = Change(self.world.scheduler)
        self.away_until = 0.0
        self.retained: list[tuple[str, str]] = []  # (topic, payload) received with RETAIN

    def _accepted(self) -> None:
        self.change.notify()

    def _answered(self, kind: Kind, phase: OperationPhase) -> None:  # noqa: ARG002
        self.change.notify()

    def _closed(self) -> None:
        self.change.notify()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        super()._handed_over(topic, payload, retain)
        if retain:
            self.retained.append((topic, payload))
        self.change.notify()


class Workload:
    """All programs of one seed."""

    def __init__(self, cluster: Cluster, works: tuple[str, ...], clients: int, pace_s: float) -> None:
        self.cluster = cluster
        self.works = works
        self.pace_s = pace_s  # mean time between two operations of one program
        self.working = True
        self._programs: list[Program] = []  # that end with the work
        self._members: dict[WorkingClient, dict[str, int]] = {}
        self._count = clients
        self._mortals: list[WorkingClient] = []
        self._contested: list[WorkingClient] = []
        self._final_readers: list[tuple[WorkingClient, str]] = []
        self._pinned_to: dict[str, str] = {}  # client -> its only edge
        for work in works:
            getattr(self, f"_{work}")()

    # -- helpers of programs

    def _client(self, process: str, options: ClientOptions, client_id: str = "") -> WorkingClient:
        client = self.cluster.client(process, options, client_id, WorkingClient)
        assert isinstance(client, WorkingClient)
        return client

    def _run(self, program: Coroutine[Any, Any, None], *, stays: bool = False) -> None:
        running = Program(self.cluster.scheduler, program)
        if not stays:
            self._programs.append(running)

    def _address(self, rng: random.Random) -> str:
        edges = [name for name in self.cluster.nodes if name.startswith("e")]
        return f"{rng.choice(edges)}:2"

    async def _connect(self, client: WorkingClient, rng: random.Random, options: ClientOptions | None = None) -> bool:
        client.connect(self._pinned_to.get(client.process) or self._address(rng), options)
        await client.change.until(lambda: client.connected or not client.trying)
        return client.connected

    def _member(self, client: WorkingClient, filters: dict[str, int]) -> WorkingClient:
        """Keep a client connected and subscribed for the rest of the seed."""
        self._members[client] = filters
        self._run(self._stay(client, filters), stays=True)
        return client

    async def _stay(self, client: WorkingClient, filters: dict[str, int]) -> None:
        rng = self.cluster.rng(f"{client.process}/stay")
        while True:
            await sleep(max(0.0, client.away_until - self.cluster.scheduler.now))
            if not await self._connect(client, rng):
                await sleep(rng.uniform(*BACKOFF_S))
                continue
            for topic_filter, qos in sorted(filters.items()):
                if topic_filter not in client.subscribed and client.connected:
                    client.subscribe(topic_filter, qos)
                    await client.change.until(
                        lambda wanted=topic_filter: wanted in client.subscribed or not client.connected  # type: ignore[misc]
                    )
            await client.change.until(lambda: not client.connected)
            await sleep(rng.uniform(*BACKOFF_S))

    async def _publish(
        self, client: WorkingClient, topic: str, payload: str, qos: int, *, retain: bool = False
    ) -> None:
        while not client.publish(topic, payload, qos, retain=retain):
            await client.change.until(lambda: client.has_room)

    async def _pace(self, rng: random.Random, times: float = 1.0) -> None:
        await sleep(rng.uniform(0, 2) * self.pace_s * times)

    async def _drop_sometimes(self, client: WorkingClient) -> None:
        rng = self.cluster.rng(f"{client.process}/drop")
        while True:
            await sleep(rng.expovariate(1 / 3.0))
            if not client.connected:
                continue
            client.away_until = self.cluster.scheduler.now + rng.choice((0.0, rng.uniform(0, 2.0)))
            if rng.random() < 0.3:
                client.disconnect()
            else:
                client.drop()

    # -- queue: durable publishers and subscribers that connect and disconnect

    def _queue(self) -> None:
        count = max(1, self._count // 4)
        for number in range(count):
            subtree = "queue/#" if number == 0 else f"queue/{number}/+"
            options = ClientOptions(protocol_version=4 + number % 2, receive_maximum=(0, 3, 20)[number % 3])
            subscriber = self._member(self._client(f"qs{number}", options), {subtree: 1 + number % 2})
            publisher = self._member(self._client(f"qp{number}", ClientOptions(protocol_version=5 - number % 2)), {})
            self._run(self._queue_publish(publisher, number, count))
            self._run(self._drop_sometimes(subscriber))
            self._run(self._drop_sometimes(publisher))

    async def _queue_publish(self, publisher: WorkingClient, number: int, count: int) -> None:
        rng = self.cluster.rng(publisher.process)
        serial = 0
        while True:
            serial += 1
            target = rng.randrange(count)
            await self._publish(
                publisher, f"queue/{target}/{number}", f"{publisher.process}-{serial}", rng.choice((1, 2))
            )
            await self._pace(rng)

    # -- backlog: publishers above Receive Maximum that repeat all messages at once; on request only

    def _backlog(self) -> None:
        self._member(self._client("bs", ClientOptions()), {"backlog/#": 2})
        for number in range(2):
            options = ClientOptions(protocol_version=5 - number % 2, window=BACKLOG_WINDOW, heedless=True)
            publisher = self._member(self._client(f"bp{number}", options), {})
            self._run(self._burst(publisher))
            self._run(self._drop_sometimes(publisher))

    async def _burst(self, publisher: WorkingClient) -> None:
        rng = self.cluster.rng(publisher.process)
        serial = 0
        while True:
            for _ in range(rng.randint(1, BURST)):
                serial += 1
                payload = f"{publisher.process}-{serial}"
                await self._publish(publisher, f"backlog/{publisher.process}", payload, rng.choice((1, 2)))
            await self._pace(rng, 10.0)

    # -- pinned: durable clients that each wait at one edge, as clients of users do; on request only

    def _pinned(self) -> None:
        edges = [name for name in self.cluster.nodes if name.startswith("e")]
        for number in range(PINNED):
            version, edge = 4 + number // 2 % 2, f"{edges[number % len(edges)]}:2"
            reader = self._client(f"pr{number}", ClientOptions(protocol_version=version, silence_s=8.0))
            options = ClientOptions(protocol_version=version, silence_s=8.0, window=BACKLOG_WINDOW, heedless=True)
            publisher = self._client(f"pp{number}", options)
            self._pinned_to |= {reader.process: edge, publisher.process: edge}
            self._member(reader, {"pinned/#": 2})
            self._run(self._publish_on(self._member(publisher, {}), 1 + (number + number // 2) % 2))

    async def _publish_on(self, publisher: WorkingClient, qos: int) -> None:
        serial = 0
        while True:
            serial += 1
            await self._publish(publisher, f"pinned/{publisher.process}", f"{publisher.process}-{serial}", qos)
            await sleep(PINNED_PACE_S)

    # -- qos0: live traffic between ephemeral sessions

    def _qos0(self) -> None:
        for number in range(2):
            client = self._member(self._client(f"z{number}", EPHEMERAL), {f"zero/{1 - number}/+": number})
            self._run(self._zero(client, number))

    async def _zero(self, client: WorkingClient, number: int) -> None:
        rng = self.cluster.rng(client.process)
        serial = 0
        while True:
            serial += 1
            await self._publish(
                client, f"zero/{number}/{rng.randrange(3)}", f"{client.process}-{serial}", rng.choice((0, 1))
            )
            await self._pace(rng)

    # -- routes: subscriptions that change, publishers with the topic cached

    def _routes(self) -> None:
        publishers = [self._member(self._client(f"rp{number}", ClientOptions()), {}) for number in range(2)]
        for number in range(max(2, self._count // 4)):
            options = ClientOptions(protocol_version=4 + number % 2)
            if number % 2:
                options = replace(EPHEMERAL, protocol_version=5)
            subscriber = self._member(self._client(f"rs{number}", options), {})
            self._run(self._churn(subscriber, publishers))

    async def _churn(self, subscriber: WorkingClient, publishers: list[WorkingClient]) -> None:
        rng = self.cluster.rng(subscriber.process)
        count = 0
        while True:
            count += 1
            await subscriber.change.until(lambda: subscriber.connected)
            topic = f"routes/{subscriber.process}/{count % 7}/x"
            topic_filter = rng.choice((topic, topic[:-1] + "+", topic[:-2] + "/#", "+" + topic[6:]))
            one, other = rng.choice(publishers), rng.choice(publishers)
            name = f"{subscriber.process}-{count}"
            await self._publish(other, topic, f"{name}-overlap", 1)  # its topic is then cached at that edge
            subscriber.subscribe(topic_filter, 1)
            await subscriber.change.until(
                lambda wanted=topic_filter: wanted in subscriber.subscribed or not subscriber.connected,  # type: ignore[misc]
                ANSWER_S,
            )
            for number in range(rng.randint(1, 3)):
                await self._publish(one, topic, f"{name}-{number}", rng.choice((1, 2)))
            await self._pace(rng, 2.0)
            subscriber.unsubscribe(topic_filter)
            await subscriber.change.until(lambda: not subscriber.asking, ANSWER_S)
            await self._publish(other, topic, f"{name}-after", 1)
            await self._pace(rng)

    # -- takeover: two programs contest one client identifier

    def _takeover(self) -> None:
        watcher = self._member(self._client("watch", ClientOptions()), {"takeover/up/#": 1})
        for program in range(2):
            client = self._client(f"c{program}", ClientOptions(protocol_version=4 + program, resend=False), "contested")
            client.session.first_identifier = 1 + program * 30_000
            client.session.last_identifier = (program + 1) * 30_000
            self._contested.append(client)
            self._run(self._fight(client))
        self._run(self._feed(watcher))

    async def _fight(self, client: WorkingClient) -> None:
        rng = self.cluster.rng(client.process)
        count = 0
        while True:
            if not await self._connect(client, rng):
                await sleep(rng.uniform(*HOLD_S))
                continue
            client.subscribe("takeover/down", 1)
            until = self.cluster.scheduler.now + rng.uniform(*HOLD_S)
            while client.connected and self.cluster.scheduler.now < until:
                count += 1
                client.publish(f"takeover/up/{client.process}", f"{client.process}-{count}", 1)
                await self._pace(rng)
            if rng.random() < 0.2:
                await sleep(rng.uniform(*HOLD_S))

    async def _feed(self, watcher: WorkingClient) -> None:
        rng = self.cluster.rng("feed")
        count = 0
        while True:
            count += 1
            await self._publish(watcher, "takeover/down", f"feed-{count}", 1)
            await self._pace(rng)

    # -- wills: connections with unique wills that end in every way

    def _wills(self) -> None:
        for number in range(2):
            self._member(
                self._client(f"ww{number}", ClientOptions(protocol_version=4 + number)), {"wills/#": 1 + number}
            )
        # QoS 1: a session without state cannot recognize a repeat on another connection
        self._member(self._client("wx", EPHEMERAL), {"wills/#": 1})
        for number in range(2):
            mortal = self._client(f"m{number}", ClientOptions(protocol_version=4 + number))
            self._mortals.append(mortal)
            self._run(self._live_and_die(mortal))

    async def _live_and_die(self, mortal: WorkingClient) -> None:
        rng = self.cluster.rng(mortal.process)
        starts = 0
        await sleep(2.0)  # the watchers first
        while True:
            starts += 1
            v5 = mortal.options.protocol_version == 5
            delay_s = WILL_DELAY_S if v5 and rng.random() < 0.2 else 0
            options = replace(
                mortal.options,
                will_topic=f"wills/{mortal.process}",
                will_payload=f"{mortal.process}-{starts}",
                will_qos=rng.choice((1, 2)),
                will_delay_interval_s=delay_s,
            )
            if await self._connect(mortal, rng, options):
                await sleep(rng.uniform(*HOLD_S))
                death = rng.random()
                if death < 0.35:
                    mortal.disconnect()
                    await mortal.change.until(lambda: not mortal.trying, 2.0)
                elif death < 0.5 and v5:
                    mortal.disconnect(WITH_WILL)
                    await mortal.change.until(lambda: not mortal.trying, 2.0)
                elif death < 0.85:
                    mortal.drop()
            await self._pace(rng, 4.0)

    # -- fleet: many clients with wills that die at the same time; on request only

    def _fleet(self) -> None:
        for number in range(2):
            watcher = self._client(f"fw{number}", ClientOptions(protocol_version=4 + number))
            self._member(watcher, {"fleet/+": 1 + number})
        for qos in range(2):
            self._member(self._client(f"fx{qos}", EPHEMERAL), {"fleet/+": qos})
        fleet = [self._client(f"fm{number}", ClientOptions(protocol_version=4 + number % 2)) for number in range(FLEET)]
        self._mortals += fleet
        self._run(self._die_together(fleet))

    async def _die_together(self, fleet: list[WorkingClient]) -> None:
        rng = self.cluster.rng("fleet")
        starts = 0
        await sleep(2.0)  # the watchers first
        while True:
            starts += 1
            for number, client in enumerate(fleet):
                v5 = client.options.protocol_version == 5
                options = replace(
                    client.options,
                    will_topic=f"fleet/{client.process}",
                    will_payload=f"{client.process}-{starts}",
                    will_qos=number % 3,
                    will_delay_interval_s=WILL_DELAY_S if v5 and rng.random() < 0.2 else 0,
                )
                client.connect(self._address(rng), options)
            for client in fleet:
                await client.change.until(lambda client=client: client.connected or not client.trying, ANSWER_S)  # type: ignore[misc]
            await sleep(rng.uniform(*HOLD_S))
            for client in fleet:
                client.drop()
            await self._pace(rng, 20.0)

    # -- retained: messages that are written and read

    def _retained(self) -> None:
        topics = ["retained/0", "retained/1"]
        for number in range(2):
            writer = self._member(self._client(f"w{number}", ClientOptions()), {})
            self._run(self._write(writer, topics))
        for number in range(2):
            self._run(self._read_on(self._client(f"rd{number}", EPHEMERAL), topics))
        observer = self._member(self._client("ob", ClientOptions(protocol_version=4)), {})
        self._run(self._observe(observer, topics))
        self._final_readers = [(self._client(f"f{at}", EPHEMERAL), topic) for at, topic in enumerate(topics)]

    async def _write(self, writer: WorkingClient, topics: list[str]) -> None:
        rng = self.cluster.rng(writer.process)
        count = 0
        while True:
            for _ in range(rng.choice((1, 1, 4))):  # some at a time: an edge pipelines them
                count += 1
                payload = "" if rng.random() < 0.1 else f"{writer.process}-{count}"
                await self._publish(writer, rng.choice(topics), payload, 1, retain=True)
            await writer.change.until(lambda: not writer.publishing)
            await self._pace(rng)

    async def _observe(self, observer: WorkingClient, topics: list[str]) -> None:
        rng = self.cluster.rng(observer.process)
        while True:
            await observer.change.until(lambda: observer.connected)
            observer.subscribe(rng.choice(topics), rng.choice((0, 1, 2)))
            await observer.change.until(lambda: not observer.asking, ANSWER_S)
            await self._pace(rng, 8.0)

    async def _read_on(self, reader: WorkingClient, topics: list[str]) -> None:
        rng = self.cluster.rng(reader.process)
        while True:
            if not reader.connected and not await self._connect(reader, rng):
                await sleep(rng.uniform(*BACKOFF_S))
                continue
            if not await self._read(reader, rng.choice(topics), 0.5, silence_is_none=False):
                reader.drop()
            await self._pace(rng)

    async def _read(self, reader: WorkingClient, topic: str, patience_s: float, *, silence_is_none: bool) -> bool:
        """Subscribe, take the first retained message, unsubscribe; return whether there was a value."""
        reader.retained.clear()

        def found() -> list[str]:
            return [payload for on, payload in reader.retained if on == topic]

        operation = reader.begin_read(topic)
        connection = reader.connection
        reader.subscribe(topic, 1)
        await reader.change.until(lambda: not reader.asking)
        granted = topic in reader.subscribed and reader.connected and reader.connection == connection
        if granted:
            await reader.change.until(found, patience_s)
        known = found() or (granted and silence_is_none and reader.connected)
        reader.end_read(
            operation, OperationPhase.OK if known else OperationPhase.UNKNOWN, found()[0] if found() else ""
        )
        reader.unsubscribe(topic)
        await reader.change.until(lambda: not reader.asking)
        return bool(known)

    # -- shared: one group of durable members that connect and disconnect

    def _shared(self) -> None:
        for number in range(3):
            member = self._member(self._client(f"sm{number}", ClientOptions()), {"$share/group/shared/+": 2})
            if number:
                self._run(self._drop_sometimes(member))
        publisher = self._member(self._client("sp", ClientOptions(protocol_version=5)), {})
        self._run(self._share(publisher))

    async def _share(self, publisher: WorkingClient) -> None:
        rng = self.cluster.rng(publisher.process)
        count = 0
        while True:
            count += 1
            await self._publish(publisher, f"shared/{rng.randrange(3)}", f"sp-{count}", rng.choice((1, 2)))
            await self._pace(rng)

    # -- phases

    def finish(self) -> None:
        """End the work; members stay, and others reach a checkable state."""
        self.working = False
        for program in self._programs:
            program.stop()
        for client in self._members:
            client.away_until = 0.0
        for client in (*self._mortals, *self._contested):
            client.drop()
        if self._contested:
            self._member(self._contested[0], {"takeover/down": 1})

    def settled(self) -> bool:
        """Whether every member is connected, subscribed and has its answers."""
        return all(
            client.connected and not client.busy and all(wanted in client.subscribed for wanted in filters)
            for client, filters in self._members.items()
        )

    def unsettled(self) -> list[str]:
        """Return the unsettled members, each with its missing part."""
        return [
            f"{client.process} (connected {client.connected} to {client.target}, busy {client.busy})"
            for client, filters in self._members.items()
            if not client.connected or client.busy or any(wanted not in client.subscribed for wanted in filters)
        ]

    def read_final_state(self) -> list[Program]:
        """Start the reads that are valid only at rest."""
        programs = []
        for reader, topic in self._final_readers:
            programs.append(Program(self.cluster.scheduler, self._read_at_rest(reader, topic)))
        return programs

    async def _read_at_rest(self, reader: WorkingClient, topic: str) -> None:
        rng = self.cluster.rng(reader.process)
        for _ in range(20):
            if await self._connect(reader, rng):
                await self._read(reader, topic, 3.0, silence_is_none=True)
                return
            await sleep(0.2)
