"""shared: one group of durable members that come and go, and publishers that do not care who gets a message (R13)."""

from __future__ import annotations

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.run import Run
from stratamq.history.workloads.workload import Workload, paced

DROP_EVERY_S = 1.5
AWAY_S_MAX = 1.0

__all__ = ["SharedWorkload"]


class SharedWorkload(Workload):
    """Half of the clients are members, half publish."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        half = max(1, self.count(8) // 2)
        self.topic_root = run.name("shared")
        self.members = [run.client(f"m{i}", ClientOptions()) for i in range(half)]
        self.publishers = [run.client(f"p{i}", ClientOptions(protocol_version=4 + i % 2)) for i in range(half)]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for member in self.members:
            self.run.start_member(member, {f"$share/{self.run.name('group')}/{self.topic_root}/+": 2})
        for publisher in self.publishers:
            self.run.start_member(publisher, {})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for publisher in self.publishers:
                nursery.start_soon(self._publish, publisher)
            for member in self.members[1:]:
                nursery.start_soon(self._drop_sometimes, member)

    async def _publish(self, publisher: RecordingClient) -> None:
        rng = self.run.rng(publisher.process)
        count = 0
        while True:
            count += 1
            topic = f"{self.topic_root}/{rng.randrange(4)}"
            await self.run.publish(publisher, topic, f"{publisher.process}-{count}", rng.choice((1, 2)), set())
            await paced(self.run, rng.uniform(0, 2))

    async def _drop_sometimes(self, member: RecordingClient) -> None:
        rng = self.run.rng(f"{member.process}/drop")
        while True:
            await trio.sleep(rng.expovariate(1 / DROP_EVERY_S))
            self.run.stay_away(member, rng.choice((0.0, rng.uniform(0, AWAY_S_MAX))))
            member.drop()
