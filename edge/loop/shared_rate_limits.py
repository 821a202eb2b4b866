"""Rates that several connections share: the clients of one address consume one limit.

Each connection charges its input and is not read while the limit is more than a second ahead. The core assigns the
limits (``edge/listeners/admission_control.py``). Decision: docs/adr/0071-purses-of-addresses.md.
"""

import cython

__all__ = ["SharedRateLimit"]


class SharedRateLimit:
    """Messages, bytes and filters per second that some connections may send together."""

    def __init__(self, publish_rate_max: float, byte_rate_max: float, subscribe_rate_max: float) -> None:
        self.next_message_ns = 0  # times until which the rates are consumed
        self.next_byte_ns = 0
        self.next_filter_ns = 0
        self.publish_gap_ns = 0
        self.byte_gap_ps = 0
        self.filter_gap_ns = 0
        self.limit(publish_rate_max, byte_rate_max, subscribe_rate_max)

    def limit(self, publish_rate_max: float, byte_rate_max: float, subscribe_rate_max: float) -> None:
        """Set the rates, 0 for none; the consumed part is kept."""
        self.publish_gap_ns = int(1e9 / publish_rate_max) if publish_rate_max else 0
        self.byte_gap_ps = int(1e12 / byte_rate_max) if byte_rate_max else 0
        self.filter_gap_ns = int(1e9 / subscribe_rate_max) if subscribe_rate_max else 0


def consume_rates(
    purse: SharedRateLimit, now_ns: cython.longlong, messages: cython.longlong, octets: cython.longlong
) -> cython.longlong:
    """Charge input; return the time until which the limit is consumed."""
    if purse.publish_gap_ns > 0 and messages > 0:
        purse.next_message_ns = max(purse.next_message_ns, now_ns) + messages * purse.publish_gap_ns
    if purse.byte_gap_ps > 0 and octets > 0:
        purse.next_byte_ns = max(purse.next_byte_ns, now_ns) + octets * purse.byte_gap_ps // 1000
    return max(purse.next_message_ns, purse.next_byte_ns)


def consume_filters(purse: SharedRateLimit, now_ns: cython.longlong, filters: cython.longlong) -> cython.longlong:
    """Charge subscribed or unsubscribed filters; return the time until which the limit is consumed."""
    if purse.filter_gap_ns > 0 and filters > 0:
        purse.next_filter_ns = max(purse.next_filter_ns, now_ns) + filters * purse.filter_gap_ns
    return purse.next_filter_ns
