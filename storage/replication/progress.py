"""Progress of one backup, as its primary sees it under one partition_epoch.

| phase | holds | sent to it |
|---|---|---|
| PROBE | nobody knows whether it shares ``previous`` | one empty Append behind ``previous`` each second |
| STREAM | it shares everything up to ``base``; up to ``previous`` is shared or on its way | a window of operations |
| TRANSFER | its copy is worth nothing, and is replaced | one slice at a time |

| from | to | by |
|---|---|---|
| any | STREAM | ``matched``: it has everything up to an index, synced |
| any | STREAM, PROBE | ``found``: it named an index that is shared, or that is asked next |
| STREAM | PROBE | ``lost``: no answer for long |
| any | PROBE | ``diverged``: it applied what is not shared, and it counts |
| any | TRANSFER | ``transfer_begins``: the log cannot bring it up, and it does not count |

Beside the phase stand four facts:

- ``in_sync``: the map counts this backup. It holds for the whole epoch.
- ``counted``: commits wait for this backup. True from the start for one in sync; for a joining one from ``counts`` on,
  which is before the map is asked to promote it. Never False again: what was acknowledged since is at it too.
- ``whole``: the backup's last answer said that its copy is of use.
- ``broken``: counted, and yet it applied what is not shared. It stays so for this epoch: the map has to drop it before
  its copy is replaced, because a copy that counts must not be emptied.

Invariants: 0 <= acked <= previous; in_sync implies counted; a counted backup never takes a transfer.
Source: etcd/raft's Progress (Probe, Replicate, Snapshot), docs/protocol.md rule 9.3.
"""

from enum import Enum
from hashlib import blake2b

from storage.state.partition import NO_REPLICA
from wire.messages.replication import TransferSlice

__all__ = ["BackupProgress", "ProgressPhase", "RangeTransfer"]


class ProgressPhase(Enum):
    """Way in which a primary brings a backup up to date."""

    PROBE = "probe"
    STREAM = "stream"
    TRANSFER = "transfer"


class RangeTransfer:
    """A range transfer under way: whole rows, range by range, while the primary goes on.

    Attributes:
        number: Of this transfer, at this primary.
        slices: How many were made.
        next_start: Key at which the next slice begins.
        base: op_index of the first slice's META row; the log behind it is kept.
        digest: Of all rows so far.
        message: The slice that was sent and not answered.
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
        """Note that a slice left."""
        assert self.message is None, "one slice on its way at a time"
        self.slices += 1
        self.message = message
        self.sent_at = now

    def answered(self, next_start: bytes) -> None:
        """Note that the backup has the slice: the next one may leave, from this key on."""
        assert self.message is not None, "no slice is on its way"
        self.next_start = next_start
        self.message = None


class BackupProgress:
    """One backup, as its primary sees it.

    Attributes:
        node: Its name.
        previous: Everything up to this op_index was sent, or is taken for shared.
        acked: Everything up to this op_index is synced there.
        base: Shared when streaming began: not on its way, though not acknowledged.
        owed_from: Since when it owes an answer, if it does.
        sent_at: When something was sent last.
        answered_at: When it answered last.
        sent_commit: Commit index that it was told.
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
        "owed_from",
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
        self.owed_from = now
        self.sent_at = float("-inf")
        self.answered_at = now
        self.sent_commit = 0
        self.transfer: RangeTransfer | None = None

    # --- questions

    @property
    def on_its_way(self) -> int:
        """Operations that were sent and are not acknowledged."""
        return self.previous - max(self.acked, self.base)

    @property
    def waits_for_answer(self) -> bool:
        """Whether something was sent that is not acknowledged."""
        return self.previous > self.acked

    def owes(self, op_index: int) -> bool:
        """Whether commits up to this op_index wait for it."""
        return self.counted and (self.phase is not ProgressPhase.STREAM or self.acked < op_index)

    # --- transitions

    def _enter(self, phase: ProgressPhase, transfer: RangeTransfer | None = None) -> None:
        self.phase = phase
        self.transfer = transfer
        assert 0 <= self.acked <= self.previous, f"{self.node}: acknowledged {self.acked} of {self.previous}"
        assert self.counted or not self.in_sync, f"{self.node} is in sync, and commits do not wait for it"
        assert transfer is None or not self.counted, f"{self.node} counts, and its copy is replaced"

    def appended(self, rows: int, commit_index: int, now: float) -> None:
        """Note that operations behind ``previous`` left, or a probe without any."""
        if rows and self.previous == self.acked:
            self.owed_from = now
        self.previous += rows
        self.sent_at = now
        self.sent_commit = commit_index

    def answered(self, now: float) -> None:
        """Note that an answer of this epoch came."""
        self.answered_at = self.owed_from = now

    def matched(self, index: int, *, whole: bool) -> None:
        """Note that everything up to ``index`` is synced there; go on streaming behind it."""
        self.whole = whole
        self.acked = max(self.acked, index)
        self.previous = max(self.previous, index)
        self._enter(ProgressPhase.STREAM)

    def found(self, index: int, *, shared: bool) -> None:
        """Go back to ``index``: everything up to it is shared, or it is asked next."""
        self.previous = self.base = index
        self.acked = min(self.acked, index)
        self.sent_at = float("-inf")  # at once
        self._enter(ProgressPhase.STREAM if shared else ProgressPhase.PROBE)

    def lost(self, op_index: int) -> None:
        """Ask again, from the newest operation, what is shared: no answer came for long."""
        self.previous = op_index
        self._enter(ProgressPhase.PROBE)

    def diverged(self) -> None:
        """Note that a backup that counts applied what is not shared."""
        assert self.counted
        self.broken = True
        self._enter(ProgressPhase.PROBE)

    def transfer_begins(self, number: int, start: bytes) -> None:
        """Replace the whole copy of a backup that does not count."""
        self.acked = 0
        self._enter(ProgressPhase.TRANSFER, RangeTransfer(number, start))

    def counts(self) -> None:
        """Note that commits wait for this joining backup from now on."""
        assert self.phase is ProgressPhase.STREAM and self.whole and not self.counted
        self.counted = True
