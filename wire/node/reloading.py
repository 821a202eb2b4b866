"""The task that reloads a node: one reload at a time, read in a thread, put into effect in one loop iteration."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import trio

from conf.events import say
from wire.node.reload import NodeReload, Prepared, Reloaded

__all__ = ["LOOK_S", "Reloading", "WatchedFiles"]

logger = logging.getLogger(__name__)


LOOK_S = 30.0  # between checks of files; a change takes effect within two of them


class WatchedFiles(Protocol):
    """A part whose files are checked between reloads."""

    def look(self) -> Any:
        """Return the changed content of the files, if any; runs in a thread and does not raise."""

    def take(self, checked: Any) -> None:
        """Put the result of ``look`` into effect, or log its fault."""


class Reloading:
    """Reloads on request; requests during a reload are merged into one more reload.

    Args:
        reload: The parts of the node.
        told: Receives each outcome except those of dry runs.
    """

    def __init__(self, reload: NodeReload, told: Callable[[Reloaded], None] = lambda _: None) -> None:
        self.reload = reload
        self._on_outcome = told
        self._requested = trio.Event()
        self._lock = trio.Lock()

    def want(self) -> None:
        """Request a reload, as for SIGHUP."""
        self._requested.set()

    async def run(self) -> None:
        """Reload on each request, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            say_outcome(await self.once())

    async def watch(self, part: WatchedFiles) -> None:
        """Check a part's files every ``LOOK_S`` until cancelled, never during a reload."""
        while True:
            await trio.sleep(LOOK_S)
            async with self._lock:
                try:
                    checked = await trio.to_thread.run_sync(part.look)
                except (RuntimeError, OSError, MemoryError) as error:  # no thread: retried at the next check
                    say(logger, "reload.files_not_read", why=error or type(error).__name__)
                else:
                    part.take(checked)

    async def once(self, dry_run: bool = False) -> Reloaded:
        """Reload completely, or keep the old state; waits for a running reload."""
        async with self._lock:
            try:
                prepared = await trio.to_thread.run_sync(self.reload.prepare)
            except (RuntimeError, OSError, MemoryError) as error:  # no thread, no descriptor: the old state stays
                prepared = Prepared(mistakes=(f"nothing was read: {error or type(error).__name__}",))
            outcome = self.reload.apply(prepared, dry_run)
        if not dry_run:
            self._on_outcome(outcome)
        return outcome


def say_outcome(outcome: Reloaded) -> None:
    """Log an outcome: a summary line, and a line for each difference or mistake."""
    if outcome.ok:
        say(logger, "reload.done", differences=len(outcome.lines))
        for line in outcome.lines:
            say(logger, "reload.difference", line=line)
    else:
        say(logger, "reload.refused", mistakes=len(outcome.lines))
        for line in outcome.lines:
            say(logger, "reload.mistake", line=line)
