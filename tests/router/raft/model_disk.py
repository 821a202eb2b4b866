"""A simulated disk that loses unsynced writes, or randomly keeps part of them.

Mirrors the order of ``RaftNode`` and ``RaftLog``: of one sync, the newest hard state is durable before any entry; a
crash keeps a prefix of the rest. ``lose_everything`` is a new disk under the old name.
"""

import random
from collections.abc import Sequence

from router.raft.events import HardState, RaftReady, Snapshot, StoredRaftState
from router.raft.messages import LogEntry

__all__ = ["ModelDisk"]


class ModelDisk:
    """Durable state, and the writes of one running sync."""

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
        """Write the data of one sync."""
        hard_states = [ready.hard_state for ready in batch if ready.hard_state is not None]
        self._pending = [*hard_states[-1:]]
        for ready in batch:
            if ready.snapshot is not None:
                self._pending.append(ready.snapshot)
            self._pending.extend(ready.entries)

    def finish(self) -> None:
        """Complete the sync."""
        for item in self._pending:
            self._keep(item)
        self._pending = []

    def crash(self, rng: random.Random) -> None:
        """Lose power: a prefix of the writes survives."""
        for item in self._pending[: rng.randint(0, len(self._pending))]:
            self._keep(item)
        self._pending = []

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Store an own snapshot and drop the covered part of the log."""
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
