"""Figures of a node: exact where few sessions are, and never a walk over all of many."""

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


def test_a_turn_counts_some_sessions_and_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that were large kept the loop for as long as all their sessions took, whenever sizes were told."""
    monkeypatch.setattr(hosted_partition, "COUNTED_AT_ONCE", SLICE)
    monkeypatch.setattr(storage_metrics, "COUNTED_PER_TURN", SLICE)
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
    """Note how many sessions each turn of a node asks for their queues."""
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
