"""Counters of the loop: plain C integers, read once a second or on demand.

``COUNTERS`` names them in the order of operators' output; the fields below are the same, for C and for types. A test
compares the table, the fields and ``counters.pxd``. ``BrokerLoop.counters`` adds gauges.
"""

__all__ = ["COUNTERS", "Counters"]

COUNTERS = (
    "bytes_in",
    "bytes_out",
    "packets_in",
    "publish_in_qos0",
    "publish_in_qos1",
    "publish_in_qos2",
    "publish_out_qos0",
    "publish_out_qos1",
    "publish_out_qos2",
    "publish_bytes_in",
    "publish_bytes_out",
    "forwarded_in",
    "forwarded_out",
    "acknowledged",
    "pushes_in",
    "pushes_ignored",
    "acks_unknown",
    "acks_withheld",
    "tls_failed",
    "accept_failed",
    "parked_slow",
    "parked_peer",
    "parked_quota",
    "excess_begun",
    "refused_behind",
    "slow_packets",
    "pings_early",
    "turns",
    "dropped_slow",
    "dropped_closed",
    "dropped_pending",
    "dropped_expired",
    "dropped_too_large",
    "dropped_denied",
    "dropped_too_deep",
    "dropped_not_authorized",
    "dropped_no_primary",
    "dropped_no_lease",
    "dropped_no_pick",
    "dropped_peer",
    "dropped_repeated",
    "origins_forgotten",
    "picks_not_kept",
    "notes_left_out",
)


class Counters:
    """Counters of one loop: they start at 0 and never decrease."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.packets_in = 0
        self.publish_in_qos0 = 0
        self.publish_in_qos1 = 0
        self.publish_in_qos2 = 0
        self.publish_out_qos0 = 0
        self.publish_out_qos1 = 0
        self.publish_out_qos2 = 0
        self.publish_bytes_in = 0
        self.publish_bytes_out = 0
        self.forwarded_in = 0
        self.forwarded_out = 0
        self.acknowledged = 0
        self.pushes_in = 0
        self.pushes_ignored = 0
        self.acks_unknown = 0
        self.acks_withheld = 0
        self.tls_failed = 0
        self.accept_failed = 0
        self.parked_slow = 0
        self.parked_peer = 0
        self.parked_quota = 0
        self.excess_begun = 0
        self.refused_behind = 0
        self.slow_packets = 0
        self.pings_early = 0
        self.turns = 0
        self.dropped_slow = 0
        self.dropped_closed = 0
        self.dropped_pending = 0
        self.dropped_expired = 0
        self.dropped_too_large = 0
        self.dropped_denied = 0
        self.dropped_too_deep = 0
        self.dropped_not_authorized = 0
        self.dropped_no_primary = 0
        self.dropped_no_lease = 0
        self.dropped_no_pick = 0
        self.dropped_peer = 0
        self.dropped_repeated = 0
        self.origins_forgotten = 0
        self.picks_not_kept = 0
        self.notes_left_out = 0

    def counted(self) -> dict[str, int]:
        """Return each counter by its name."""
        return {name: getattr(self, name) for name in COUNTERS}
