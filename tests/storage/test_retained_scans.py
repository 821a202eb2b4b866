"""Retained reads in slices: no filter makes an iteration long, all matches are found, and short reads come first."""

import pytest

from storage.hosting import retained_scans
from storage.hosting.retained_scans import SCANS_MAX, RetainedScan, RetainedScans
from storage.state.rows import NEVER, RetainedRow
from tests.storage.scripted_edge import Edge
from tests.storage.storage_cluster import Cluster, with_edge
from tests.storage.timed_iterations import timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedNone, RetainedPage
from wire.node.events import FrameArrived, NodeTick

ROUND_MS = 5  # most processor time of one iteration


def retained_row(topic: str) -> RetainedRow:
    """Return a retained message of one byte."""
    return RetainedRow(topic, b"x", 1, b"", NEVER, 0, 0, 0, 1)


def fill(cluster: Cluster, topics: int) -> None:
    """Add topics to the stores as a restart would, without their rows."""
    for number, hosted in cluster.nodes["s1"].core.partitions.items():
        for topic in range(topics // len(cluster.map.partitions)):
            hosted.retained.restore(retained_row(f"plant/s{topic % 100}/l{topic // 100}/d{number}/state"))


def ask_all(edge: Edge, topic_filter: str, limit: int = 100, waits_s: float = 5.0) -> int:
    """Request a first page of each partition from the node."""
    request = next(edge.requests)
    asked = encode_control(ReadRetainedAll(request, topic_filter, limit, waits_s))
    edge.cluster.send(edge.key, "s1", FrameKind.CONTROL, asked)
    return request


def answered(edge: Edge, request: int) -> set[int]:
    """Return the partitions that answered a request."""
    pages = {page.partition for page in edge.answers(RetainedPage) if page.request == request}
    return pages | {
        number for none in edge.answers(RetainedNone) if none.request == request for number in none.partitions
    }


@pytest.mark.parametrize("topics", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@timed
def test_thousand_retained_reads_have_short_iterations(monkeypatch: pytest.MonkeyPatch, topics: int) -> None:
    """No iteration takes 5 ms of the processor; a later short read is answered at once."""
    cluster = Cluster(partitions=4)
    edge, other = cluster.edges["e1"], cluster.edges["e2"]
    fill(cluster, topics)
    with timed_rounds(monkeypatch) as found:
        hostile = [ask_all(edge, f"+/+/+/+/x{number}", waits_s=1.0) for number in range(1000)]
        cluster.step()
        honest = ask_all(other, "plant/s7/l3/#")
        steps = 0
        while answered(other, honest) != {0, 1, 2, 3}:
            cluster.step()
            steps += 1
            assert steps < 300
        for _ in range(100):
            cluster.step()
    times = sorted(found)
    print(f"{topics} topics: median {times[len(times) // 2]:.2f} ms, longest {times[-1]:.2f} ms, {steps} steps")
    assert_within("nine of ten turns", times[len(times) * 9 // 10], ROUND_MS)
    assert not all(answered(edge, request) for request in hostile)  # there was no time for all of it


def test_retained_read_ends_at_the_timeout_of_its_edge() -> None:
    """A read ends at the edge's timeout; one that must be answered gets its results so far."""
    cluster, edge = with_edge(partitions=1)
    fill(cluster, 20_000)
    ask_all(edge, "+/+/+/+/x", waits_s=0.05)
    request = next(edge.requests)
    edge.ask(ReadRetained(request, 0, edge.epoch(0), "+/+/+/+/z", "", 100, 0.05))
    cluster.run(1.0)
    counts = cluster.nodes["s1"].core.event_counts()
    assert counts["retained_scans_cut"] == 2
    assert answered(edge, request) == {0}
    assert cluster.nodes["s1"].core.handle(cluster.now, []).next_deadline > cluster.now  # no read is in progress


def test_retained_reads_are_bounded() -> None:
    """Above the bound one is refused, counted, and answered if the edge retries until answered."""
    hosted = Cluster(partitions=1).nodes["s1"].core.partitions[0]
    scans = RetainedScans(lambda *_: True, lambda *_: None)
    for number in range(SCANS_MAX + 1):
        scans.add(RetainedScan("e1", ReadRetainedAll(number, "#", 1), [(0, hosted)]), 0.0)
    assert (len(scans), scans.refused) == (SCANS_MAX, 1)


def test_incomplete_retained_pages_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If many unfinished reads have many results, pages end early; the edge requests the rest."""
    monkeypatch.setattr(retained_scans, "HELD_BYTES_MAX", 10)
    cluster, edge = with_edge(partitions=1)
    for number in range(300):
        edge.publish(PublishMessage(0, f"a/{number:03}".encode(), b"12345", 1, retain=True), 0)
    cluster.settle()
    found: list[str] = []
    pages = 0
    more = True
    while more:
        request = next(edge.requests)
        edge.ask(ReadRetained(request, 0, edge.epoch(0), "a/+", found[-1] if found else "", 1_000))
        cluster.settle()
        (page,) = [one for one in edge.answers(RetainedPage) if one.request == request]
        found += [message.topic for message in page.messages]
        pages, more = pages + 1, page.more
    assert found == [f"a/{number:03}" for number in range(300)]
    assert pages > 2


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_sliced_retained_read_matches_a_single_scan(limit: int) -> None:
    """Over many iterations and pages, in order, each message once, including a topic written meanwhile."""
    cluster, edge = with_edge(partitions=1)
    for number in range(300):
        edge.publish(PublishMessage(0, f"a/{number:03}/{'x' if number % 3 else 'y'}".encode(), b"p", 1, retain=True), 0)
    cluster.settle()
    found: list[str] = []
    after = ""
    while True:
        request = next(edge.requests)
        edge.ask(ReadRetained(request, 0, edge.epoch(0), "a/+/y", after, limit))
        cluster.settle()
        (page,) = [one for one in edge.answers(RetainedPage) if one.request == request]
        assert len(page.messages) <= limit
        found += [message.topic for message in page.messages]
        if not page.more:
            break
        after = found[-1]
    assert found == [f"a/{number:03}/y" for number in range(0, 300, 3)]


def test_retained_read_skips_a_partition_that_moved_away() -> None:
    """The read continues with the others; the requested node replies for its remaining partitions."""
    cluster, edge = with_edge(nodes=2, replicas=2, partitions=4)
    before = set(cluster.nodes["s1"].core.partitions)
    for hosted in cluster.nodes["s1"].core.partitions.values():
        for number in range(5000):
            hosted.retained.restore(retained_row(f"a/{number}"))
    request = ask_all(edge, "+/+/x")
    cluster.step()
    moved = min(before)
    del cluster.nodes["s1"].core.partitions[moved]
    for _ in range(200):
        cluster.nodes["s1"].turn()
        cluster.step()
    assert answered(edge, request) == before - {moved}


def test_loop_with_retained_reads_lets_the_sync_thread_run() -> None:
    """That thread needs the interpreter lock, which a busy loop takes back before the thread wakes."""
    cluster, edge = with_edge(partitions=1)
    fill(cluster, 20_000)
    core = cluster.nodes["s1"].core
    asked = encode_control(ReadRetainedAll(1, "+/+/+/+/x", 1))
    look_up = FrameArrived(edge.key, FrameKind.CONTROL, asked)
    assert core.handle(cluster.now, [look_up]).next_deadline == cluster.now
    edge.publish(PublishMessage(0, b"a", b"p", 1, retain=True), 0)
    cluster.step()
    assert cluster.nodes["s1"].busy and not answered(edge, 1)
    deadline = core.handle(cluster.now, [NodeTick()]).next_deadline
    assert cluster.now < deadline <= cluster.now + 0.002
