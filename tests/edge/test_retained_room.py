"""Retained messages for slow clients wait within bounds; limits of live messages drop none of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from edge.node.limits import EdgeLimits
from edge.subscriptions import retained_pages
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback
from mqtt.properties import PropertyId
from tests.edge.edge_harness import PARTITIONS, Edge, Session, cluster_map
from tests.edge.retained_partitions import retained
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.batches import NO_EXPIRY
from wire.messages.cluster_map import PartitionEntry
from wire.messages.control import Control
from wire.messages.map_pages import map_pages
from wire.messages.retained import (
    DeliverRetained,
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedMessage,
    RetainedPage,
)


class Stores:
    """Partitions with retained messages that respond in pages, like a storage node."""

    def __init__(
        self, edge: Edge, count: int, payload: bytes = b"kept", qos: int = 1, expiry_s: int = NO_EXPIRY
    ) -> None:
        self.edge = edge
        self.pages = 0
        self.asked = 0  # messages, including those of pages that are read again
        names = [f"r/{number:05}" for number in range(count)]
        self.topics = [names[number::PARTITIONS] for number in range(PARTITIONS)]
        self.payload, self.qos, self.expiry_s = payload, qos, expiry_s
        edge.held |= {ReadRetained, ReadRetainedAll}

    def page(self, request: int, partition: int, after: str, limit: int) -> RetainedPage:
        found = [topic for topic in self.topics[partition] if topic > after]
        self.pages += 1
        self.asked += len(found[:limit])
        messages = [RetainedMessage(topic, self.payload, self.qos, b"", self.expiry_s) for topic in found[:limit]]
        return RetainedPage(request, messages, len(found) > limit, partition)

    def answer(self) -> bool:
        """Answer all requests; return whether there were any."""
        asked = self.edge.take(ReadRetainedAll)
        one = self.edge.take(ReadRetained)
        for message in asked:
            for partition in range(PARTITIONS):
                self.edge.storage(self.page(message.request, partition, "", message.limit))
        for message in one:
            self.edge.storage(self.page(message.request, message.partition, message.after, message.limit))
        self.edge.turn(0.001)
        return bool(asked or one)


def answers_to(packets: list[Any]) -> Iterator[Any]:
    """Yield a client's responses to packets."""
    for packet in packets:
        if isinstance(packet, Publish) and packet.packet_identifier:
            yield (Puback if packet.qos == 1 else Pubrec)(packet.packet_identifier)
        elif isinstance(packet, Pubrel):
            yield Pubcomp(packet.packet_identifier)


def drain(stores: Stores, session: Session, batch: int, turns: int = 20_000) -> list[str]:
    """Read as a client that acknowledges some packets at a time; return the received topics."""
    owed: list[Any] = []
    topics: list[str] = []
    for _ in range(turns):
        answered = stores.answer()
        packets = session.read()
        topics += [packet.topic_name for packet in packets if isinstance(packet, Publish)]
        owed += answers_to(packets)
        if not owed and not answered and not packets:
            return topics
        for answer in owed[:batch]:
            session.send(answer)
        del owed[:batch]
    raise AssertionError("it does not end")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("receive_maximum", [1, 20])
def test_slow_client_gets_every_retained_message_once(qos: int, receive_maximum: int) -> None:
    edge = Edge(pending_messages_max=20)
    stores = Stores(edge, 600, qos=qos)
    session = edge.client(properties={PropertyId.RECEIVE_MAXIMUM: receive_maximum})
    session.subscribe("r/#")
    topics = drain(stores, session, 7)
    assert len(topics) == 600 == len(set(topics))
    counted = edge.core.hot.counters()
    assert counted["dropped_pending"] == counted["dropped_slow"] == 0
    assert not edge.core.retained.waits and edge.core.retained.held_bytes == 0 and len(edge.core.held) == 0


@pytest.mark.parametrize("limits", [{"pending_messages_max": 0}, {"pending_messages_max": 1}, {"pending_bytes_max": 0}])
def test_session_without_queue_gets_messages_within_its_window(limits: dict[str, Any]) -> None:
    edge = Edge(**limits)
    stores = Stores(edge, 300)
    session = edge.client()
    session.subscribe("r/#")
    assert len(set(drain(stores, session, 3))) == 300
    assert edge.core.hot.counters()["dropped_pending"] == 0


