"""Progress of one backup at its primary: each transition, and the invalid ones."""

import pytest

from storage.replication.progress import BackupProgress, ProgressPhase
from wire.messages.replication import TransferSlice


def joining() -> BackupProgress:
    """Return a backup that is not in sync, at a primary whose newest operation is 9."""
    return BackupProgress("s2", 1.0, in_sync=False, previous=9)


def test_matching_probe_starts_streaming_and_counts() -> None:
    """Whole and caught up: commits wait for it from then on."""
    backup = joining()
    assert (backup.phase, backup.owes(9)) == (ProgressPhase.PROBE, False)
    backup.matched(9, whole=True)
    backup.counts()
    assert (backup.phase, backup.owes(9), backup.owes(10)) == (ProgressPhase.STREAM, False, True)


def test_probe_goes_back_to_the_shared_log() -> None:
    """Operations after it were never in flight: the window is free."""
    backup = joining()
    backup.appended(0, 4, 2.0)
    backup.found(3, shared=True)
    assert (backup.phase, backup.previous, backup.in_flight_operations) == (ProgressPhase.STREAM, 3, 0)
    backup.appended(2, 4, 2.0)
    assert (backup.previous, backup.in_flight_operations, backup.waits_for_answer) == (5, 2, True)
    backup.found(1, shared=False)
    assert (backup.phase, backup.previous, backup.acked) == (ProgressPhase.PROBE, 1, 0)


def test_reply_is_owed_since_the_first_unanswered_operation() -> None:
    """Later operations do not extend the time, a reply does."""
    backup = joining()
    backup.matched(9, whole=True)
    backup.appended(0, 9, 2.0)
    assert backup.owed_since == 1.0
    backup.acked = backup.previous
    backup.appended(1, 9, 3.0)
    backup.appended(1, 9, 4.0)
    assert backup.owed_since == 3.0
    backup.answered(5.0)
    assert (backup.owed_since, backup.answered_at) == (5.0, 5.0)


def test_reply_timeout_probes_again() -> None:
    """From the newest operation on."""
    backup = joining()
    backup.matched(4, whole=True)
    backup.lost(12)
    assert (backup.phase, backup.previous, backup.acked) == (ProgressPhase.PROBE, 12, 4)


def test_uncounted_copy_is_replaced_by_a_transfer() -> None:
    """One slice in flight at a time."""
    backup = joining()
    backup.transfer_begins(1, b"a")
    transfer = backup.transfer
    assert backup.phase is ProgressPhase.TRANSFER and transfer is not None
    slice_ = TransferSlice(0, 1, 1, 0, b"a", b"c", [])
    transfer.sent(slice_, 2.0)
    with pytest.raises(AssertionError, match="one slice"):
        transfer.sent(slice_, 2.5)
    transfer.answered(b"c")
    assert (transfer.next_start, transfer.slices, transfer.message) == (b"c", 1, None)
    backup.matched(9, whole=True)
    assert backup.transfer is None


def test_counted_copy_is_never_emptied() -> None:
    """Later acknowledged operations may exist only there: the map drops the replica first."""
    backup = BackupProgress("s2", 1.0, in_sync=True, previous=9)
    with pytest.raises(AssertionError, match="its copy is replaced"):
        backup.transfer_begins(1, b"a")
    backup = BackupProgress("s2", 1.0, in_sync=True, previous=9)
    backup.matched(9, whole=True)
    backup.diverged()
    assert (backup.phase, backup.broken, backup.counted) == (ProgressPhase.PROBE, True, True)


def test_copy_counts_when_whole_and_streaming() -> None:
    """An incomplete or unprobed copy does not count for commits."""
    for whole in (True, False):
        backup = joining()
        if not whole:
            backup.matched(9, whole=False)
        with pytest.raises(AssertionError):
            backup.counts()
