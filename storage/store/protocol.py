"""The key-value store interface of the storage tier; the simulation uses a model of it.

Writes are visible at once and durable after a sync that *started* after their commit. Commits become durable in order:
after a power loss a store holds a prefix of them, whole transactions only.
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
    """Runs tickets beside the owner's loop, one at a time."""

    def begin(self, ticket: SyncTicket) -> bool:
        """Begin a sync (none may be running); return whether it has ended already. Raises SyncFailed likewise."""

    async def attend(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` after each sync that ``begin`` did not complete, until cancelled.

        Raises:
            SyncFailed: One failed; the process must end. It must also end if ``ended`` raises.
        """

    def close(self) -> None:
        """Wait for a running sync; none may begin after this."""


class KeyValueStore(Protocol):
    """An ordered map of bytes to bytes with atomic batches, used by one thread at a time."""

    @property
    def transaction_no(self) -> int:
        """Number of the newest commit, ascending by one; durable or not."""

    @property
    def crowded(self) -> bool:
        """Whether the next commit should wait until all before it are durable: else its call may have to sync them."""

    @property
    def held(self) -> bool:
        """Whether the next commit should wait for the end of a checkpoint, or for ``make_room``."""

    @property
    def makes_room(self) -> bool:
        """Whether ``make_room`` has work, for a held commit or for later ones."""

    @property
    def acked_up_to(self) -> int:
        """Commit up to which acknowledgements may have left, according to the marker."""

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch as one transaction and return its commit number; not durable yet.

        Args:
            batch: Puts and point deletes; an empty batch is a commit too.
            reclaiming: The batch frees more space than it uses (acks, expiry): accepted below the free-space floor,
              down to a quarter of it.

        Raises:
            ValueTooLarge, StoreFull, StoreClosed: The batch was not written.
            BatchUnknown: The batch may be in the store or not; see ``transaction_no``.
            StoreFatal: The process must end.
        """

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent.

        Raises:
            StoreDamaged: The record or its page fails its check.
        """

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return up to limit rows with start <= key < stop (None: no bound), ascending; fewer rows mean the end."""

    def begin_sync(self, *, marker: bool = False) -> SyncTicket:
        """Prepare a sync of every commit so far, and of the marker if requested or a group behind."""

    def checkpoint(self, synced: SyncTicket | None = None) -> SyncTicket | None:
        """Return the files that a checkpoint has to sync next, beside the loop; None if there are none.

        Args:
            synced: The last returned step, if it is synced; else a checkpoint begins if one is due.
        """

    def make_room(self) -> None:
        """Work for some milliseconds on freeing space for held or later commits."""

    def require_room(self, *, reclaiming: bool = False) -> None:
        """Raise StoreFull if ``write`` would; call it before an operation gets its number, not when it is written."""

    def acked(self, transaction_no: int) -> None:
        """Record, before acknowledgements leave, that commits up to this one are acknowledged."""

    def close(self) -> None:
        """Sync and close the store. Closing twice is allowed."""
