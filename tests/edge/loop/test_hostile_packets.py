"""Processing time of hostile packets is linear in their bytes."""

import time
from typing import Any

import pytest

from tests.clients.packets import publish, text
from tests.edge.loop.harness import Broker
from tests.turn_time import assert_within, timed

PROPERTY = b"\x26" + text(b"key") + text(b"value")
MANY = 80_000  # so many fill the largest packet


def processing_s(broker: Broker, conn: Any, packet: bytes) -> float:
    """Return the minimum of several processing times of a packet."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        broker.send(conn, packet)
        found.append(time.thread_time() - began)
        broker.raw(conn)
    return min(found)


@timed
def test_processing_time_is_linear_in_user_properties(hot: Any) -> None:
    """Ten times as many take ten times as long, up to the largest packet (CVE-2021-41039)."""
    broker = Broker(hot, user_property_bytes_max=1 << 30)
    conn = broker.client(5)
    few, many = (
        processing_s(broker, conn, publish(b"t", b"", version=5, properties=PROPERTY * count))
        for count in (MANY // 10, MANY)
    )
    assert not conn.closed
    assert_within(f"{MANY} user properties beside a tenth of them", many * 1e3, max(25 * few * 1e3, 5.0))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 1])
def test_user_properties_above_byte_limit_are_refused(hot: Any, qos: int, more: int) -> None:
    """Names and values count with their lengths, as in other packets; above it 0x97, and no message is sent."""
    broker = Broker(hot, user_property_bytes_max=10 * (len(PROPERTY) - 1))
    conn, reader = broker.client(5), broker.subscriber(b"t", version=5)
    packet = publish(b"t", b"x", qos=qos, identifier=qos and 7, version=5, properties=PROPERTY * (10 + more))
    broker.send(conn, publish(b"t", b"0", version=5) + packet)
    assert [code for _, code in broker.handler.errors] == [0x97] * more
    assert len(broker.take(reader)) == 2 - more


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 1])
def test_user_properties_above_count_limit_are_refused(hot: Any, qos: int, more: int) -> None:
    """64 of them, at any position; forwarded messages were checked at their edge."""
    broker = Broker(hot, user_properties_max=64)
    conn, reader = broker.client(5), broker.subscriber(b"t", version=5)
    other = b"\x01\x01\x03" + text(b"type") + b"\x08" + text(b"answer") + b"\x09" + text(b"\xff\x00")
    properties = PROPERTY * 60 + other + PROPERTY * (4 + more)
    packet = publish(b"t", b"x", qos=qos, identifier=qos and 7, version=5, properties=properties)
    broker.send(conn, publish(b"t", b"0", version=5) + packet)
    assert [code for _, code in broker.handler.errors] == [0x97] * more
    assert len(broker.take(reader)) == 2 - more


def test_alias_does_not_hide_user_properties(hot: Any) -> None:
    broker = Broker(hot, user_property_bytes_max=len(PROPERTY) - 1)
    conn = broker.client(5)
    alias = b"\x23\x00\x01"
    broker.send(conn, publish(b"t", b"", version=5, properties=alias + PROPERTY))
    assert not broker.handler.errors
    broker.send(conn, publish(b"", b"", version=5, properties=PROPERTY + alias + PROPERTY))
    assert [code for _, code in broker.handler.errors] == [0x97]
