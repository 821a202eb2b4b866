"""Bounds of one client: the strictest of its edge's, its listener's, its user's, its groups' and its roles' limits.

A limit that is missing or 0 adds no bound, so no limit widens another. After a policy step or a reload the limits
announced in CONNACK stay until the disconnect; the others apply at once.
Decision: docs/adr/0070-limits-follow-a-connection.md.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from access.limits.strictest import strictest
from conf.limit_names import LIMIT_NAMES
from edge.node.limits import EdgeLimits, ListenerPolicy

__all__ = ["Bounds", "bounds_of_listener", "stricter", "with_announced"]

ANNOUNCED = ("inflight_max", "packet_bytes_max", "keep_alive_max_s")  # by CONNACK to MQTT 5; 3.1.1 has the same rule


class Bounds(NamedTuple):
    """By the names of ``LIMIT_NAMES``, in their order; 0 for no limit."""

    publish_rate_max: float = 0.0
    byte_rate_max: float = 0.0
    subscribe_rate_max: float = 0.0
    daily_bytes_max: int = 0
    inflight_max: int = 0  # besides the edge's own, one for each direction
    packet_bytes_max: int = 0
    topic_levels_max: int = 0
    keep_alive_max_s: int = 0
    filters_max: int = 0
    connections_user_max: int = 0
    connect_rate_user_max: int = 0
    sessions_user_max: int = 0  # partitions enforce this and the following limits
    retained_user_max: int = 0
    retained_bytes_user_max: int = 0
    queue_messages_max: int = 0
    queue_bytes_max: int = 0

    def inflight(self, most: int) -> int:
        """Return the stricter bound of in-flight messages, given another bound."""
        return min(most, self.inflight_max) if self.inflight_max else most


def bounds_of_listener(limits: EdgeLimits, policy: ListenerPolicy) -> Bounds:
    """Return the bounds of a listener's clients before their users and roles are known."""
    of_edge = {
        "publish_rate_max": limits.publish_rate_max,
        "packet_bytes_max": limits.maximum_packet_size,
        "topic_levels_max": limits.topic_levels_max,
        "keep_alive_max_s": limits.keep_alive_max_s,
        "filters_max": limits.filters_per_session_max,
    }
    return Bounds._make(_least(getattr(policy, name), of_edge.get(name, 0)) for name in LIMIT_NAMES)


def stricter(bounds: Bounds, all_limits: Iterable[Mapping[str, int]]) -> Bounds:
    """Return bounds with limits of a user and its roles; unknown names are excluded before."""
    held = strictest(*all_limits)
    return Bounds._make(_least(bound, held.get(name, 0)) for name, bound in zip(LIMIT_NAMES, bounds, strict=True))


def with_announced(bounds: Bounds, before: Bounds) -> Bounds:
    """Return the bounds of an open client by the current limits; values announced in CONNACK stay."""
    return bounds._replace(**{name: getattr(before, name) for name in ANNOUNCED})


def _least(one: float, other: float) -> float:
    return min(one, other) if one and other else one or other
