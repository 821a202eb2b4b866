"""rebalance: queues, registers and fights for sessions at once, over many sessions and topics (R16).

The caller changes the placement during the run; all guarantees must hold. The work covers all moved state: queues,
in-flight messages, retained topics, session owners.
"""

from __future__ import annotations

import trio

from stratamq.history.run import Run
from stratamq.history.workloads.queue import QueueWorkload
from stratamq.history.workloads.retained import RetainedWorkload
from stratamq.history.workloads.takeover import TakeoverWorkload
from stratamq.history.workloads.workload import Workload

__all__ = ["RebalanceWorkload"]


class RebalanceWorkload(Workload):
    """The parts share run and broker; their programs, and so client identifiers and topics, are apart."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.parts = [part(run) for part in (QueueWorkload, RetainedWorkload, TakeoverWorkload)]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for part in self.parts:
            await part.prepare()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in self.parts:
                nursery.start_soon(part.work)

    async def finish(self) -> None:
        """End what no longer works by itself."""
        for part in self.parts:
            await part.finish()

    async def read_final_state(self) -> None:
        """Read at rest, after the last fault, what the checkers compare."""
        for part in self.parts:
            await part.read_final_state()
