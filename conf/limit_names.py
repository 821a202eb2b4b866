"""Names of client limits, used by listeners, users, groups and roles. The strictest applies.

A listener has a setting of each name; a user, a group and a role may have only these: an unread name would not limit
anything.
"""

__all__ = ["LIMIT_BELOW", "LIMIT_NAMES"]

LIMIT_BELOW = 1 << 62  # bound of any limit: the sum of two fits in a machine word

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
