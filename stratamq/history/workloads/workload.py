"""A workload: clients that set themselves up, work, and read the final state."""

from __future__ import annotations

import abc

import trio

from stratamq.history.run import Run

__all__ = ["Workload", "paced"]


class Workload(abc.ABC):
    """One kind of work on a broker.

    Attributes:
        least_quiet_s: The quiet phase is at least so long, whatever has arrived.
    """

    least_quiet_s: float = 1.0

    def __init__(self, run: Run) -> None:
        self.run = run

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Create clients and subscriptions; returns when work can begin, or when it gave up waiting for that."""

    @abc.abstractmethod
    async def work(self) -> None:
        """Work until cancelled."""

    async def finish(self) -> None:  # noqa: B027 - most workloads have nothing to stop
        """Stop disconnections and let all clients reconnect; called at the start of the quiet phase."""

    async def read_final_state(self) -> None:  # noqa: B027 - most have no state of their own
        """Read the final state; called after the quiet phase."""

    def count(self, default: int, least: int = 2) -> int:
        """Return the number of programs asked for."""
        return max(least, self.run.settings.clients or default)


async def paced(run: Run, jitter: float) -> None:
    """Wait one period of a publishing program; jitter is between 0 and 2, and 1 on average."""
    await trio.sleep(jitter / run.settings.operations_per_s)
