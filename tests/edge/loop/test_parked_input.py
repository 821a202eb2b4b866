"""Input of a parked connection: PINGREQ is answered, Routes are prefetched, and packets keep their order."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.clients.packets import DISCONNECT, PINGREQ, ack, publish, split
from tests.edge.loop.harness import Broker

PINGRESP = b"\xd0\x00"
MIB = 1024 * 1024
SECOND = 1_000_000_000


class ParkedPublisher:
    """A loop whose Routes the test installs, one publisher, and a subscriber of ``#``."""

    def __init__(self, hot: Any, version: int = 4, **limits: Any) -> None:
        self.hot = hot
        self.broker = Broker(hot, **limits)
        self.subscriber = self.broker.subscriber(b"#")
        self.publisher = self.broker.client(version)
        self.missed: list[tuple[Any, bytes]] = []
        self.broker.handler.miss = lambda conn, topic: self.missed.append((conn, topic))  # type: ignore[method-assign]

    @property
    def prefetched(self) -> list[bytes]:
        """Topics that the loop prefetched since the last call."""
        prefetched, self.broker.handler.prefetched = self.broker.handler.prefetched, []
        return prefetched

    def answer(self, *topics: bytes) -> None:
        """Install Routes of these topics and of the missed one, and resume the publisher for a turn."""
        missed, self.missed = self.missed, []
        for topic in [*topics, *(topic for _, topic in missed)]:
            route = self.hot.state.Route(topic, self.broker.handler.subscribers(topic))
            self.broker.hot.install_route(topic, route)
        for conn, _ in missed:
            self.broker.hot.resume(conn)
        self.broker.turn()

    def finish(self) -> None:
        """Answer until no topic is missed."""
        while self.missed:
            self.answer()
        self.broker.turn()


def topics_of(count: int, payload: bytes = b"x") -> list[bytes]:
    return [publish(b"t/%d" % number, payload) for number in range(count)]


def test_ping_behind_a_parked_message_is_answered_at_once_and_once(hot: Any) -> None:
    """PINGRESP has no order with other packets; an answered PINGREQ is skipped by the parser."""
    parked = ParkedPublisher(hot)
    broker, publisher = parked.broker, parked.publisher
    broker.send(publisher, b"".join([*topics_of(3), PINGREQ, publish(b"t/3", b"x"), PINGREQ]))
    assert broker.take(publisher) == [PINGRESP] * 2
    assert broker.hot.counters()["pings_early"] == 2
    broker.send(publisher, PINGREQ)
    assert broker.take(publisher) == [PINGRESP]
    parked.finish()
    assert broker.take(publisher) == [] and len(broker.take(parked.subscriber)) == 4
    broker.send(publisher, PINGREQ)
    assert broker.take(publisher) == [PINGRESP]


@pytest.mark.parametrize("seed", range(12))
def test_random_streams_keep_order_and_answer_each_ping_once(hot: Any, seed: int) -> None:
    """For any cut of a stream and order of answers: the same messages, and one PINGRESP for each PINGREQ."""
    rng = random.Random(seed)
    parked = ParkedPublisher(hot, version=rng.choice([4, 5]))
    broker, publisher = parked.broker, parked.publisher
    sent: list[bytes] = []
    wanted: list[bytes] = []
    for _ in range(120):
        if rng.random() < 0.3:
            sent.append(PINGREQ)
        else:
            payload = bytes(rng.choice([1, 40, 9_000, 150_000 if rng.random() < 0.1 else 1]))
            topic = b"t/%d" % rng.randrange(40)
            sent.append(publish(topic, payload, version=publisher.version))
            wanted.append(publish(topic, payload))
    data = b"".join(sent)
    out = b""
    got: list[bytes] = []
    at = 0
    while at < len(data):
        size = rng.choice([1, 2, 3, 700, 5_000, 64 * 1024])
        if publisher.parked and not (broker.hot.reads_ahead(publisher) and rng.random() < 0.8):
            parked.answer()
            continue
        broker.send(publisher, data[at : at + size])
        at += size
        out += broker.raw(publisher)
        got += broker.take(parked.subscriber)
    for _ in range(500):
        parked.finish()
        got += broker.take(parked.subscriber)
    out += broker.raw(publisher)
    assert not broker.handler.errors
    assert split(out) == [PINGRESP] * sent.count(PINGREQ)
    assert got == wanted
    assert broker.hot.counters()["read_ahead_bytes"] == 0


def test_many_topics_are_prefetched_in_one_call(hot: Any) -> None:
    """Each once, no cached one, and the rest when the publisher is parked again."""
    parked = ParkedPublisher(hot)
    broker, publisher = parked.broker, parked.publisher
    parked.answer(b"t/5")
    broker.send(publisher, b"".join(topics_of(700) + topics_of(700)))
    prefetched = parked.prefetched
    assert parked.missed == [(publisher, b"t/0")]
    assert prefetched == [b"t/%d" % number for number in range(501) if number != 5]  # t/0 is the missed one
    parked.answer(*prefetched)
    assert parked.missed == [(publisher, b"t/501")]
    assert parked.prefetched == [b"t/%d" % number for number in range(501, 700)]


def test_refused_prefetches_are_repeated(hot: Any) -> None:
    """The core accepts a part: no topic is skipped."""
    parked = ParkedPublisher(hot)
    offered: list[list[bytes]] = []

    def prefetch(_: Any, topics: list[bytes]) -> int:
        offered.append(topics)
        return 2

    parked.broker.handler.prefetch = prefetch  # type: ignore[method-assign,assignment]
    parked.broker.send(parked.publisher, b"".join(topics_of(6)))
    parked.answer(b"t/1")
    assert [topics[:3] for topics in offered] == [[b"t/0", b"t/1", b"t/2"], [b"t/2", b"t/3", b"t/4"]]


