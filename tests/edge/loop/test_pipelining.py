"""Parsing of a connection while its retained messages are in flight: docs/protocol.md rule 7.11."""

from typing import Any

from tests.clients.packets import DISCONNECT, PINGREQ, ack, publish
from tests.edge.loop.harness import Broker

PINGRESP = b"\xd0\x00"
PARK_PIPELINE = 64


class Piped:
    """A loop with a core that accepts retained messages and resumes their connection; a subscriber of ``#``."""

    def __init__(self, hot: Any) -> None:
        self.broker = Broker(hot)
        self.subscriber = self.broker.subscriber(b"#")
        self.publisher = self.broker.client()
        self.taken: list[bytes] = []
        self.broker.handler.inbound = self._inbound  # type: ignore[assignment, method-assign]

    def _inbound(self, conn: Any, inbound: Any, route: Any) -> None:
        del route
        self.taken.append(inbound.topic)
        if inbound.qos:
            self.broker.hot.begin_pipeline(conn)
        self.broker.hot.resume(conn)

    def end(self) -> None:
        self.broker.hot.end_pipeline(self.publisher)
        self.broker.turn()


def retained(topic: bytes, identifier: int, qos: int = 1) -> bytes:
    return publish(topic, b"x", qos, identifier, retain=True)


def test_pipelined_connection_parses_only_retained_messages(hot: Any) -> None:
    piped = Piped(hot)
    broker, publisher = piped.broker, piped.publisher
    unknown = ack(0x40, 9)
    stream = [
        retained(b"a", 1),
        retained(b"b", 2, 2),
        unknown,
        PINGREQ,
        retained(b"c", 3),
        publish(b"d", b"x"),
        PINGREQ,
        retained(b"e", 4),
    ]
    broker.send(publisher, b"".join(stream))
    assert piped.taken == [b"a", b"b", b"c"] and publisher.parked == PARK_PIPELINE
    assert broker.take(publisher) == [PINGRESP] * 2 and broker.take(piped.subscriber) == []
    piped.end()
    assert broker.take(piped.subscriber) == [publish(b"d", b"x")]
    assert piped.taken == [b"a", b"b", b"c", b"e"] and publisher.parked == 0


def test_pipelined_connection_parks_other_packets(hot: Any) -> None:
    for packet in (
        publish(b"d", b"x"),
        publish(b"d", b"x", 1, 5),
        publish(b"d", b"x", retain=True),
        DISCONNECT,
        b"\x82",
    ):
        piped = Piped(hot)
        piped.broker.send(piped.publisher, retained(b"a", 1) + packet)
        assert piped.publisher.parked == PARK_PIPELINE and piped.taken == [b"a"], packet
        piped.end()
        assert not piped.publisher.parked & PARK_PIPELINE


def test_end_of_file_waits_for_retained_messages(hot: Any) -> None:
    """With or without packets behind the retained messages."""
    for behind in (b"", publish(b"d", b"x"), publish(b"d", b"x")[:3]):
        piped = Piped(hot)
        broker, publisher = piped.broker, piped.publisher
        broker.send(publisher, retained(b"a", 1) + behind)
        broker.hot.end_of_file(publisher)
        broker.turn()
        assert not publisher.closed
        piped.end()
        assert publisher.closed
        assert len(broker.take(piped.subscriber)) == (len(behind) > 3)


def test_a_closed_connection_has_no_pipeline(hot: Any) -> None:
    piped = Piped(hot)
    piped.broker.send(piped.publisher, retained(b"a", 1))
    piped.broker.hot.close(piped.publisher)
    piped.end()
    piped.broker.hot.begin_pipeline(piped.publisher)
    assert not piped.publisher.pipelining and piped.publisher.closed


def test_input_left_by_an_iteration_is_parsed_before_the_close(hot: Any) -> None:
    """A reset arrives with the answers to the first messages: the rest was lost, and the will preceded it."""
    piped = Piped(hot)
    broker, publisher = piped.broker, piped.publisher
    broker.send(publisher, b"".join(publish(b"t/%d" % number, b"x", retain=True) for number in range(100)))
    assert len(piped.taken) < 100 and publisher.parked == 0
    broker.hot.end_of_file(publisher)
    for _ in range(100):
        broker.turn()
    assert len(piped.taken) == 100 and publisher.closed
