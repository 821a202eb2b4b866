"""A histogram of durations for the loop: the buckets of ``conf.metrics.PowersOfTwo``, counted as C integers."""

import cython

__all__ = ["BUCKETS", "Durations"]

BUCKETS = 25

if not cython.compiled:  # compiled, this is a C constant: durations.pxd
    LAST = BUCKETS - 1


class Durations:
    """One histogram, from 64 us to 17 min by powers of two."""

    def __init__(self) -> None:
        if not cython.compiled:
            self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def counted(self) -> list[int]:
        """Return the number in each bucket."""
        return [self.counts[bucket] for bucket in range(BUCKETS)]


def count_durations(durations: Durations, ns: cython.longlong, number: cython.ulonglong) -> None:
    """Count several equal durations."""
    bucket: cython.int = 0
    left: cython.longlong = (ns // 1000 - 1) >> 6 if ns >= 1000 else 0
    while left > 0 and bucket < LAST:
        left >>= 1
        bucket += 1
    durations.counts[bucket] += number
    durations.sum_ns += ns * number


def count_duration(durations: Durations, ns: cython.longlong) -> None:
    """Count one duration; it is compared with bounds in whole microseconds."""
    bucket: cython.int = 0
    left: cython.longlong = (ns // 1000 - 1) >> 6 if ns >= 1000 else 0
    while left > 0 and bucket < LAST:
        left >>= 1
        bucket += 1
    durations.counts[bucket] += 1
    durations.sum_ns += ns