def test_many_subscriptions_of_one_client_share_its_bound() -> None:
    """One SUBSCRIBE with many filters and many SUBSCRIBEs."""
    edge = Edge(pending_messages_max=20)
    stores = Stores(edge, 100)
    session = edge.client()
    session.subscribe(*(f"{'+/' * (number % 2)}#" if number < 2 else f"r/000{number:02}" for number in range(40)))
    for number in range(40, 90):
        session.subscribe(f"r/000{number:02}", identifier=number)
    topics = drain(stores, session, 5)
    assert len(set(topics)) == 100
    assert edge.core.hot.counters()["dropped_pending"] == 0


def test_client_without_acknowledgements_holds_bounded_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained_pages, "BYTES_MAX", 400_000)
    monkeypatch.setattr(retained_pages, "CLIENT_BYTES_MAX", 100_000)
    edge = Edge()
    stores = Stores(edge, 2_000, bytes(1_000))
    stalled = [edge.client(f"stalled-{number}") for number in range(8)]
    for session in stalled:
        for identifier in range(1, 20):
            session.subscribe("r/#", identifier=identifier)
        stores.answer()
    for _ in range(50):
        stores.answer()
    reads = edge.core.retained
    assert reads.held_bytes <= 400_000 and all(reads.unfinished(one.client) == 1 for one in stalled)
    pages = stores.pages
    for _ in range(200):
        assert not stores.answer(), "a client without room is read for"
        edge.turn(0.1)
    assert stores.pages == pages
    honest = edge.client("honest")
    honest.subscribe("r/#")
    assert len(set(drain(stores, honest, 50))) == 2_000
    for session in stalled:
        session.drop()
    edge.turn(0.1)
    assert reads.held_bytes == 0 and reads.stalled == 0 and not reads.waits and len(edge.core.held) == 0


def test_unsubscribe_drops_queued_pages() -> None:
    edge = Edge(pending_messages_max=10)
    stores = Stores(edge, 400)
    session = edge.client()
    session.subscribe("r/#")
    stores.answer()
    assert edge.core.retained.held_bytes > 0
    session.unsubscribe("r/#")
    edge.turn(0.1)
    assert edge.core.retained.held_bytes == 0 and not edge.core.retained.waits


def test_live_messages_after_slow_read_keep_their_order() -> None:
    """They are held for a second or five, and then sent as their client accepts them."""
    edge = Edge(pending_messages_max=20)
    stores = Stores(edge, 100)
    session, publisher = edge.client("s"), edge.client("p")
    edge.held |= {ReadRetainedAll}
    session.subscribe("r/#")
    live = [f"{number}".encode() for number in range(150)]
    for number, payload in enumerate(live):
        publisher.publish("r/live", payload, 1, number + 1)
    got: list[bytes] = []
    owed: list[Any] = []
    for _ in range(3_000):
        stores.answer()
        packets = session.read()
        got += [packet.payload for packet in packets if isinstance(packet, Publish)]
        owed += answers_to(packets)
        for answer in owed[:3]:
            session.send(answer)
        del owed[:3]
    assert [payload for payload in got if payload != b"kept"] == live
    assert got.count(b"kept") == 100 and edge.core.hot.counters()["dropped_pending"] == 0
    assert len(edge.core.held) == 0


