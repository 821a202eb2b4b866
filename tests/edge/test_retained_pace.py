"""A rate limit of retained reads: messages above it are requested later, and none is lost."""

from typing import Any

import pytest

from edge.node.limits import EdgeLimits
from edge.subscriptions.retained_pace import RetainedPace
from tests.edge.edge_harness import PARTITIONS, Edge
from tests.edge.retained_partitions import retained
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.control import Control
from wire.messages.retained import DeliverRetained, ReadRetained, ReadRetainedAll, RetainedPage

RATE = 40
EACH = 70  # messages per partition


class Stored(Edge):
    """An edge with partitions that return pages of retained messages."""

    def __init__(self, rate: float) -> None:
        super().__init__(EdgeLimits(sys_interval_s=0, retained_rate_max=rate))
        self.topics = {number: [f"a/{number}/{each:03}" for each in range(EACH)] for number in range(PARTITIONS)}
        self.read = 0  # messages read for clients

    def page(self, request: int, partition: int, after: str, limit: int) -> RetainedPage:
        found = [topic for topic in self.topics[partition] if topic > after]
        self.read += len(found[:limit])
        more = len(found) > limit
        return RetainedPage(request, [retained(topic) for topic in found[:limit]], more=more, partition=partition)

    def reply(self, message: Any) -> Control | None:
        if isinstance(message, ReadRetained):
            return self.page(message.request, message.partition, message.after, message.limit)
        if isinstance(message, ReadRetainedAll):
            for partition in range(PARTITIONS):
                self.storage(self.page(message.request, partition, "", message.limit))
            return None
        return super().reply(message)


def rates_of(edge: Stored, seconds: int) -> list[int]:
    """Return the number of messages read in each second."""
    read = []
    for _ in range(seconds):
        before = edge.read
        for _ in range(20):
            edge.turn(0.05)
        read.append(edge.read - before)
    return read


@pytest.mark.parametrize("durable", [False, True])
def test_retained_reads_are_rate_limited_without_loss(durable: bool) -> None:
    """A burst of one second, then the rate; each message arrives once, however long that takes."""
    edge = Stored(RATE)
    session = edge.client("c", properties=DURABLE if durable else None, clean_start=not durable)
    session.subscribe("a/#", qos=0)
    first = edge.read
    rates = rates_of(edge, EACH * PARTITIONS // RATE + 4)
    assert first <= RATE and max(rates) <= 2 * RATE
    assert edge.read == EACH * PARTITIONS and sum(rates[:4]) <= 6 * RATE
    if durable:
        deliveries = [each for each in edge.seen if isinstance(each, DeliverRetained)]
        topics = [message.topic for each in deliveries for message in each.messages]
        assert deliveries[-1].done and not deliveries[-2].done
    else:
        topics = [publish.topic_name for publish in publishes(session)]
    assert sorted(topics) == sorted(topic for each in edge.topics.values() for topic in each)
    assert edge.core.node.counts.get("retained_partitions_missed", 0) == 0


def test_retained_reads_without_rate_are_immediate() -> None:
    edge = Stored(0.0)
    session = edge.client("c")
    session.subscribe("a/#", qos=0)
    edge.turn()
    assert len(publishes(session)) == EACH * PARTITIONS


def test_retained_read_rate_is_per_client() -> None:
    edge = Stored(RATE)
    greedy, modest = edge.client("greedy"), edge.client("modest")
    for _ in range(3):
        greedy.subscribe("a/#", qos=0)
    edge.turn()
    before = edge.read
    modest.subscribe("a/+/001", qos=0)
    assert edge.read - before == RATE and len(publishes(modest)) == RATE
    assert edge.core.node.counts["retained_reads_paced"] >= 1


def test_client_above_retained_read_rate_is_not_read() -> None:
    """Its requests stay unread in its socket; reading resumes with the rate."""
    edge = Stored(RATE)
    session = edge.client("c")
    for _ in range(5):
        session.subscribe("a/#", qos=0)
    assert session.client.conn.parked != 0
    for _ in range(20 * 60):
        edge.turn(0.05)
    assert session.client.conn.parked == 0


def test_filters_without_retained_messages_use_no_rate() -> None:
    """A request returns its unused reservation: many empty filters of one SUBSCRIBE are read at once."""
    edge = Stored(RATE)
    edge.topics = {number: [] for number in range(PARTITIONS)}
    session = edge.client("c")
    for number in range(200):
        session.subscribe(f"b/{number}/#", qos=0)
    assert session.client.conn.parked == 0
    assert "retained_reads_paced" not in edge.core.node.counts


def test_retained_reads_of_closed_client_end() -> None:
    edge = Stored(RATE)
    session = edge.client("c")
    session.subscribe("a/#", qos=0)
    session.drop()
    before = edge.read
    for _ in range(100):
        edge.turn(0.05)
    assert edge.read == before and not edge.core.retained.waits


def test_retained_read_pace_accounting() -> None:
    """Returned messages count as never reserved; a client with its full rate is removed."""
    pace = RetainedPace(10.0)
    calls: list[int] = []
    assert (pace.page(100, 4), pace.page(100, 1000), RetainedPace(0.0).page(100, 4)) == (2, 1, 100)
    pace.reserve(1, 25, 0.0)
    assert pace.wait_s(1, 0.0) == pytest.approx(1.5)
    pace.give_back(1, 10)
    assert pace.wait_s(1, 0.0) == pytest.approx(0.5)

    def ask(number: int) -> None:
        calls.append(number)
        pace.reserve(1, 10, 1.0)

    for number in range(3):
        pace.later(1, 0.0, lambda number=number: ask(number))  # type: ignore[misc]
    pace.tick(0.4)
    assert calls == [] and pace.is_waiting(1)
    pace.tick(1.0)
    assert calls == [0] and pace.is_waiting(1) and len(pace) == 1
    for now in (1.4, 1.5, 60.0):
        pace.tick(now)
    assert calls == [0, 1, 2] and not pace.is_waiting(1)
    pace.reserve(2, 1, 100.0)
    assert pace.wait_s(1, 100.0) == 0.0
