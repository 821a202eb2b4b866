"""queue: unique messages from durable publishers to durable subscribers that come and go (R1, R6, R7, R8).

Publisher i sends on ``queue/<subscriber>/<i>`` at QoS 1 and 2; each subscriber takes its own subtree at QoS 1 or 2.
One subscriber takes everything. Both protocol versions. Clients drop their connections now and then.
"""

from __future__ import annotations

import random

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.run import Run
from stratamq.history.workloads.workload import Workload, paced

DROP_EVERY_S = 1.5  # mean time between a client's own disconnections
AWAY_S_MAX = 1.0

__all__ = ["QueueWorkload"]


class QueueWorkload(Workload):
    """Half of the clients publish, half subscribe."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        half = self.count(8) // 2
        self.topic_root = run.name("queue")
        self.subscribers = [self._client(f"s{i}", i) for i in range(half)]
        self.publishers = [self._client(f"p{i}", i) for i in range(half)]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for number, subscriber in enumerate(self.subscribers):
            qos = 1 + number % 2
            subtree = f"{self.topic_root}/#" if number == 0 else f"{self.topic_root}/{number}/+"
            self.run.start_member(subscriber, {subtree: qos})
        for publisher in self.publishers:
            self.run.start_member(publisher, {})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, publisher in enumerate(self.publishers):
                nursery.start_soon(self._publish, number, publisher)
            for client in (*self.publishers, *self.subscribers):
                nursery.start_soon(self._drop_sometimes, client)

    async def _publish(self, number: int, publisher: RecordingClient) -> None:
        rng = self.run.rng(publisher.process)
        count = 0
        while True:
            count += 1
            target = rng.randrange(len(self.subscribers))
            receivers = {self.subscribers[0].client_id, self.subscribers[target].client_id}
            await self.run.publish(
                publisher,
                f"{self.topic_root}/{target}/{number}",
                f"{publisher.process}-{count}",
                rng.choice((1, 2)),
                receivers,
            )
            await paced(self.run, rng.uniform(0, 2))

    async def _drop_sometimes(self, client: RecordingClient) -> None:
        rng: random.Random = self.run.rng(f"{client.process}/drop")
        while True:
            await trio.sleep(rng.expovariate(1 / DROP_EVERY_S))
            self.run.stay_away(client, rng.choice((0.0, rng.uniform(0, AWAY_S_MAX))))
            if rng.random() < 0.5:
                client.drop()
            else:
                await client.disconnect()

    def _client(self, process: str, number: int) -> RecordingClient:
        return self.run.client(process, ClientOptions(protocol_version=5 if number % 2 else 4))
