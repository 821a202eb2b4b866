"""Event counts stay with the node that counted them: no counter decreases while a process runs."""

from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster, with_settings


def test_counters_do_not_decrease_when_a_partition_moves_away() -> None:
    """Three messages were dropped here before the partition moved away."""
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
