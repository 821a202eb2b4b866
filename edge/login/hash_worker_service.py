"""The one thread of hashes: a flood of passwords costs one processor at most, and the loop none of its turns."""

import logging

import trio

from access.identity.passwords import HashJob
from edge.login.job_desk import JobDesk
from edge.login.logins import Done

__all__ = ["HashWorker"]

logger = logging.getLogger(__name__)


class HashWorker:
    """Computes the hashes that logins wait for, one at a time.

    Args:
        desk: Where they wait.
        done: Takes each result.
    """

    def __init__(self, desk: JobDesk, done: Done) -> None:
        self._desk = desk
        self._done = done
        self._came = trio.Event()
        self._limiter = trio.CapacityLimiter(1)

    def came(self) -> None:
        """Go on: a login waits."""
        self._came.set()

    async def run(self) -> None:
        """Compute until cancelled."""
        while True:
            taken = self._desk.take()
            if taken is None:
                self._came = trio.Event()
                await self._came.wait()
                continue
            number, ticket = taken
            result: object = None
            if isinstance(ticket.job, HashJob):
                try:
                    result = await trio.to_thread.run_sync(
                        ticket.job.run, limiter=self._limiter, abandon_on_cancel=True
                    )
                except (RuntimeError, MemoryError, ValueError) as error:  # no thread, or no room for the hash
                    logger.warning("a hash was not computed: %s", type(error).__name__)
            self._done(number, ticket, result)
