"""The clock of leases, links and timers: one for every process of a host."""

import time

__all__ = ["boot_time"]


def boot_time() -> float:
    """Return seconds since boot, suspends included: leases must not stand still while a host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
