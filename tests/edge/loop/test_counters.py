"""Counters of the loop are declared in one table; the fields in Python and in C agree with it."""

import re
from pathlib import Path
from typing import Any

from edge.loop import counters
from tests.clients.packets import ack, publish, subscribe
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import PublishRun, encode_run
from wire.messages.frames import FrameKind

SOURCE = Path(__file__).resolve().parents[3] / "edge" / "loop" / "counters.py"


def test_counter_table_equals_fields() -> None:
    fields = re.findall(r"^        self\.(\w+) = 0$", SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    in_c = re.findall(
        r"^    cdef readonly unsigned long long (\w+)$", SOURCE.with_suffix(".pxd").read_text(), re.MULTILINE
    )
    assert list(counters.COUNTERS) == fields == in_c
    assert len(set(fields)) == len(fields)


def test_each_counter_is_reported(hot: Any) -> None:
    """In the order of the table, followed by gauges."""
    broker = Broker(hot)
    broker.client()
    found = broker.hot.counters()
    assert list(found)[: len(counters.COUNTERS)] == list(counters.COUNTERS)
    assert found["packets_in"] == 1
    assert found["connections"] == 1
    assert all(type(value) is int for value in found.values())


def test_payload_bytes_are_counted_on_every_path(hot: Any) -> None:
    """Runs unchanged and converted, single messages, pending and forwarded ones; each copy."""
    broker = Broker(hot)

    def counted() -> tuple[int, int]:
        found = broker.hot.counters()
        return found["publish_bytes_in"], found["publish_bytes_out"]

    pub, five = broker.client(), broker.client(5)
    broker.send(pub, publish(b"t", b"123") + publish(b"t", b"12345"))  # without subscribers
    assert counted() == (8, 0)
    broker.subscriber(b"a", 1)
    broker.subscriber(b"a", 1, 5, 4)
    broker.send(pub, publish(b"a", b"x" * 200) * 3 + publish(b"a", b"1234567"))
    assert counted() == (8 + 607, 2 * 607)
    broker.send(five, publish(b"a", b"12", version=5, properties=b"\x01\x01") + publish(b"a", b"345", version=5))
    assert counted() == (620, 2 * 612)
    broker.send(pub, publish(b"a", b"1234", 1, 10))
    assert counted() == (624, 2 * 616)
    edge = Node(broker, 2, "edge")
    edge.send(FrameKind.PUBLISH, encode_run(PublishRun(5, b"a", publish(b"a", b"abc", version=5) * 2)))
    assert counted() == (624, 2 * 622)
    edge.send(FrameKind.PUBLISH, encode_run(PublishRun(4, b"a", publish(b"a", b"abcd"))))
    assert counted() == (624, 2 * 626)
    slow = broker.client(5, b"\x21\x00\x01")  # Receive Maximum 1
    broker.send(slow, subscribe(b"w", 1, 5))
    for identifier in (1, 2):
        broker.send(five, publish(b"w", b"1234567", 1, identifier, 5, b"\x03\x00\x01x"))
    assert counted() == (638, 2 * 626 + 7)
    broker.take(slow)
    broker.send(slow, ack(0x40, 1))
    assert counted() == (638, 2 * 626 + 14)
