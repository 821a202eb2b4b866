"""Reads of other partitions are answered while a sync hangs; those behind a write wait for it.

On real nodes, with syncs that take 3 s: ``tests/e2e/test_slow_store.py``.
"""

from collections.abc import Iterator

import msgspec
import pytest

from storage.core import FrameArrived
from tests.storage.requests import retained
from tests.storage.scripted_edge import Edge
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, PeerKey
from wire.messages.queries import Query, QueryResult
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedNone, RetainedPage

OPERATOR = PeerKey("operator", TIER_OPERATOR, 1)
WRITTEN, OTHER = 0, 1  # partitions
TOPICS = 20  # each partition has some of them


@pytest.fixture
def edge() -> Iterator[Edge]:
    """Return an edge of a node with two partitions, one of which has a message that waits for a sync."""
    cluster = Cluster(partitions=2)
    edge, node = cluster.edges["e1"], cluster.nodes["s1"]
    names: dict[int, str] = {cluster.map.partition_for(name): name for name in map(str, range(20))}
    for name in names.values():
        edge.subscribe(edge.open(name), "kept")
    for number in range(TOPICS):
        edge.publish(retained(f"state/{number}", "m"), cluster.map.partition_for(f"state/{number}"))
    cluster.settle()
    node.disk_slow = True
    tag = edge.publish(PublishMessage(0, b"kept", b"m", 1), WRITTEN)
    cluster.run(0.1)
    edge.controls.clear()
    yield edge
    cluster.run(5.0)
    assert tag not in edge.acked, "the sync hung all the time"
    node.disk_slow = False
    cluster.settle()
    assert tag in edge.acked


def _read(edge: Edge, partition: int) -> list[str]:
    """Return the retained topics of a partition; none without a reply."""
    request = edge.ask(ReadRetained(*edge.head(partition), "state/#", "", 100))
    edge.cluster.run(0.1)
    pages = [page for page in edge.answers(RetainedPage) if page.request == request]
    return sorted(message.topic for page in pages for message in page.messages)


def _topics(edge: Edge, partition: int) -> list[str]:
    names = [f"state/{number}" for number in range(TOPICS)]
    return sorted(name for name in names if edge.cluster.map.partition_for(name) == partition)


def test_retained_read_during_a_sync_is_answered_by_idle_partitions(edge: Edge) -> None:
    """The other partition replies at once; the writing one after its write."""
    assert _topics(edge, OTHER) and _read(edge, OTHER) == _topics(edge, OTHER)
    assert _topics(edge, WRITTEN) and not _read(edge, WRITTEN)


def test_retained_read_of_all_partitions_during_a_sync_is_answered_by_idle_ones(edge: Edge) -> None:
    """A SUBSCRIBE with wildcards queries all partitions of a node in one frame: each replies by itself."""
    request = next(edge.requests)
    asked = encode_control(ReadRetainedAll(request, "state/#", 100, 60.0))
    edge.cluster.send(edge.key, "s1", FrameKind.CONTROL, asked)
    edge.cluster.run(0.1)
    assert [page.partition for page in edge.answers(RetainedPage)] == [OTHER]
    assert not [one for one in edge.answers(RetainedNone) if WRITTEN in one.partitions]


def test_sessions_query_during_a_sync_is_answered(edge: Edge) -> None:
    """Of all partitions: queries read the state in memory."""
    core, now = edge.cluster.nodes["s1"].core, edge.cluster.now
    ready = core.handle(now, [FrameArrived(OPERATOR, FrameKind.CONTROL, encode_control(Query(1, "sessions")))])
    (seen,) = (decode_control(payload) for node, _, payload in ready.sends if node == OPERATOR.node)
    assert isinstance(seen, QueryResult) and not seen.error
    assert len([msgspec.msgpack.decode(row) for row in seen.rows]) == 2
