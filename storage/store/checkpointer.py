"""Runs the steps of a store's checkpoints: syncs on a thread, everything between them in the loop."""

from collections.abc import Callable

from storage.store.protocol import KeyValueStore, Syncs, SyncTicket

__all__ = ["Checkpointer"]


class Checkpointer:
    """Checkpoints of one store."""

    def __init__(self, store: KeyValueStore, syncs: Syncs, ended: Callable[[], None]) -> None:
        """Args:
        store: Returns the files to sync.
        syncs: A thread of its own: commits must not wait for a checkpoint.
        ended: Called when a checkpoint has ended.
        """
        self._store = store
        self._syncs = syncs
        self._ended = ended
        self._step: SyncTicket | None = None

    def begin_due(self) -> None:
        """Begin a checkpoint if one is due. Raises StoreError."""
        if self._step is None:
            self._begin(self._store.checkpoint())

    async def run(self) -> None:
        """Continue whenever a step is synced, until cancelled. Raises StoreError."""
        await self._syncs.attend(self._step_synced)

    def _step_synced(self) -> None:
        self._begin(self._store.checkpoint(self._step))
        if self._step is None:
            self._ended()

    def _begin(self, step: SyncTicket | None) -> None:
        while step is not None and self._syncs.begin(step):
            step = self._store.checkpoint(step)
        self._step = step

    def close(self) -> None:
        """Wait for a running sync; closing the store completes an unfinished checkpoint."""
        self._syncs.close()
