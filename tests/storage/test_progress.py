"""Progress of one backup as its primary sees it: each transition, and the transitions that may not be."""

import pytest

from storage.replication.progress import BackupProgress, ProgressPhase
from wire.messages.replication import TransferSlice


def joining() -> BackupProgress:
    """Return a backup that is not in sync, at a primary whose newest operation is 9."""
    return BackupProgress("s2", 1.0, in_sync=False, previous=9)


def test_a_probe_that_matches_streams_and_then_counts() -> None:
    """Whole and caught up: commits wait for it from then on."""
    backup = joining()
    assert (backup.phase, backup.owes(9)) == (ProgressPhase.PROBE, False)
    backup.matched(9, whole=True)
    backup.counts()
    assert (backup.phase, backup.owes(9), backup.owes(10)) == (ProgressPhase.STREAM, False, True)


def test_a_probe_goes_back_to_what_is_shared() -> None:
    """Operations behind it were never on their way: the window is theirs."""
    backup = joining()
    backup.appended(0, 4, 2.0)
    backup.found(3, shared=True)
    assert (backup.phase, backup.previous, backup.on_its_way) == (ProgressPhase.STREAM, 3, 0)
    backup.appended(2, 4, 2.0)
    assert (backup.previous, backup.on_its_way, backup.waits_for_answer) == (5, 2, True)
    backup.found(1, shared=False)
    assert (backup.phase, backup.previous, backup.acked) == (ProgressPhase.PROBE, 1, 0)


def test_an_answer_is_owed_since_the_first_operation_without_one() -> None:
    """Later operations do not put the time off, an answer does."""
    backup = joining()
    backup.matched(9, whole=True)
    backup.appended(0, 9, 2.0)
    assert backup.owed_from == 1.0
    backup.acked = backup.previous
    backup.appended(1, 9, 3.0)
    backup.appended(1, 9, 4.0)
    assert backup.owed_from == 3.0
    backup.answered(5.0)
    assert (backup.owed_from, backup.answered_at) == (5.0, 5.0)


def test_no_answer_for_long_is_asked_again() -> None:
    """From the newest operation on."""
    backup = joining()
    backup.matched(4, whole=True)
    backup.lost(12)
    assert (backup.phase, backup.previous, backup.acked) == (ProgressPhase.PROBE, 12, 4)


def test_a_copy_that_does_not_count_is_replaced() -> None:
    """One slice on its way at a time."""
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


def test_a_copy_that_counts_is_never_emptied() -> None:
    """What was acknowledged since may be nowhere else: the map drops the replica before."""
    backup = BackupProgress("s2", 1.0, in_sync=True, previous=9)
    with pytest.raises(AssertionError, match="its copy is replaced"):
        backup.transfer_begins(1, b"a")
    backup = BackupProgress("s2", 1.0, in_sync=True, previous=9)
    backup.matched(9, whole=True)
    backup.diverged()
    assert (backup.phase, backup.broken, backup.counted) == (ProgressPhase.PROBE, True, True)


def test_a_copy_counts_when_it_is_whole_and_streams() -> None:
    """Half a copy, or one that nobody compared, acknowledges nothing."""
    for whole in (True, False):
        backup = joining()
        if not whole:
            backup.matched(9, whole=False)
        with pytest.raises(AssertionError):
            backup.counts()
