"""wills: connections with unique wills that end in every way (R11).

By DISCONNECT (no will), by DISCONNECT 0x04 (will), by a cut (will), by a takeover of the program's own next CONNECT
(will); a part of them with a will delay, resumed before it runs out or after. Watchers are durable, at QoS 2.
"""

from __future__ import annotations

from dataclasses import replace

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.run import Run
from stratamq.history.workloads.workload import Workload

WITH_WILL = 0x04  # DISCONNECT with Will Message (MQTT 5.0 section 3.14.2.1)
DELAY_S = 1
HOLD_S = (0.02, 0.3)
WATCHERS = 2

__all__ = ["WillsWorkload"]


class WillsWorkload(Workload):
    """All clients but the watchers live short lives."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.least_quiet_s = run.settings.detection_s + DELAY_S + 0.5
        self.topic_root = run.name("wills")
        self.watchers = [run.client(f"watch{i}", ClientOptions(protocol_version=4 + i % 2)) for i in range(WATCHERS)]
        self.mortals = [run.client(f"m{i}", ClientOptions(protocol_version=4 + i % 2)) for i in range(self.count(8))]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for watcher in self.watchers:
            self.run.start_member(watcher, {f"{self.topic_root}/#": 2})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for mortal in self.mortals:
                nursery.start_soon(self._live_and_die, mortal)

    async def finish(self) -> None:
        """Stop clients that no longer work."""
        for mortal in self.mortals:
            mortal.drop()

    async def _live_and_die(self, mortal: RecordingClient) -> None:
        rng = self.run.rng(mortal.process)
        starts = 0
        while True:
            starts += 1
            delay_s = DELAY_S if mortal.options.protocol_version == 5 and rng.random() < 0.2 else 0
            options = replace(
                mortal.options,
                will_topic=f"{self.topic_root}/{mortal.process}",
                will_payload=f"{mortal.process}-{starts}",
                will_qos=rng.choice((1, 2)),
                will_delay_interval_s=delay_s,
            )
            # A durable session keeps open exchanges; these clients have none, their sessions only carry wills.
            if await mortal.connect(options):
                await trio.sleep(rng.uniform(*HOLD_S))
                death = rng.random()
                if death < 0.35:
                    await mortal.disconnect()
                elif death < 0.5 and mortal.options.protocol_version == 5:
                    await mortal.disconnect(WITH_WILL)
                elif death < 0.85:
                    mortal.drop()
                # else: the next CONNECT finds the connection open; ``connect`` cuts it at the same moment
            await trio.sleep(rng.uniform(0, 2) / self.run.settings.operations_per_s)
            if delay_s and rng.random() < 0.3:
                await trio.sleep(self.least_quiet_s)
