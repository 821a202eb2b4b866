"""Batches of writes that are not synced yet: the overlay for reads, and the operations that their sync commits.

Each iteration makes at most one batch, numbered from 1. Until the shell reports a batch as synced, its rows are in the
overlay, which every read of the store checks first. An operation's op_index, or a backup's reply, is valid once its
batch is synced.
"""

from collections import deque

from storage.state.partition import Overlay
from storage.state.row_lists import add_to_overlay, take_from_overlay

__all__ = ["SyncedOperation", "WriteBatches", "Writes"]

Writes = list[tuple[bytes, bytes | None]]
SyncedOperation = tuple[int, int, int, int]  # batch, partition, partition_epoch, op_index


class WriteBatches:
    """Batches of one node.

    Invariants: ``synced`` <= ``newest``; neither decreases; each overlay key has the number of the newest batch that
    wrote it.
    """

    def __init__(self) -> None:
        self.overlay: Overlay = {}
        self.newest = 0  # number of the newest batch
        self.synced = 0  # every batch up to this one is on disk
        self._written: deque[tuple[int, Writes]] = deque()  # batch, its rows
        self._operations: deque[SyncedOperation] = deque()
        self._answers: deque[tuple[int, str, bytes]] = deque()  # batch, node, REPLICATE_ACK

    @property
    def next(self) -> int:
        """Number of this iteration's batch, if it has writes."""
        return self.newest + 1

    def note_operation(self, number: int, epoch: int, op_index: int) -> None:
        """Record an operation whose rows are in this iteration's batch."""
        assert not self._operations or self._operations[-1][0] <= self.next
        self._operations.append((self.next, number, epoch, op_index))

    def close(self, writes: Writes) -> int:
        """Close this iteration's batch; return its number, 0 if it is empty."""
        if not writes:
            assert not self._operations or self._operations[-1][0] <= self.newest, "an operation without rows"
            return 0
        self.newest += 1
        add_to_overlay(self.overlay, self.newest, writes)
        self._written.append((self.newest, writes))
        return self.newest

    def note_answer(self, node: str, payload: bytes) -> None:
        """Keep a backup's answer until the newest batch is synced."""
        self._answers.append((self.newest, node, payload))

    def take_answers(self) -> list[tuple[str, bytes]]:
        """Return the replies whose batch is synced, in order."""
        taken = []
        while self._answers and self._answers[0][0] <= self.synced:
            _, node, payload = self._answers.popleft()
            taken.append((node, payload))
        return taken

    def note_synced(self, batch: int) -> list[SyncedOperation]:
        """Record that every batch up to this one is on disk; return the operations in them.

        Rows in the store leave the overlay; a key that a later batch wrote again stays.
        """
        assert batch <= self.newest, f"batch {batch} is synced and was never made"
        self.synced = max(self.synced, batch)
        operations = []
        while self._operations and self._operations[0][0] <= batch:
            operations.append(self._operations.popleft())
        overlay, written = self.overlay, self._written
        while written and written[0][0] <= batch:
            take_from_overlay(overlay, batch, written.popleft()[1])
        return operations
