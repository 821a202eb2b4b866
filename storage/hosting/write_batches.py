"""Batches of writes on their way to the disk: what reads see of them, and what their sync allows.

Each turn makes at most one batch, numbered from 1. Until the shell says that a batch is synced, its rows stand in the
overlay, which every read of the store looks through first. An operation's op_index, or a backup's answer, counts once
the batch that holds it is synced.
"""

from collections import deque

from storage.state.partition import Overlay
from storage.state.row_lists import add_to_overlay, take_from_overlay

__all__ = ["SyncedOperation", "WriteBatches", "Writes"]

Writes = list[tuple[bytes, bytes | None]]
SyncedOperation = tuple[int, int, int, int]  # batch, partition, partition_epoch, op_index


class WriteBatches:
    """Batches of one node.

    Invariants: ``synced`` <= ``newest``; neither falls; each key of the overlay names the newest batch that wrote it.
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
        """Number of the batch that this turn makes, if it writes anything."""
        return self.newest + 1

    def note_operation(self, number: int, epoch: int, op_index: int) -> None:
        """Note an operation whose rows are in this turn's batch."""
        assert not self._operations or self._operations[-1][0] <= self.next
        self._operations.append((self.next, number, epoch, op_index))

    def close(self, writes: Writes) -> int:
        """End this turn's batch; return its number, 0 if it holds nothing."""
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
        """Return the answers whose batch is synced, in order."""
        taken = []
        while self._answers and self._answers[0][0] <= self.synced:
            _, node, payload = self._answers.popleft()
            taken.append((node, payload))
        return taken

    def note_synced(self, batch: int) -> list[SyncedOperation]:
        """Note that every batch up to this one is on disk; return the operations in them.

        Rows that are in the store leave the overlay; a key that was written again since stays.
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