def test_topic_aliases_and_other_packets_are_skipped(hot: Any) -> None:
    parked = ParkedPublisher(hot, version=5)
    alias = b"\x23\x00\x01"
    stream = [
        publish(b"a", b"1", version=5),
        publish(b"b", b"2", version=5, properties=alias),
        ack(0x40, 9),
        publish(b"", b"3", version=5, properties=alias),
        PINGREQ,
        publish(b"c", b"4", 1, 7, 5),
    ]
    parked.broker.send(parked.publisher, b"".join(stream))
    assert parked.prefetched == [b"a", b"b", b"c"]
    parked.finish()
    payloads = [packet[-1:] for packet in parked.broker.take(parked.subscriber)]
    assert payloads == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("last", [DISCONNECT, b"\x30\x80\x80\x80\x80\x01", publish(b"t/#", b"")])
def test_input_behind_the_end_of_a_session_is_not_scanned(hot: Any, last: bytes) -> None:
    """DISCONNECT, a malformed packet, an invalid topic: no topic behind it is prefetched."""
    parked = ParkedPublisher(hot)
    broker, publisher = parked.broker, parked.publisher
    broker.send(publisher, b"".join([*topics_of(2), last, publish(b"behind", b""), PINGREQ]))
    assert b"behind" not in parked.prefetched
    parked.finish()
    assert publisher.closed
    assert broker.take(publisher) in ([], [PINGRESP])


def test_prefetch_stays_within_the_rate_of_the_client(hot: Any) -> None:
    parked = ParkedPublisher(hot, publish_rate_max=5.0)
    parked.broker.send(parked.publisher, b"".join(topics_of(50)))
    assert len(parked.prefetched) == 5


def test_read_ahead_bytes_are_bounded_and_each_client_has_a_share(hot: Any) -> None:
    """A quarter of the rest: the first client leaves room for the next."""
    parked = ParkedPublisher(hot, read_ahead_bytes_max=8 * MIB)
    broker = parked.broker
    clients = [parked.publisher, broker.client(), broker.client()]
    held: list[int] = []
    for client in clients:
        broker.send(client, publish(b"new", b"x"))
        while broker.hot.reads_ahead(client):
            broker.send(client, publish(b"t", bytes(60_000)))
        held.append(client.ahead.bytes)
    assert 8 * MIB // 6 < held[0] <= 8 * MIB // 4 and MIB // 2 < held[2] < held[1] < held[0]
    counters = broker.hot.counters()
    assert counters["read_ahead_bytes"] == sum(held) <= counters["held_bytes"]
    broker.hot.close(clients[0])
    broker.turn()
    assert broker.hot.counters()["read_ahead_bytes"] == held[1] + held[2]
    broker.hot.end_of_file(clients[1])  # its earlier input still counts
    for _ in range(100):
        parked.finish()
        broker.raw(parked.subscriber)
    assert broker.hot.counters()["read_ahead_bytes"] == 0 and clients[1].closed and not clients[2].parked


def test_a_client_that_does_not_read_is_not_read_ahead(hot: Any) -> None:
    parked = ParkedPublisher(hot)
    broker, publisher = parked.broker, parked.publisher
    assert not broker.hot.reads_ahead(broker.attach())
    broker.send(publisher, publish(b"a", b""))
    assert broker.hot.reads_ahead(publisher)
    broker.hot.bound_held_bytes(0)
    assert not broker.hot.reads_ahead(publisher)
    broker.hot.bound_held_bytes(1 << 40)
    broker.hot.bound_by(replace(broker.hot.limits, output_high_bytes=10_000))
    broker.send(publisher, PINGREQ * 20_000)
    assert not broker.hot.reads_ahead(publisher)
    assert len(broker.raw(publisher)) < broker.hot.limits.output_high_bytes + 100


def test_ping_behind_a_full_rate_is_answered(hot: Any) -> None:
    """Messages above the rate wait; PINGREQ behind them does not."""
    parked = ParkedPublisher(hot, publish_rate_max=1.0)
    broker, publisher = parked.broker, parked.publisher
    parked.answer(b"t")
    broker.send(publisher, publish(b"t", b"x") * 5)
    assert publisher.parked
    broker.send(publisher, publish(b"t", b"y") + PINGREQ)
    assert broker.take(publisher) == [PINGRESP]
    broker.take(parked.subscriber)
    broker.now_ns += 10 * SECOND
    broker.turn()
    broker.turn()
    assert broker.take(parked.subscriber) == [publish(b"t", b"y")] and broker.take(publisher) == []


def test_the_second_use_marks_a_route(hot: Any) -> None:
    parked = ParkedPublisher(hot)
    broker = parked.broker
    parked.answer(b"once", b"often", b"never")
    broker.send(parked.publisher, publish(b"once", b"") + publish(b"often", b""))
    broker.send(parked.publisher, publish(b"x", b"")[:3])
    other = broker.client()
    broker.send(other, publish(b"often", b""))
    assert [broker.hot.clear_used(topic) for topic in (b"once", b"often", b"never", b"none")] == [
        False, True, False, False
    ]  # fmt: skip
    assert not broker.hot.clear_used(b"often")
    broker.send(parked.subscriber, publish(b"often", b""))
    assert broker.hot.clear_used(b"often")
