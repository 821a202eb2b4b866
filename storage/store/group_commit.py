"""Decides when submitted writes become a transaction, when the log is synced, and which batches are durable.

Pure logic; ``storage/store/group_committer.py`` runs transactions and syncs. The pipeline is one deep: while one sync
runs, one more transaction may be committed; it is durable only after a sync that started after its commit. A single
writer never waits. Under load a sync starts at most once per delay, so that batches grow instead of syncs.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from storage.state.row_lists import octets_of
from storage.store.protocol import Batch
from storage.store.settings import GroupCommitSettings

__all__ = ["CommitWaited", "Committed", "GroupCommit", "GroupCommitReady", "LogSynced", "Submitted"]

_MEAN_WEIGHT = 0.25  # of the newest batch in the running mean of rows per batch


@dataclass(frozen=True, slots=True)
class Submitted:
    """Operations of one loop iteration; the rows of each are committed together and in this order."""

    operations: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Committed:
    """The last returned batch is in the store, under this number."""

    transaction_no: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The requested sync has ended; it covers commits up to this number."""

    transaction_no: int


@dataclass(frozen=True, slots=True)
class CommitWaited:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class GroupCommitReady:
    """Work for the shell, in this order: announce, commit (and feed back ``Committed``), sync.

    Attributes:
        durable: Batches up to this number are durable now; None if that did not change.
        durable_transaction_no: The transaction that made them durable, for the marker.
        transaction: Rows of all batches that go in it; None if there is no commit.
        sync: Start a sync of the newest commit.
        marker: That sync covers the marker.
        deadline: When to call with ``CommitWaited`` if there is no other event.
    """

    durable: int | None
    durable_transaction_no: int
    transaction: Batch | None
    sync: bool
    marker: bool
    deadline: float


class GroupCommit:
    """Batches of one store; each event returns the work to do now."""

    def __init__(self, settings: GroupCommitSettings) -> None:
        self.settings = settings
        self.submitted = 0  # batches so far; they are numbered from 1
        self.durable = 0  # of them
        self.backlog_bytes = 0  # submitted and not returned for commit
        self._waiting: deque[tuple[Batch, int]] = deque()  # with bytes
        self._waiting_rows = 0
        self._handed_out = 0  # batches returned in a transaction
        self._committing = False
        self._committed: deque[tuple[int, int]] = deque()  # (transaction_no, last batch), not yet durable
        self._syncing = False
        self._synced_up_to = 0  # transaction_no that the running sync covers
        self._waiting_since = -math.inf
        self._sync_started = -math.inf
        self._mean_rows = 0.0
        self._marker_due = math.inf
        self._crowded = self._held = False

    def handle(
        self,
        now: float,
        event: Submitted | Committed | LogSynced | CommitWaited,
        *,
        crowded: bool = False,
        held: bool = False,
    ) -> GroupCommitReady:
        """Process one event.

        Args:
            now: Seconds on a monotonic clock.
            event: The event.
            crowded: The store has no space for a commit beside others that are not durable.
            held: It has no space for any commit; an event follows when it has.
        """
        self._crowded, self._held = crowded, held
        durable_transaction_no = 0
        if isinstance(event, Submitted):
            self._take(now, event.operations)
        elif isinstance(event, Committed):
            self._committing = False
            self._committed.append((event.transaction_no, self._handed_out))
        elif isinstance(event, LogSynced):
            durable_transaction_no = self._end_sync(now, event.transaction_no)
        transaction = self._next_transaction() if self._may_commit(now) else None
        sync, marker = self._next_sync(now)
        durable = self.durable if durable_transaction_no else None
        return GroupCommitReady(durable, durable_transaction_no, transaction, sync, marker, self._deadline())

    def _take(self, now: float, operations: Sequence[Batch]) -> None:
        if not self._waiting:
            self._waiting_since = now
        for rows in operations:
            size = octets_of(rows)
            self.submitted += 1
            self._waiting.append((rows, size))
            self._waiting_rows += len(rows)
            self.backlog_bytes += size

    def _end_sync(self, now: float, transaction_no: int) -> int:
        """Return the newest commit that became durable, 0 if none did."""
        self._syncing = False
        newest = 0
        while self._committed and self._committed[0][0] <= transaction_no:
            newest, self.durable = self._committed.popleft()
        if newest:
            self._marker_due = now + self.settings.marker_idle_s
        return newest

    def _may_commit(self, now: float) -> bool:
        if not self._waiting or self._committing:
            return False
        if self._has_to_wait():
            return False
        return now >= self._commit_at()

    def _has_to_wait(self) -> bool:
        """Return whether a sync comes first: the pipeline is full, or the store is crowded."""
        if self._held or not self._committed:
            return self._held
        return self._crowded or not self._syncing or self._committed[-1][0] > self._synced_up_to

    def _commit_at(self) -> float:
        """Return when the waiting rows are committed, if the pipeline allows it."""
        settings = self.settings
        if self._waiting_rows >= settings.batch_ops or self.backlog_bytes >= settings.batch_bytes:
            return -math.inf
        if not self._syncing:
            if self._mean_rows < settings.small_batch_ops:
                return -math.inf
            return min(self._waiting_since, self._sync_started) + settings.delay_s
        return self._waiting_since + settings.delay_s

    def _next_transaction(self) -> Batch:
        settings = self.settings
        rows: list[tuple[bytes, bytes | None]] = []
        size = 0
        while self._waiting and (not rows or (len(rows) < settings.batch_ops_max and size < settings.batch_bytes_max)):
            operation, operation_bytes = self._waiting.popleft()
            rows.extend(operation)
            size += operation_bytes
            self._handed_out += 1
        self._waiting_rows -= len(rows)
        self.backlog_bytes -= size
        self._mean_rows += _MEAN_WEIGHT * (len(rows) - self._mean_rows)
        self._committing = True
        return rows

    def _next_sync(self, now: float) -> tuple[bool, bool]:
        if self._syncing or self._committing:
            return False, False
        marker = now >= self._marker_due
        if not self._committed and not marker:
            return False, False
        self._syncing = True
        self._sync_started = now
        self._marker_due = math.inf
        self._synced_up_to = self._committed[-1][0] if self._committed else self._synced_up_to
        return True, marker

    def _deadline(self) -> float:
        if self._committing:
            return math.inf
        if self._waiting and not self._has_to_wait():
            return self._commit_at()
        return math.inf if self._syncing else self._marker_due
