"""The spool of an exactly-once bridge: output to either side is sent only after its rows are synced.

``gateways/bridges/exchanges.py`` defines the rows. If the disk is full, both sides pause and the same rows are retried.
A spool that is no longer writable ends the bridge.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import trio

from conf.errors import UserError
from conf.events import say
from gateways.bridges.exchanges import ASKED, DONE, SENT, DamagedExchangeRow, SinkExchanges
from gateways.client import GatewayClient
from gateways.spool import SpoolFile, SpoolFull
from gateways.spool_rows import Write
from gateways.spool_thread import Spool

__all__ = ["ExactlyOnce", "spool_path"]

logger = logging.getLogger(__name__)

FULL_RETRY_S = 1.0  # retry interval while the disk is full
CLOSE_S_MAX = 10.0


def spool_path(folder: Path, bridge: str) -> Path:
    """Return the spool file of a bridge in the folder of its process."""
    return folder / f"{bridge}.spool"


class ExactlyOnce:
    """The spool of one bridge; a ``BridgeSide``.

    Args:
      path, owner, bytes_max: Of the spool.
      exchanges: The exchanges that it stores.
      clients: By side.
    """

    name = "spool"

    def __init__(
        self, path: Path, owner: str, bytes_max: int, exchanges: SinkExchanges, clients: Mapping[str, GatewayClient]
    ) -> None:
        self.is_up, self.reason = False, "not opened yet"
        self._path, self._owner, self._bytes_max = path, owner, bytes_max
        self._exchanges, self._clients = exchanges, clients
        self._wake = trio.Event()
        exchanges.waker = lambda: self._wake.set()

    async def run(self, tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Open the spool, resume its exchanges, and run tasks until one of them ends.

        Raises:
          UserError: One line: the spool is foreign, damaged, newer, read-only, or no longer writable.
        """
        try:
            spool = Spool(await trio.to_thread.run_sync(SpoolFile, self._path, self._owner, self._bytes_max))
        except UserError as error:
            self.reason = error.message
            raise
        try:
            self._restore(spool)
            self.is_up, self.reason = True, ""
            async with trio.open_nursery() as nursery:

                async def run(task: Callable[[], Awaitable[None]]) -> None:
                    await task()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(self._commit_loop, spool)
                nursery.start_soon(spool.watch)
                for side in self._clients:
                    nursery.start_soon(self._note_filters, side)
                for task in tasks:
                    nursery.start_soon(run, task)
        finally:
            self.is_up = False
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S_MAX):
                await trio.to_thread.run_sync(spool.close)

    def _restore(self, spool: Spool) -> None:
        try:
            count = self._exchanges.restore(*(list(spool.load(kind)) for kind in (SENT, DONE, ASKED)))
        except DamagedExchangeRow as error:
            raise UserError(f"the spool {self._path} has an invalid row ({error}): move the file away") from None
        for side, client in self._clients.items():
            client.was_granted = self._exchanges.has_filters(side, client.filters)
        if count:
            say(logger, "bridge.exchanges_go_on", path=self._path, exchanges=count)

    async def _commit_loop(self, spool: Spool) -> None:
        while True:
            writes = self._exchanges.begin_commit()
            if not writes:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            await self._commit(spool, writes)
            self._exchanges.committed()

    async def _commit(self, spool: Spool, writes: list[Write]) -> None:
        while True:
            try:
                await spool.commit(writes, drains=True)
            except SpoolFull as error:
                if self.is_up:
                    say(logger, "bridge.spool_full", problem=error)
                self.is_up, self.reason = False, str(error)
                await trio.sleep(FULL_RETRY_S)
            else:
                if not self.is_up:
                    say(logger, "bridge.spool_has_room", path=self._path)
                self.is_up, self.reason = True, ""
                return

    async def _note_filters(self, side: str) -> None:
        client = self._clients[side]
        await client.granted.wait()
        self._exchanges.record_filters(side, client.filters)
