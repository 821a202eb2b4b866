"""One copy by itself: what it takes, drops and keeps."""

from storage.replication.backup import Replica
from storage.state import keys
from storage.state.partition import Overlay
from storage.state.rows import LogRow, pack
from tests.storage.replicas import EmptyStore
from wire.messages.replication import STALE, Append


def key(number: int) -> bytes:
    """Return a key of partition 0."""
    return keys.session_key(0, number)


def test_a_half_sent_operation_is_dropped_at_promotion() -> None:
    """An operation cut in pieces is applied whole or not at all."""

    overlay: Overlay = {}
    replica = Replica(0, EmptyStore(), overlay)
    replica.load()
    rows = [pack(LogRow(1, 1, [(key(1), b"v")])), pack(LogRow(1, 2, [(key(2), b"v")], 1, False))]
    assert replica.append(Append(0, 1, 0, 0, 2, 0, 0, rows)).matched
    assert (replica.log_end, replica.applied) == (2, 1)
    replica.promote()
    assert (replica.log_end, replica.applied) == (1, 1)


def test_a_replica_takes_nothing_of_a_lower_epoch_and_nothing_twice() -> None:
    """The highest partition_epoch seen rules; repeated rows change nothing; conflicting ones are cut."""
    replica = Replica(0, EmptyStore(), {})
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
    assert replica.append(Append(0, 4, 2, 2, 0, 2, 0, [])).transfer_needed  # what was applied is not shared


def test_a_new_primary_that_ends_below_what_a_copy_applied_gives_it_a_transfer() -> None:
    """TRAPS 7: never cut to one's own idea of committed, nor below one's own state."""
    replica = Replica(0, EmptyStore(), {})
    replica.load()
    replica.append(Append(0, 1, 0, 0, 2, 0, 0, [pack(LogRow(1, i, [(key(0), b"v")], 1)) for i in (1, 2)]))
    assert replica.applied == 2
    assert replica.append(Append(0, 2, 1, 1, 0, 1, 0, [])).transfer_needed
