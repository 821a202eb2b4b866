"""The task of a node that reloads: one at a time, read in a thread, put in force in one turn of the loop."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import trio

from conf.events import say
from wire.node.reload import NodeReload, Prepared, Reloaded

__all__ = ["LOOK_S", "Reloading", "WatchedFiles"]

logger = logging.getLogger(__name__)


LOOK_S = 30.0  # between looks at files; a change is in force within two of them


class WatchedFiles(Protocol):
    """A part whose files are looked at between reloads."""

    def look(self) -> Any:
        """Return what the files hold if that is something else; runs in a thread and raises nothing."""

    def take(self, looked: Any) -> None:
        """Put what was found in force, or say what is wrong."""


class Reloading:
    """Reloads when it is wanted; wishes that come while one is under way become one more after it.

    Args:
        reload: The parts of the node.
        told: Takes each outcome but those of dry runs.
    """

    def __init__(self, reload: NodeReload, told: Callable[[Reloaded], None] = lambda _: None) -> None:
        self.reload = reload
        self._told = told
        self._wanted = trio.Event()
        self._lock = trio.Lock()

    def want(self) -> None:
        """Reload soon: SIGHUP came."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            say_outcome(await self.once())

    async def watch(self, part: WatchedFiles) -> None:
        """Look at the files of a part every ``LOOK_S``, until cancelled; never while a reload is under way."""
        while True:
            await trio.sleep(LOOK_S)
            async with self._lock:
                try:
                    looked = await trio.to_thread.run_sync(part.look)
                except (RuntimeError, OSError, MemoryError) as error:  # no thread: the next look may find one
                    say(logger, "reload.files_not_read", why=error or type(error).__name__)
                else:
                    part.take(looked)

    async def once(self, dry_run: bool = False) -> Reloaded:
        """Read everything, then put it in force or leave the old state; another one under way is waited for."""
        async with self._lock:
            try:
                prepared = await trio.to_thread.run_sync(self.reload.prepare)
            except (RuntimeError, OSError, MemoryError) as error:  # no thread, no descriptor: the old state stays
                prepared = Prepared(mistakes=(f"nothing was read: {error or type(error).__name__}",))
            outcome = self.reload.apply(prepared, dry_run)
        if not dry_run:
            self._told(outcome)
        return outcome


def say_outcome(outcome: Reloaded) -> None:
    """Write an outcome to the log: one line of the whole, one of each difference or mistake."""
    if outcome.ok:
        say(logger, "reload.done", differences=len(outcome.lines))
        for line in outcome.lines:
            say(logger, "reload.difference", line=line)
    else:
        say(logger, "reload.refused", mistakes=len(outcome.lines))
        for line in outcome.lines:
            say(logger, "reload.mistake", line=line)
