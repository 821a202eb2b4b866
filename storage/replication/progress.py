"""Progress of one backup, as its primary sees it under one partition_epoch.

| phase | state | sent to it |
|---|---|---|
| PROBE | unknown whether it shares ``previous`` | one empty Append after ``previous`` each second |
| STREAM | it shares the log up to ``base``; up to ``previous`` it is shared or in flight | a window of operations |
| TRANSFER | its copy is unusable, and is replaced | one slice at a time |

| from | to | by |
|---|---|---|
| any | STREAM | ``matched``: it has synced the log up to an index |
| any | STREAM, PROBE | ``found``: it named an index that is shared, or that is probed next |
| STREAM | PROBE | ``lost``: its reply timed out |
| any | PROBE | ``diverged``: it applied unshared operations, and it counts |
| any | TRANSFER | ``transfer_begins``: the log does not suffice, and it does not count |

Beside the phase there are four flags:

- ``in_sync``: the map lists this backup as in sync. Constant during the epoch.
- ``counted``: commits wait for this backup. True from the start for one in sync; for a joining one from ``counts`` on,
  before its promotion is requested. Never False again: it has all operations acknowledged since.
- ``whole``: the backup's last reply reported a usable copy.
- ``broken``: counted, but it applied unshared operations. Constant for the rest of the epoch: the map has to drop it
  before its copy is replaced, because a counted copy must not be emptied.

Invariants: 0 <= acked <= previous; in_sync implies counted; a counted backup never takes a transfer. Source:
etcd/raft's Progress (Probe, Replicate, Snapshot), docs/protocol.md rule 9.3.
"""

from enum import Enum
from hashlib import blake2b

from storage.state.partition import NO_REPLICA
from wire.messages.replication import TransferSlice

__all__ = ["BackupProgress", "ProgressPhase", "RangeTransfer"]


class ProgressPhase(Enum):
    """How a primary brings a backup up to date."""

    PROBE = "probe"
    STREAM = "stream"
    TRANSFER = "transfer"


class RangeTransfer:
    """A range transfer in progress: whole rows, range by range, while the primary continues.

    Attributes:
        number: Of this transfer, at this primary.
        slices: Number of slices so far.
        next_start: First key of the next slice.
        base: op_index of the first slice's META row; the log after it is kept.
        digest: Of all rows so far.
        message: The slice that was sent and has no reply.
        sent_at: When it was sent last.
    """

    __slots__ = ("base", "digest", "message", "next_start", "number", "sent_at", "slices")

    def __init__(self, number: int, start: bytes) -> None:
        self.number = number
        self.slices = 0
        self.next_start = start
        self.base = NO_REPLICA
        self.digest = blake2b(digest_size=16)
        self.message: TransferSlice | None = None
        self.sent_at = 0.0

    def sent(self, message: TransferSlice, now: float) -> None:
        """Record that a slice was sent."""
        assert self.message is None, "only one slice may be in flight"
        self.slices += 1
        self.message = message
        self.sent_at = now

    def answered(self, next_start: bytes) -> None:
        """Record that the backup has the slice: the next one may be sent, from this key on."""
        assert self.message is not None, "no slice is in flight"
        self.next_start = next_start
        self.message = None


class BackupProgress:
    """One backup, as its primary sees it.

    Attributes:
        node: Its name.
        previous: Operations up to this op_index were sent, or are presumed shared.
        acked: Operations up to this op_index are synced there.
        base: Shared when streaming began: not in flight, though not acknowledged.
        owed_since: Start of the wait for its reply, if it owes one.
        sent_at: Time of the last message to it.
        answered_at: Time of its last reply.
        sent_commit: Commit index that was sent to it.
        transfer: Of the phase TRANSFER, else None.
    """

    __slots__ = (
        "acked",
        "answered_at",
        "base",
        "broken",
        "counted",
        "in_sync",
        "node",
        "owed_since",
        "phase",
        "previous",
        "sent_at",
        "sent_commit",
        "transfer",
        "whole",
    )

    def __init__(self, node: str, now: float, *, in_sync: bool, previous: int) -> None:
        self.node = node
        self.phase = ProgressPhase.PROBE
        self.in_sync = in_sync
        self.counted = in_sync
        self.whole = in_sync
        self.broken = False
        self.previous = previous
        self.acked = 0
        self.base = 0
        self.owed_since = now
        self.sent_at = float("-inf")
        self.answered_at = now
        self.sent_commit = 0
        self.transfer: RangeTransfer | None = None

    # --- queries

    @property
    def in_flight_operations(self) -> int:
        """Number of operations that were sent and are not acknowledged."""
        return self.previous - max(self.acked, self.base)

    @property
    def waits_for_answer(self) -> bool:
        """Whether sent operations are not acknowledged."""
        return self.previous > self.acked

    def owes(self, op_index: int) -> bool:
        """Return whether commits up to this op_index wait for it."""
        return self.counted and (self.phase is not ProgressPhase.STREAM or self.acked < op_index)

    # --- transitions

    def _enter(self, phase: ProgressPhase, transfer: RangeTransfer | None = None) -> None:
        self.phase = phase
        self.transfer = transfer
        assert 0 <= self.acked <= self.previous, f"{self.node}: acknowledged {self.acked} of {self.previous}"
        assert self.counted or not self.in_sync, f"{self.node} is in sync but not counted for commits"
        assert transfer is None or not self.counted, f"{self.node} counts, and its copy is replaced"

    def appended(self, rows: int, commit_index: int, now: float) -> None:
        """Record that operations after ``previous`` were sent, or a probe without any."""
        if rows and self.previous == self.acked:
            self.owed_since = now
        self.previous += rows
        self.sent_at = now
        self.sent_commit = commit_index

    def answered(self, now: float) -> None:
        """Record a reply of this epoch."""
        self.answered_at = self.owed_since = now

    def matched(self, index: int, *, whole: bool) -> None:
        """Record that operations up to ``index`` are synced there; continue streaming after it."""
        self.whole = whole
        self.acked = max(self.acked, index)
        self.previous = max(self.previous, index)
        self._enter(ProgressPhase.STREAM)

    def found(self, index: int, *, shared: bool) -> None:
        """Go back to ``index``: the log up to it is shared, or is probed next."""
        self.previous = self.base = index
        self.acked = min(self.acked, index)
        self.sent_at = float("-inf")  # at once
        self._enter(ProgressPhase.STREAM if shared else ProgressPhase.PROBE)

    def lost(self, op_index: int) -> None:
        """Probe again from the newest operation after a reply timed out."""
        self.previous = op_index
        self._enter(ProgressPhase.PROBE)

    def diverged(self) -> None:
        """Record that a counted backup applied unshared operations."""
        assert self.counted
        self.broken = True
        self._enter(ProgressPhase.PROBE)

    def transfer_begins(self, number: int, start: bytes) -> None:
        """Replace the whole copy of an uncounted backup."""
        self.acked = 0
        self._enter(ProgressPhase.TRANSFER, RangeTransfer(number, start))

    def counts(self) -> None:
        """Record that commits wait for this joining backup from now on."""
        assert self.phase is ProgressPhase.STREAM and self.whole and not self.counted
        self.counted = True
