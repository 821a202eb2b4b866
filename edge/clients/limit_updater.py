"""Applies changed limits to clients: rates of the loop, filters, levels, quota, and clients per user.

Existing state is not removed: limits of filters and levels apply to later packets, and a user beyond its number of
clients gets no further one. Decision: docs/adr/0070-limits-follow-a-connection.md.
"""

from collections.abc import Mapping

from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.node.limits import ListenerPolicy
from edge.node.ports import RightsIO
from edge.rights.bounds import with_announced
from edge.rights.client_rights import ClientRights

__all__ = ["LimitUpdater", "filter_interval_ns"]

NS = 1_000_000_000


class LimitUpdater:
    """Applies the current limits.

    Args:
        loop: Enforces rates.
        rights: Limits of clients.
        conduct: Counts the clients and the bytes of users.
    """

    def __init__(self, loop: RightsIO, rights: ClientRights, conduct: AbuseLimits) -> None:
        self._loop = loop
        self._rights = rights
        self._conduct = conduct
        self._policies: dict[str, ListenerPolicy] = {}  # of listeners with reloaded limits

    def put(self, policies: Mapping[str, ListenerPolicy]) -> None:
        """Set limits of listeners; the sweep applies them to clients."""
        self._policies.update(policies)

    def look(self, client: Client) -> None:
        """Apply a client's current limits; a client without CONNACK gets them when it opens."""
        client.policy = self._policies.get(client.policy.name, client.policy)
        if not client.was_open:
            return
        if client.seat is not None:
            self._loop.share(client.conn, client.seat.purse)
        before = client.known_bounds
        bounds = with_announced(self._rights.bounds_of(client), before)
        if bounds == before:
            return
        client.bounds = bounds
        client.filter_interval_ns = filter_interval_ns(bounds.subscribe_rate_max)
        self._conduct.recount(client)
        metered = self._conduct.is_metered(client)
        self._loop.limit(client.conn, bounds.publish_rate_max, bounds.byte_rate_max, metered)
        if bounds.topic_levels_max != before.topic_levels_max:
            self._loop.forget_verdicts(client.conn)


def filter_interval_ns(subscribe_rate_max: float) -> int:
    """Return the time between two filters in ns, 0 without a rate."""
    return int(NS / subscribe_rate_max) if subscribe_rate_max else 0