def test_queued_copy_expiry_is_reduced() -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]: a queued copy has less time left, or none."""
    edge = Edge(pending_messages_max=0, outbound_window_max=1)
    stores = Stores(edge, 8, expiry_s=10)
    session = edge.client()
    session.subscribe("r/#")
    stores.answer()
    (first,) = publishes(session)
    edge.turn(4.0)
    session.send(Puback(first.packet_identifier))
    edge.turn(0.1)
    (second,) = publishes(session)
    assert second.properties[PropertyId.MESSAGE_EXPIRY_INTERVAL] == 6
    edge.turn(7.0)
    session.send(Puback(second.packet_identifier))
    edge.turn(0.1)
    assert publishes(session) == []
    assert edge.core.counts["dropped_retained_expired"] == 6


def test_limited_read_is_reported_by_event_and_next_suback(caplog: pytest.LogCaptureFixture) -> None:
    """The number of matches is known after SUBACK: the operator gets an event, and the client the next SUBACK's
    reason.
    """
    edge = Edge(EdgeLimits(sys_interval_s=0, retained_per_subscribe_max=50))
    stores = Stores(edge, 200)
    first = edge.client("first")
    first.subscribe("r/#")
    (suback,) = [packet for packet in first.read() if isinstance(packet, Suback)]
    assert PropertyId.REASON_STRING not in suback.properties
    with caplog.at_level("WARNING"):
        assert len(drain(stores, first, 50)) == 50
    assert [record.event for record in caplog.records] == ["retained.limit_reached"]  # type: ignore[attr-defined]
    assert edge.core.counts["retained_reads_limited"] == 1
    told = {True: "more than 50 retained messages match r/#; the rest is not sent", False: None}
    for name, asks in (("second", True), ("third", False)):
        session = edge.client(name, properties={PropertyId.REQUEST_PROBLEM_INFORMATION: int(asks)})
        session.subscribe("r/#")
        (suback,) = [packet for packet in session.read() if isinstance(packet, Suback)]
        assert suback.properties.get(PropertyId.REASON_STRING) == told[asks], "[MQTT-3.1.2-29]"
        drain(stores, session, 50)
    stores.topics = [topics[:5] for topics in stores.topics]
    drain_all = edge.client("fourth")
    drain_all.subscribe("r/#")
    drain(stores, drain_all, 50)
    drain_all.subscribe("r/#")
    assert all(not packet.properties for packet in drain_all.read() if isinstance(packet, Suback))


def test_exact_number_of_matches_is_not_limited() -> None:
    edge = Edge(EdgeLimits(sys_interval_s=0, retained_per_subscribe_max=200))
    stores = Stores(edge, 200)
    session = edge.client()
    session.subscribe("r/#")
    assert len(drain(stores, session, 50)) == 200
    assert "retained_reads_limited" not in edge.core.counts


class Queue:
    """A durable session's partition with a bounded queue."""

    def __init__(self, edge: Edge, room: int) -> None:
        self.edge, self.room = edge, room
        self.topics: list[str] = []
        self.requests = 0
        self.most = 0
        self.done = False
        edge.held |= {DeliverRetained}

    def answer(self) -> bool:
        asked = self.edge.take(DeliverRetained)
        self.most = max(self.most, len(asked))
        for message in asked:
            self.requests += 1
            taken = message.messages[: max(0, self.room)]
            self.room -= len(taken)
            self.topics += [one.topic for one in taken]
            self.done |= message.done
            reply: Control = RetainedDelivered(message.request, taken=len(taken))
            self.edge.storage(reply)
        self.edge.turn(0.01)
        return bool(asked)


def test_full_durable_queue_is_retried_without_loss() -> None:
    """Its partition accepts copies within its bound; none is evicted for a copy that can wait."""
    edge = Edge()
    stores, queue = Stores(edge, 900), Queue(edge, 70)
    session = edge.client("d", properties=DURABLE)
    session.subscribe("r/#", qos=1)
    for _ in range(40):
        stores.answer()
        queue.answer()
    assert len(queue.topics) == 70 and not queue.done
    requests = queue.requests
    for _ in range(40):
        edge.turn(1.0)
        queue.answer()
    assert requests < queue.requests <= requests + 45 and len(queue.topics) == 70, "asked seldom, with one message"
    for _ in range(4_000):
        queue.room += 3
        edge.turn(0.1)
        if not (stores.answer() | queue.answer()) and queue.done:
            break
    assert sorted(queue.topics) == sorted(topic for topics in stores.topics for topic in topics)
    assert queue.most <= 8 and not edge.core.retained.waits and edge.core.retained.held_bytes == 0


