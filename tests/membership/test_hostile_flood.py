"""A flood of forged packets costs microseconds per packet, and no log line."""

import logging
import random
import time

from membership.envelope import DROP_REASONS
from tests.membership.test_envelope import HOSTILE, node
from tests.turn_time import assert_within, timed

PACKETS = 20_000


@timed
def test_gossip_flood_is_cheap_and_not_logged() -> None:
    """Random bytes and packets of each wrong kind are dropped and counted, not logged one by one."""
    receiver, rng = node(2, 1), random.Random(1)
    hostile = [*HOSTILE.values(), *(rng.randbytes(rng.randrange(1, 1400)) for _ in range(len(HOSTILE)))]
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[assignment,method-assign]
    logging.getLogger().addHandler(handler)
    try:
        began = time.thread_time()
        for number in range(PACKETS):
            assert receiver.open_datagram(hostile[number % len(hostile)]) is None
        took_s = time.thread_time() - began
    finally:
        logging.getLogger().removeHandler(handler)
    assert sum(receiver.dropped.values()) == PACKETS and set(receiver.dropped) <= set(DROP_REASONS)
    assert not lines
    assert_within("a thousand hostile packets", took_s * 1e6 / PACKETS, 100)
