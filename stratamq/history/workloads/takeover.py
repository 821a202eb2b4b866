"""takeover: several programs fight for each client identifier (R9, R10).

Every program connects, subscribes, publishes to a watcher, and goes on trying on its old connection when
another has taken over. Nothing is sent again, and packet identifiers of the programs are apart, so that an effect can
be laid at one connection's door. In the quiet phase one program per client identifier is left, with its
session and queue.
"""

from __future__ import annotations

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.run import Run
from stratamq.history.workloads.workload import Workload

PROGRAMS_PER_CLIENT = 3
IDENTIFIERS_EACH = 20_000
HOLD_S = (0.01, 0.25)  # a program holds on to its connection for so long before it connects anew

__all__ = ["TakeoverWorkload"]


class TakeoverWorkload(Workload):
    """A third of the programs have unique client identifiers; the others share them."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.topic_root = run.name("takeover")
        self.watcher = run.client("watch", ClientOptions())
        self.contested = max(1, self.count(9, PROGRAMS_PER_CLIENT) // PROGRAMS_PER_CLIENT)
        self.programs: list[RecordingClient] = []
        for number in range(self.contested):
            for program in range(PROGRAMS_PER_CLIENT):
                self.programs.append(self._program(number, program))

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        self.run.start_member(self.watcher, {f"{self.topic_root}/up/#": 1})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for program in self.programs:
                nursery.start_soon(self._fight, program)
            nursery.start_soon(self._feed)

    async def finish(self) -> None:
        """Stop all but the first program of each client identifier."""
        for program in self.programs:
            program.drop()
        for program in self.programs[::PROGRAMS_PER_CLIENT]:
            self.run.start_member(program, {self._own_topic(program): 1})
        await self.run.members_ready()

    async def _fight(self, program: RecordingClient) -> None:
        rng = self.run.rng(program.process)
        count = 0
        while True:
            if not await program.connect():
                await trio.sleep(rng.uniform(*HOLD_S))
                continue
            program.subscribe(self._own_topic(program), 1)
            with trio.move_on_after(rng.uniform(*HOLD_S)):
                while program.connected:
                    count += 1
                    topic = f"{self.topic_root}/up/{program.process}"
                    await self.run.publish(program, topic, f"{program.process}-{count}", 1, {self.watcher.client_id})
                    await trio.sleep(rng.uniform(0, 2) / self.run.settings.operations_per_s)
            if rng.random() < 0.2:
                await trio.sleep(rng.uniform(*HOLD_S))

    async def _feed(self) -> None:
        """Publish to the contested sessions, so that their queues are at stake too."""
        rng = self.run.rng("feed")
        count = 0
        while True:
            count += 1
            program = rng.choice(self.programs)
            await self.run.publish(self.watcher, self._own_topic(program), f"feed-{count}", 1, set())
            await trio.sleep(rng.uniform(0, 2) / self.run.settings.operations_per_s)

    def _own_topic(self, program: RecordingClient) -> str:
        return f"{self.topic_root}/down/{program.client_id}"

    def _program(self, number: int, program: int) -> RecordingClient:
        options = ClientOptions(protocol_version=5 if program else 4, resend=False)
        client = self.run.client(f"c{number}.{program}", options, self.run.name(f"c{number}"))
        client.session.first_identifier = 1 + program * IDENTIFIERS_EACH
        client.session.last_identifier = (program + 1) * IDENTIFIERS_EACH
        return client
