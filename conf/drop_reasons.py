"""Why messages are dropped: one list of reasons for all tiers, and the reason of each counter of a drop.

``messages_dropped_total{reason}`` is made from it at edges and storage nodes. A drop is a copy that somebody should
have had and does not get. A repeat that nobody misses is none: ``repeats_total``. Counters that only sound like drops
are named with what they are. A test fails for a counter of a drop that stands in no table here.
Decision: docs/adr/0058-counters.md.
"""

from collections.abc import Mapping

__all__ = ["NO_DROPS", "REASONS", "REASON_OF", "REPEATS", "count_drops", "count_repeats"]

REASONS = {
    "closed": "the subscriber's connection had ended",
    "expired": "its Message Expiry Interval, or storage.message_expiry_max_s, was over",
    "no_commit": "QoS 0 behind 4 MiB of it that wait for a commit of their partition: too few copies answer",
    "no_lease": "QoS 0 at an edge without a lease: it decides nothing",
    "no_primary": "QoS 0 for a partition that has no primary",
    "no_subscriber_took": "a shared group had no member that took it",
    "not_authorized": "the rules forbid it: to publish, to receive, or to leave it retained",
    "peer_gone": "QoS 0 for an edge that is not linked",
    "purged": "an operator emptied the session's queue",
    "queue_full": "a bound of the session's queue; the oldest entry went",
    "rate_limited": "an event beyond edge.events_rate_max",
    "retained_limit": "more retained matches than edge.retained_per_subscribe_max",
    "slow": "QoS 0 for a client whose output is full",
    "too_deep": "a topic with more levels than its publisher may name (topic_levels_max)",
    "too_large": "beyond the client's Maximum Packet Size, or too large to be handed to another member",
    "window": "an ephemeral session's bound of waiting messages",
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
    "dropped_repeated": "an edge took the message before",
    "repeats": "a partition took the message before",
    "retained_twins": "the retained copy of the same message went first",
}

NO_DROPS = {
    "pushes_refused": "a copy that an edge did not write by its rules; the edge counts the drop",
    "reports_dropped": "the end of a connection that is not reported; its partition finds out by itself",
    "requests_dropped_early": "a request that its edge sends again",
    "requests_dropped_not_serving": "a request that its edge sends again",
    "retained_partitions_missed": "partitions that were asked again what retained messages they have",
    "retained_reads_cut": "a stored session's filter whose connection ended before all that is retained was queued",
    "retained_reads_dropped": "a read of retained messages that found no room; what it would have found is not known",
    "shard_messages_dropped": "a message about routes that its node sends again",
}


def count_drops(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return drops by reason; each reason from the first look on, so that a rise from nothing is seen."""
    found: dict[tuple[str, ...], float] = dict.fromkeys(((reason,) for reason in REASONS), 0.0)
    for name, reason in REASON_OF.items():
        found[reason,] += counts.get(name, 0)
    return found


def count_repeats(counts: Mapping[str, int]) -> float:
    """Return repeats that nobody misses."""
    return float(sum(counts.get(name, 0) for name in REPEATS))
