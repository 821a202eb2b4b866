"""Names of the limits of a client: those that a listener, a user, a group and a role may have. The strictest holds.

A listener has a setting of each name; a user, a group and a role have any of them, and no other: a name that nobody
reads would be no limit.
"""

__all__ = ["LIMIT_BELOW", "LIMIT_NAMES"]

LIMIT_BELOW = 1 << 62  # any limit: sums of two fit in a word of the machine

LIMIT_NAMES = (
    "publish_rate_max",
    "byte_rate_max",
    "subscribe_rate_max",
    "daily_bytes_max",
    "inflight_max",
    "packet_bytes_max",
    "topic_levels_max",
    "keep_alive_max_s",
    "filters_max",
    "connections_user_max",
    "connect_rate_user_max",
    "sessions_user_max",
    "retained_user_max",
    "retained_bytes_user_max",
    "queue_messages_max",
    "queue_bytes_max",
)
