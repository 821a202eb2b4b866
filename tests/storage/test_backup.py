"""One copy by itself: accepted, dropped and kept operations."""

from collections.abc import Callable

import pytest

from storage.replication.backup import PartitionBackup
from storage.replication.primary import PartitionReplication
from storage.replication.progress import BackupProgress, ProgressPhase
from storage.state import keys
from storage.state.partition import Overlay, Partition
from storage.state.rows import LogRow, pack
from storage.state.settings import PartitionSettings
from tests.storage.replicas import EmptyStore
from wire.messages.replication import STALE, Append, AppendAck

LONG = 5_000  # rows of a log
READS_MAX = 64  # maximum number of reads of a binary search


def key(number: int) -> bytes:
    """Return a key of partition 0."""
    return keys.session_key(0, number)


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[int]:
    """Return a list that grows by each index that a method gets."""
    asked: list[int] = []
    found: Callable[[object, int], int] = getattr(kind, method)

    def ask(self: object, index: int) -> int:
        asked.append(index)
        return found(self, index)

    monkeypatch.setattr(kind, method, ask)
    return asked


def test_promotion_drops_an_incomplete_operation() -> None:
    """An operation in several pieces is applied completely or not at all."""

    overlay: Overlay = {}
    replica = PartitionBackup(0, EmptyStore(), overlay)
    replica.load()
    rows = [pack(LogRow(1, 1, [(key(1), b"v")])), pack(LogRow(1, 2, [(key(2), b"v")], 1, False))]
    assert replica.append(Append(0, 1, 0, 0, 2, 0, 0, rows)).matched
    assert (replica.log_end, replica.applied) == (2, 1)
    replica.promote()
    assert (replica.log_end, replica.applied) == (1, 1)


def test_replica_rejects_lower_epochs_and_ignores_repeats() -> None:
    """Lower epochs than the highest seen are rejected; repeated rows have no effect; conflicting ones are truncated."""
    replica = PartitionBackup(0, EmptyStore(), {})
    replica.load()

    def rows(epoch: int, *indexes: int) -> list[bytes]:
        return [pack(LogRow(epoch, index, [(key(index), b"%d" % epoch)], epoch)) for index in indexes]

    assert replica.append(Append(0, 2, 0, 0, 0, 0, 0, rows(2, 1, 2, 3))).index == 3
    assert replica.append(Append(0, 2, 0, 0, 1, 0, 0, rows(2, 1, 2))).index == 2
    assert (replica.log_end, replica.applied) == (3, 1)
    assert replica.append(Append(0, 1, 3, 2, 3, 0, 0, rows(1, 4))).index == STALE
    assert (replica.log_end, replica.applied, replica.epoch) == (3, 1, 2)
    assert replica.append(Append(0, 3, 2, 2, 1, 2, 0, rows(3, 3))).matched
    assert (replica.log_end, replica.applied) == (3, 1)
    replica.append(Append(0, 3, 3, 3, 3, 2, 0, []))
    assert dict(replica.take_writes())[key(3)] == b"3"
    assert replica.append(Append(0, 4, 2, 2, 0, 2, 0, [])).transfer_needed  # an applied operation is not shared


def test_new_primary_behind_the_applied_state_sends_a_range_transfer() -> None:
    """TRAPS 7: truncation never goes below the copy's own applied state."""
    replica = PartitionBackup(0, EmptyStore(), {})
    replica.load()
    replica.append(Append(0, 1, 0, 0, 2, 0, 0, [pack(LogRow(1, i, [(key(0), b"v")], 1)) for i in (1, 2)]))
    assert replica.applied == 2
    assert replica.append(Append(0, 2, 1, 1, 0, 1, 0, [])).transfer_needed


def test_backup_finds_the_shared_log_by_binary_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log of an epoch unknown to the primary does not delay other partitions."""
    replica = PartitionBackup(0, EmptyStore(), {})
    replica.load()
    rows = [pack(LogRow(min(index, 3), index, [(key(0), b"v")], min(index - 1, 3))) for index in range(1, LONG)]
    assert replica.append(Append(0, 3, 0, 0, 0, 0, 0, rows)).matched
    looked = counted(monkeypatch, PartitionBackup, "_epoch_at")
    answer = replica.append(Append(0, 4, LONG - 1, 4, 0, LONG, 0, []))
    assert (answer.matched, answer.index, answer.index_epoch) == (False, 2, 2)
    assert len(looked) < READS_MAX


@pytest.mark.parametrize(
    ("hint", "epoch", "found", "shared"),
    [(LONG - 1, 1, 10, False), (9, 1, 9, True), (10, 1, 10, True), (LONG - 1, 2, LONG - 1, True), (5, 0, 0, False)],
)
def test_primary_finds_the_shared_log_by_binary_search(
    monkeypatch: pytest.MonkeyPatch, hint: int, epoch: int, found: int, shared: bool
) -> None:
    """Operations 1 to 10 are of epoch 1, the others of epoch 2."""
    partition = Partition(0, PartitionSettings(), EmptyStore(), {}, 0.0)
    for index in range(1, LONG + 1):
        row = LogRow(1 if index <= 10 else 2, index, [], 0 if index == 1 else 1 if index <= 11 else 2)
        partition.overlay[keys.log_key(0, index)] = (0, pack(row))
    partition.meta.op_index, partition.meta.partition_epoch, partition.epoch = LONG, 2, 2
    partition.local.log_start = 1
    replication = PartitionReplication(partition, "s1")
    backup = replication.backups["s2"] = BackupProgress("s2", 0.0, in_sync=False, previous=LONG)
    looked = counted(monkeypatch, PartitionReplication, "epoch_at")
    replication.acked("s2", AppendAck(0, 2, False, hint, epoch), 1.0)
    assert (backup.previous, backup.phase is ProgressPhase.STREAM) == (found, shared)
    assert len(looked) < READS_MAX
