"""What hostile packets cost the loop: time that grows with their bytes and no faster."""

import time
from typing import Any

from tests.clients.packets import publish, text
from tests.edge.hot.harness import Broker
from tests.turn_time import assert_within, timed

PROPERTY = b"\x26" + text(b"key") + text(b"value")
MANY = 80_000  # of them fill the largest packet


def processing_s(broker: Broker, conn: Any, packet: bytes) -> float:
    """Return the least time of a few that a packet takes."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        broker.send(conn, packet)
        found.append(time.thread_time() - began)
        broker.raw(conn)
    return min(found)


@timed
def test_thousands_of_user_properties(hot: Any) -> None:
    """NIST: protect. Ten times as many take ten times as long, up to the largest packet (CVE-2021-41039)."""
    broker = Broker(hot)
    conn = broker.client(5)
    few, many = (
        processing_s(broker, conn, publish(b"t", b"", version=5, properties=PROPERTY * count))
        for count in (MANY // 10, MANY)
    )
    assert not conn.closed
    assert_within(f"{MANY} user properties beside a tenth of them", many * 1e3, max(25 * few * 1e3, 5.0))
