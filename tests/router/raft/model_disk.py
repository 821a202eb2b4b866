"""A disk for simulation that forgets what was not synced, and keeps part of it when it feels like it.

Mirrors the order of ``RaftNode`` and ``RaftLog``: of one sync, the newest hard state is durable before any entry; a
crash keeps a prefix of the rest. ``lose_everything`` is a new disk under the old name.
"""

import random
from collections.abc import Sequence

from router.raft.events import HardState, RaftReady, Snapshot, StoredRaftState
from router.raft.messages import LogEntry

__all__ = ["ModelDisk"]


class ModelDisk:
    """Durable state, and the writes of one sync under way."""

    def __init__(self, storage_id: int) -> None:
        self.lose_everything(storage_id)

    def lose_everything(self, storage_id: int) -> None:
        self.storage_id = storage_id
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: list[LogEntry] = []
        self._pending: list[HardState | LogEntry | Snapshot] = []

    def load(self) -> StoredRaftState:
        return StoredRaftState(self.storage_id, self.hard_state, self.snapshot, tuple(self.entries))

    def begin(self, batch: Sequence[RaftReady]) -> None:
        """Write what one sync will make durable."""
        hard_states = [ready.hard_state for ready in batch if ready.hard_state is not None]
        self._pending = [*hard_states[-1:]]
        for ready in batch:
            if ready.snapshot is not None:
                self._pending.append(ready.snapshot)
            self._pending.extend(ready.entries)

    def finish(self) -> None:
        """The sync returned."""
        for item in self._pending:
            self._keep(item)
        self._pending = []

    def crash(self, rng: random.Random) -> None:
        """Power is lost: a prefix of what was written survives."""
        for item in self._pending[: rng.randint(0, len(self._pending))]:
            self._keep(item)
        self._pending = []

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """An own snapshot, with the part of the log it covers dropped."""
        if self.snapshot is None or snapshot.index > self.snapshot.index:
            self.entries = [entry for entry in self.entries if entry.index > snapshot.index]
            self.snapshot = snapshot

    def _keep(self, item: HardState | LogEntry | Snapshot) -> None:
        if isinstance(item, HardState):
            self.hard_state = item
        elif isinstance(item, Snapshot):
            self.snapshot, self.entries = item, []
        else:
            base = self.snapshot.index if self.snapshot else 0
            if item.index > base:
                del self.entries[item.index - base - 1 :]
                self.entries.append(item)
