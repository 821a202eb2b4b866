"""Drop reasons: one list for all tiers, and the reason of each drop counter.

``messages_dropped_total{reason}`` is computed from it at edges and storage nodes. A drop is a copy that a subscriber
should have received and does not get. A repeat is not a drop: ``repeats_total``. Other counters with similar names are
described here. A test fails for a drop counter without an entry. Decision: docs/adr/0058-counters.md.
"""

from collections.abc import Mapping

__all__ = ["NO_DROPS", "REASONS", "REASON_OF", "REPEATS", "count_drops", "count_repeats"]

REASONS = {
    "closed": "the subscriber's connection had ended",
    "expired": "its Message Expiry Interval, or storage.message_expiry_max_s, was exceeded",
    "no_commit": "QoS 0 after 4 MiB of it that wait for a commit of their partition: too few copies respond",
    "no_lease": "QoS 0 at an edge without a lease",
    "no_primary": "QoS 0 for a partition that has no primary",
    "no_subscriber_took": "a shared group had no member that accepted it",
    "not_authorized": "the rules deny it: to publish, to receive, or to retain it",
    "peer_gone": "QoS 0 for an edge that is not linked",
    "purged": "an operator emptied the session's queue",
    "queue_full": "a bound of the session's queue; the oldest entry was dropped",
    "rate_limited": "an event beyond edge.events_rate_max",
    "retained_limit": "more retained matches than edge.retained_per_subscribe_max",
    "slow": "QoS 0 for a client whose output buffer is full",
    "too_deep": "a topic with more levels than its publisher may name (topic_levels_max)",
    "too_large": "beyond the client's Maximum Packet Size, or too large to be sent to another member",
    "window": "an ephemeral session's bound of queued messages",
}

REASON_OF = {
    # the loop of an edge
    "dropped_slow": "slow",
    "dropped_closed": "closed",
    "dropped_pending": "window",
    "dropped_expired": "expired",
    "dropped_too_large": "too_large",
    "dropped_denied": "not_authorized",
    "dropped_too_deep": "too_deep",
    "dropped_not_authorized": "not_authorized",
    "dropped_no_primary": "no_primary",
    "dropped_no_lease": "no_lease",
    "dropped_no_pick": "no_subscriber_took",
    "dropped_peer": "peer_gone",
    # the core of an edge
    "dropped_events": "rate_limited",
    "dropped_held_rights": "not_authorized",
    "dropped_retained_expired": "expired",
    "dropped_retained_limit": "retained_limit",
    "dropped_retained_rights": "not_authorized",
    "dropped_retained_source": "not_authorized",
    # storage
    "dropped_queue_full": "queue_full",
    "dropped_purged": "purged",
    "dropped_uncommitted": "no_commit",
    "dropped_no_member": "no_subscriber_took",
    "shares_dropped_full": "queue_full",
    "shares_dropped_large": "too_large",
}

REPEATS = {
    "dropped_repeated": "an edge received the message before",
    "repeats": "a partition received the message before",
    "retained_twins": "the retained copy of the same message was delivered first",
}

NO_DROPS = {
    "pushes_refused": "a copy that an edge's rules denied; the edge counts the drop",
    "reports_dropped": "the end of a connection that is not reported; its partition detects it itself",
    "requests_dropped_early": "a request that its edge sends again",
    "requests_dropped_not_serving": "a request that its edge sends again",
    "retained_partitions_missed": "partitions that were queried again for their retained messages",
    "retained_reads_cut": ("a stored session's filter whose connection ended before all retained messages were queued"),
    "retained_reads_dropped": "a read of retained messages beyond the bound; its result is not known",
    "shard_messages_dropped": "a message about routes that its node sends again",
}


def count_drops(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return drops by reason; every reason is always present, so that an increase from 0 is visible."""
    found: dict[tuple[str, ...], float] = dict.fromkeys(((reason,) for reason in REASONS), 0.0)
    for name, reason in REASON_OF.items():
        found[reason,] += counts.get(name, 0)
    return found


def count_repeats(counts: Mapping[str, int]) -> float:
    """Return the number of repeats."""
    return float(sum(counts.get(name, 0) for name in REPEATS))
