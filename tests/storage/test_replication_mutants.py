"""Mutations of the replication rules: a schedule or a seed must detect each."""

from collections.abc import Callable

import pytest

from storage.replication.primary import PartitionReplication
from storage.state.partition import Partition
from tests.storage import test_replication, test_replication_random, test_schedules_replication
from tests.storage.storage_cluster import Cluster


def acknowledge_without_backups(patch: pytest.MonkeyPatch) -> None:
    """Operations synced here count as committed."""

    def settle(self: Partition) -> None:
        self.commit_index = max(self.commit_index, self.synced.get("", 0))

    patch.setattr(Partition, "settle_commit_index", settle)


def acknowledge_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """One copy is enough."""
    original = PartitionReplication.configure

    def configure(self: PartitionReplication, placement: object, min_in_sync: int, former: object = None) -> None:  # noqa: ARG001
        original(self, placement, 1, former)  # type: ignore[arg-type]

    patch.setattr(PartitionReplication, "configure", configure)


def joining_counts_too_early(patch: pytest.MonkeyPatch) -> None:
    """It compares with the commit index of a new primary, which is 0."""

    def count(self: PartitionReplication, backup: object) -> None:
        if not backup.counted:  # type: ignore[attr-defined]
            backup.counted = True  # type: ignore[attr-defined]
            self._partition.replicas |= {backup.node}  # type: ignore[attr-defined]

    patch.setattr(PartitionReplication, "_count_joining", count)


def seeds(*numbers: int) -> Callable[[], None]:
    """Return a run of random faults with these seeds."""

    def run() -> None:
        for number in numbers:
            test_replication_random.Chaos(number, lossy=False).run()

    return run


def of_three(test: Callable[[Cluster], None]) -> Callable[[], None]:
    """Return a test with its cluster."""
    return lambda: test(Cluster(nodes=3, replicas=3, min_in_sync=2))


@pytest.mark.parametrize(
    ("mutant", "witness"),
    [
        (acknowledge_without_backups, test_schedules_replication.test_s11_open_session_sends_committed_messages_only),
        (
            acknowledge_without_backups,
            of_three(test_replication.test_acknowledgement_waits_for_every_in_sync_backup),
        ),
        (acknowledge_below_the_minimum, test_replication.test_one_copy_beside_an_empty_one_acknowledges_no_message),
        (joining_counts_too_early, seeds(34, 252, 286, 17, 237)),
    ],
)
def test_replication_mutant_is_detected(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], witness: Callable[[], None]
) -> None:
    """The witness passes without the mutation (it is a test of its own) and fails with it."""
    monkeypatch.setattr(test_replication_random, "STEPS", 900)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        witness()