def test_unfinished_read_of_durable_session_is_counted() -> None:
    edge = Edge()
    stores, queue = Stores(edge, 400), Queue(edge, 10)
    session = edge.client("d", properties=DURABLE)
    session.subscribe("r/#", qos=1)
    for _ in range(10):
        stores.answer()
        queue.answer()
    session.drop()
    edge.turn(3.0)
    assert edge.core.counts["retained_reads_cut"] == 1
    assert edge.core.retained.held_bytes == 0 and not edge.core.retained.waits


def test_retained_page_is_delivered_once() -> None:
    """A node's late response is ignored after its partition was requested by itself."""
    edge = Edge()
    edge.held = {ReadRetained, ReadRetainedAll}
    session = edge.client()
    session.subscribe("r/#")
    (everything,) = edge.take(ReadRetainedAll)
    edge.turn(10.2)
    assert edge.core.counts["retained_partitions_missed"] == PARTITIONS
    asked = edge.take(ReadRetained)
    assert [one.partition for one in asked] == list(range(PARTITIONS))
    edge.storage(RetainedPage(everything.request, [retained("r/a")], partition=0))
    for one in asked:
        found = [retained("r/a")] if one.partition == 0 else []
        edge.storage(RetainedPage(one.request, found, partition=one.partition))
    assert [packet.topic_name for packet in publishes(session)] == ["r/a"]
    assert not edge.core.retained.waits


def test_repeated_subscribe_has_one_scan_in_progress() -> None:
    """The next scan starts after the first, for the last SUBSCRIBE only."""
    edge = Edge()
    edge.held = {ReadRetainedAll}
    session = edge.client()
    for identifier in range(1, 11):
        session.subscribe("r/#", identifier=identifier)
    (first,) = edge.take(ReadRetainedAll)
    for number in range(PARTITIONS):
        edge.storage(RetainedPage(first.request, [retained(f"r/{number}")], partition=number))
    (last,) = edge.take(ReadRetainedAll)
    for number in range(PARTITIONS):
        edge.storage(RetainedPage(last.request, [retained(f"r/{number}")], partition=number))
    edge.turn()
    assert sorted(packet.topic_name for packet in publishes(session)) == [f"r/{n}" for n in range(PARTITIONS)]
    assert not edge.take(ReadRetainedAll) and not edge.core.retained.waits and len(edge.core.held) == 0


def test_partition_with_new_primary_is_requested_at_once() -> None:
    """Its former one may never respond; without a primary the request waits for one."""
    edge = Edge()
    edge.held = {ReadRetained, ReadRetainedAll}
    session = edge.client()
    session.subscribe("r/#")
    assert len(edge.take(ReadRetainedAll)) == 1
    moved = cluster_map(2, "s1", 2)
    moved.partitions[3] = PartitionEntry(2, "", ())
    edge.router(*map_pages(moved))
    edge.turn(0.1)
    asked = edge.take(ReadRetained)
    assert [one.partition for one in asked] == [0, 1, 2]
    for one in asked:
        edge.storage(RetainedPage(one.request, [], partition=one.partition), "s1")
    back = cluster_map(3, "s1", 3)
    edge.router(*map_pages(back))
    edge.turn(1.0)
    (one,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(one.request, [retained("r/a")], partition=3), "s1")
    edge.turn()
    assert [packet.topic_name for packet in publishes(session)] == ["r/a"] and not edge.core.retained.waits


def test_reader_next_to_thirty_stalled_clients() -> None:
    """Pages of stalled clients delay neither its messages nor its iterations."""
    edge = Edge(pending_messages_max=20)
    stores = Stores(edge, 600)
    for number in range(30):
        edge.client(f"stalled{number}").subscribe("r/#")
    session = edge.client("reader")
    session.subscribe("r/#")
    topics = drain(stores, session, 7, turns=300)
    assert len(topics) == 600 == len(set(topics))
    assert edge.core.retained.stalled == 30
    counted = edge.core.hot.counters()
    assert counted["dropped_pending"] == counted["dropped_slow"] == 0
    again = edge.client("again")
    again.subscribe("r/#")
    assert len(set(drain(stores, again, 7, turns=300))) == 600
