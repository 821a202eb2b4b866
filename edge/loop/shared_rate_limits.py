"""Rates that several connections have together: the clients of one address use up one purse.

Each connection charges what was read of it and is not read while the purse is more than a second ahead. Who shares one
is the core's to say (``edge/listeners/admission_control.py``). Decision: docs/adr/0071-purses-of-addresses.md.
"""

import cython

__all__ = ["SharedRateLimit"]


class SharedRateLimit:
    """Messages, bytes and filters that some connections may send in a second, together."""

    def __init__(self, publish_rate_max: float, byte_rate_max: float, subscribe_rate_max: float) -> None:
        self.paid_ns = 0  # until when each rate is used up
        self.bytes_paid_ns = 0
        self.asked_paid_ns = 0
        self.publish_gap_ns = 0
        self.byte_gap_ps = 0
        self.asked_gap_ns = 0
        self.limit(publish_rate_max, byte_rate_max, subscribe_rate_max)

    def limit(self, publish_rate_max: float, byte_rate_max: float, subscribe_rate_max: float) -> None:
        """Set the rates, 0 for none; what was used up stays so."""
        self.publish_gap_ns = int(1e9 / publish_rate_max) if publish_rate_max else 0
        self.byte_gap_ps = int(1e12 / byte_rate_max) if byte_rate_max else 0
        self.asked_gap_ns = int(1e9 / subscribe_rate_max) if subscribe_rate_max else 0


def charge_purse(
    purse: SharedRateLimit, now_ns: cython.longlong, messages: cython.longlong, octets: cython.longlong
) -> cython.longlong:
    """Charge what was read; return until when the purse is used up."""
    if purse.publish_gap_ns > 0 and messages > 0:
        purse.paid_ns = max(purse.paid_ns, now_ns) + messages * purse.publish_gap_ns
    if purse.byte_gap_ps > 0 and octets > 0:
        purse.bytes_paid_ns = max(purse.bytes_paid_ns, now_ns) + octets * purse.byte_gap_ps // 1000
    return max(purse.paid_ns, purse.bytes_paid_ns)


def charge_asked(purse: SharedRateLimit, now_ns: cython.longlong, filters: cython.longlong) -> cython.longlong:
    """Charge filters that were asked for, or let go; return until when the purse is used up."""
    if purse.asked_gap_ns > 0 and filters > 0:
        purse.asked_paid_ns = max(purse.asked_paid_ns, now_ns) + filters * purse.asked_gap_ns
    return purse.asked_paid_ns
