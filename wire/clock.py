"""The clock of leases, links and timers, one for all processes of a host, and the phase of each tier's periodic work.

A node does its periodic work at shared timestamps, so it wakes up once for all of it. Tiers have different phases:
where nodes share a core, three pieces of 2 ms delay a message less than one of 6 ms.
"""

import time

__all__ = ["boot_time", "next_moment", "tier_phase"]

PHASES = {"storage": 1 / 3, "router": 2 / 3}  # after the edges, which sweep at whole seconds
EARLY_S = 0.001  # a timestamp this close counts as reached


def boot_time() -> float:
    """Return seconds since boot including suspends: leases must expire while a host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tier_phase(tier: str) -> float:
    """Return the offset of a tier's periodic work, as a share of the period."""
    return PHASES.get(tier, 0.0)


def next_moment(now: float, period_s: float, phase: float) -> float:
    """Return the first timestamp after ``now`` that is ``phase`` of a period after a multiple of the period."""
    shift = phase * period_s
    return ((now - shift + EARLY_S) // period_s + 1) * period_s + shift
