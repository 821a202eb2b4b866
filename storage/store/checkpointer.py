"""Takes a store's checkpoints through their steps: the syncs of each on a thread, then the next one in the loop."""

from collections.abc import Callable

from storage.store.protocol import KeyValueStore, Syncs, SyncTicket

__all__ = ["Checkpointer"]


class Checkpointer:
    """Checkpoints of one store."""

    def __init__(self, store: KeyValueStore, syncs: Syncs, ended: Callable[[], None]) -> None:
        """Args:
        store: Says what is to be synced.
        syncs: A thread for it, not that of the commits: those wait for no checkpoint.
        ended: Called when a checkpoint has ended.
        """
        self._store = store
        self._syncs = syncs
        self._ended = ended
        self._step: SyncTicket | None = None

    def look(self) -> None:
        """Begin a checkpoint if one is due. Raises StoreError."""
        if self._step is None:
            self._begin(self._store.checkpoint())

    async def run(self) -> None:
        """Go on whenever a step is synced, until cancelled. Raises StoreError."""
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
        """Wait for a sync that runs; what is left of a checkpoint is done by whoever closes the store."""
        self._syncs.close()
