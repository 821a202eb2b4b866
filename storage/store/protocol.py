"""The key-value store as the storage room needs it, so that a model can stand in for it in the simulation.

Writes are visible at once and durable once a sync that *started* after their commit has ended. Commits become durable
in order: after a power loss a store holds a prefix of them, whole transactions only.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Batch", "KeyValueStore", "Row", "SyncTicket", "Syncs"]

Batch = Sequence[tuple[bytes, bytes | None]]  # None deletes the key; a later item of a batch overrides an earlier one
Row = tuple[bytes, bytes]


class SyncTicket(Protocol):
    """One sync, prepared on the owner's thread and run on any."""

    @property
    def transaction_no(self) -> int:
        """Last commit that this sync makes durable: the newest one when the ticket was taken."""

    def run(self) -> None:
        """Sync, blocking, without the interpreter lock.

        Raises:
            SyncFailed: The process must end.
        """


class Syncs(Protocol):
    """Where tickets are run beside the owner's loop, one at a time."""

    def begin(self, ticket: SyncTicket) -> bool:
        """Begin a sync, none is under way; return whether it has ended already. Raises SyncFailed likewise."""

    async def attend(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` for each sync that had not ended when it was begun, once it has; until cancelled.

        Raises:
            SyncFailed: One failed; the process must end. So must it after what ``ended`` raises.
        """

    def close(self) -> None:
        """Wait for a sync that runs; none is begun after this."""


class KeyValueStore(Protocol):
    """An ordered map of bytes to bytes with atomic batches, used by one thread at a time."""

    @property
    def transaction_no(self) -> int:
        """Number of the newest commit, ascending by one; durable or not."""

    @property
    def crowded(self) -> bool:
        """Whether the next commit is to wait until all before it are durable: else its call may have to sync them."""

    @property
    def held(self) -> bool:
        """Whether the next commit is to wait: for the end of a checkpoint that runs, or for ``make_room``."""

    @property
    def makes_room(self) -> bool:
        """Whether ``make_room`` has something to do, for a commit that is held or for later ones."""

    @property
    def acked_up_to(self) -> int:
        """Commit up to which the marker says that others were told."""

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch as one transaction and return its commit number; not durable yet.

        Args:
            batch: Puts and point deletes; an empty batch is a commit too.
            reclaiming: The batch frees more than it writes (acks, expiry): accepted below the free-space floor,
                down to a quarter of it.
        Raises:
            ValueTooLarge, StoreFull, StoreClosed: Nothing was written.
            BatchUnknown: The batch may be in the store or not; see ``transaction_no``.
            StoreFatal: The process must end.
        """

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent.

        Raises:
            StoreDamaged: The record or its page fails its check.
        """

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop (None: no bound) in ascending order; fewer is the end."""

    def begin_sync(self, *, marker: bool = False) -> SyncTicket:
        """Prepare a sync that covers every commit so far, and the marker if asked or if it is a group behind."""

    def checkpoint(self, synced: SyncTicket | None = None) -> SyncTicket | None:
        """Return what is to be synced next, beside the loop, for a checkpoint; None: nothing.

        Args:
            synced: What was returned before, if that is synced now; else a checkpoint is begun, if one is due.
        """

    def make_room(self) -> None:
        """Do some milliseconds of what a held commit waits for, or will wait for."""

    def require_room(self, *, reclaiming: bool = False) -> None:
        """Raise StoreFull if ``write`` would; ask before an operation is ordered, not when it is written."""

    def acked(self, transaction_no: int) -> None:
        """Note, before anybody is told, that commits up to this one are about to be acknowledged."""

    def close(self) -> None:
        """Sync, close, release. Closing twice is allowed."""
