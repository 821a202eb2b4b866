"""One thread for password hashes: many logins use at most one processor, and never block the loop.

The thread has the lowest priority of this process, so the loop gets processor time first. It is created for the first
hash and has no other work, because a lowered priority cannot be raised again.
"""

import logging
import os
import queue
import threading

import trio

from access.identity.passwords import HashJob
from conf.events import say
from edge.login.auth_jobs import AuthJobs
from edge.login.logins import Done

__all__ = ["HashWorker"]

logger = logging.getLogger(__name__)

LOWEST = 19


class HashWorker:
    """Computes hashes for logins, one at a time.

    Args:
        desk: Queue of the logins.
        done: Called with each result.
    """

    def __init__(self, desk: AuthJobs, done: Done) -> None:
        self._desk = desk
        self._done = done
        self._came = trio.Event()
        self._jobs: queue.SimpleQueue[HashJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._computed = trio.Event()
        self._result: object = None

    def came(self) -> None:
        """Wake the worker: a login is queued."""
        self._came.set()

    async def run(self) -> None:
        """Compute until cancelled."""
        try:
            while True:
                taken = self._desk.take()
                if taken is None:
                    self._came = trio.Event()
                    await self._came.wait()
                    continue
                number, ticket = taken
                result = await self._compute(ticket.job) if isinstance(ticket.job, HashJob) else None
                self._done(number, ticket, result)
        finally:
            self._jobs.put(None)

    async def _compute(self, job: HashJob) -> object:
        """Return the result of a job; None without a thread, or without memory for the hash."""
        if self._thread is None:
            token = trio.lowlevel.current_trio_token()
            thread = threading.Thread(target=self._work, args=(token,), name="hashes", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                say(logger, "login.hash_failed", why=error)
                return None
            self._thread = thread
        self._computed = trio.Event()
        self._jobs.put(job)
        await self._computed.wait()
        return self._result

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        """Compute in the thread."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)  # Linux: of this thread alone
        while (job := self._jobs.get()) is not None:
            result: object = None
            try:
                result = job.run()
            except (MemoryError, ValueError) as error:
                say(logger, "login.hash_failed", why=type(error).__name__)
            try:
                token.run_sync_soon(self._take, result)
            except trio.RunFinishedError:
                return

    def _take(self, result: object) -> None:
        self._result = result
        self._computed.set()
