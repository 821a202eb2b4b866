"""The clock of leases, links and timers, one for every process of a host; and when the idle work of each tier is due.

A node does all that recurs at the same moments, so that it wakes up once for it. Nodes of different tiers do it at
different ones: where they share a core, three pieces of two milliseconds hold a message up less than one of six.
"""

import time

__all__ = ["boot_time", "next_moment", "tier_phase"]

PHASES = {"storage": 1 / 3, "router": 2 / 3}  # behind the edges', whose sweeps come at whole seconds
EARLY_S = 0.001  # so near, a moment counts as reached


def boot_time() -> float:
    """Return seconds since boot, suspends included: leases must not stand still while a host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tier_phase(tier: str) -> float:
    """Return by which share of a period what recurs at a tier comes behind the multiples of it."""
    return PHASES.get(tier, 0.0)


def next_moment(now: float, period_s: float, phase: float) -> float:
    """Return the first moment behind ``now`` that lies ``phase`` of a period behind a multiple of it."""
    shift = phase * period_s
    return ((now - shift + EARLY_S) // period_s + 1) * period_s + shift
