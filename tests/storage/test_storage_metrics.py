"""Statistics of a node: exact with few sessions, and never a scan of many sessions at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from storage.core import StorageCore
from storage.hosting import hosted_partition, storage_metrics
from storage.ready import Event, StorageReady
from storage.state.durable_sessions import DurableSession
from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster

SESSIONS, SLICE = 60, 10


def test_iteration_counts_a_bounded_number_of_sessions_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large partitions blocked the loop while all their sessions were counted, whenever sizes were reported."""
    monkeypatch.setattr(hosted_partition, "COUNTED_AT_ONCE", SLICE)
    monkeypatch.setattr(storage_metrics, "COUNTED_PER_ITERATION", SLICE)
    cluster = Cluster(partitions=2)
    edge = cluster.edges["e1"]
    for number in range(SESSIONS):
        edge.close(edge.open(f"c{number}", "a/b"))
    for number in range(2):
        edge.publish(message(), number)
    cluster.settle()
    with walked_sessions(monkeypatch) as turns:
        cluster.run(20.0)
    assert 0 < max(turns) <= 2 * SLICE
    hosted = [one for node in cluster.nodes.values() for one in node.core.partitions.values()]
    assert sum(one.tally.queued for one in hosted) == sum(len(one.partition.sessions) for one in hosted) == SESSIONS


@contextmanager
def walked_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record how many session queues each iteration of a node reads."""
    turns: list[int] = []
    handle, queued = StorageCore.handle, DurableSession.__dict__["queued"].fget

    def handled(self: StorageCore, now: float, events: Sequence[Event], *, goes_on: bool = False) -> StorageReady:
        turns.append(0)
        return handle(self, now, events, goes_on=goes_on)

    def asked(session: DurableSession) -> int:
        turns[-1] += 1
        return int(queued(session))

    with monkeypatch.context() as patch:
        patch.setattr(StorageCore, "handle", handled)
        patch.setattr(DurableSession, "queued", property(asked))
        yield turns
