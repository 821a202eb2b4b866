"""Counts of events stay with the node that counted them: no figure falls in the life of a process."""

from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster, with_settings


def test_no_count_falls_when_a_partition_moves_away() -> None:
    """Three messages fell out of a queue here; the partition goes: they fell here, and only once."""
    cluster = Cluster(settings=with_settings(queue_messages_max=2))
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    number = alice.session >> 48
    for each in range(5):
        edge.publish(message(str(each)), number)
    cluster.settle()
    core = cluster.primary(number).core
    before = dict(core.event_counts())
    assert before["dropped_queue_full"] == 3
    core.placements.demote(number)
    assert number not in core.partitions
    after = core.event_counts()
    assert {name: after.get(name, 0) for name in before} == before
