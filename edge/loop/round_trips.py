"""Time until a client acknowledges a packet: one packet at a time is measured.

While the measured packet is unacknowledged no other one is, so a message costs two comparisons, and a connection 40
bytes. The buckets are those of ``edge/loop/durations.py``; the weight of older round trips decreases.
"""

import math

import cython

__all__ = ["RoundTrips"]

if not cython.compiled:  # compiled, these are C constants: round_trips.pxd
    BUCKETS = 25
    COUNT_MAX = 255

SHORTEST_MS = 0.064  # upper bound of the first bucket


class RoundTrips:
    """The round trips of one connection.

    Attributes:
        packet: Identifier of the measured packet, 0: none. The next written packet then sets it, and ``since_ns``.
    """

    def __init__(self) -> None:
        if not cython.compiled:
            self.counts = [0] * BUCKETS
        self.packet = 0
        self.since_ns = 0

    def counted(self) -> list[int]:
        """Return the number in each bucket."""
        return [self.counts[bucket] for bucket in range(BUCKETS)]


def end_trip(trips: RoundTrips, now_ns: cython.longlong) -> None:
    """Count the measured packet at its acknowledgement."""
    bucket: cython.int = 0
    each: cython.int
    left: cython.longlong = ((now_ns - trips.since_ns) // 1000 - 1) >> 6 if now_ns - trips.since_ns >= 1000 else 0
    while left > 0 and bucket < BUCKETS - 1:
        left >>= 1
        bucket += 1
    trips.packet = 0
    if trips.counts[bucket] >= COUNT_MAX:
        for each in range(BUCKETS):
            trips.counts[each] = trips.counts[each] >> 1
    trips.counts[bucket] += 1


def p99_ms(counts: list[int]) -> float | None:
    """Return an upper bound of 99 of 100 round trips, a power of two times 64 us; None without round trips."""
    left = math.ceil(0.99 * sum(counts))
    if not left:
        return None
    for bucket, count in enumerate(counts):
        left -= count
        if left <= 0:
            return SHORTEST_MS * (1 << bucket)
    return None
