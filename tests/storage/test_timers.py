"""Timers of a partition: records in the order of their deadlines, by the served clock."""

from storage.state.partition import Partition
from storage.state.settings import PartitionSettings
from storage.state.timers import EndSession, KickAgain, SaveAcks
from tests.storage.replicas import EmptyStore


def test_timers_fire_in_order_with_their_subject() -> None:
    """A client ID may contain any character, also a space; equal deadlines fire in the order of the calls."""
    partition = Partition(0, PartitionSettings(), EmptyStore(), {}, 10.0)
    partition.set_timer(partition.deadline_in(2.0), KickAgain("a client 7", 5))
    partition.set_timer(partition.deadline_in(1.0), SaveAcks())
    partition.set_timer(partition.deadline_in(1.0), EndSession(3))
    assert partition.due() is None and partition.next_due_s() == 1.0
    partition.tick(11.0)
    assert (partition.due(), partition.due(), partition.due()) == (SaveAcks(), EndSession(3), None)
    partition.tick(20.0, running=False)
    assert partition.due() is None
    partition.tick(21.0)
    assert repr(partition.due()) == "KickAgain(client_id='a client 7', owner_epoch=5)"
    assert partition.next_due_s() is None
