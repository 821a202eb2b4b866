"""Bounds of a client by other limits: the rates of the loop, its filters, levels, quota, and clients of its user.

Nothing that stands is taken for a limit: filters and levels hold for what comes, a user that has more clients than it
may now have gets no further one. Decision: docs/adr/0070-limits-follow-a-connection.md.
"""

from collections.abc import Mapping

from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.node.limits import ListenerPolicy
from edge.node.ports import RightsIO
from edge.rights.bounds import with_told
from edge.rights.client_rights import ClientRights

__all__ = ["LimitUpdater", "filter_gap_ns"]

NS = 1_000_000_000


class LimitUpdater:
    """Puts the limits of now into force.

    Args:
        loop: Where rates are kept.
        rights: What limits a client has.
        conduct: Counts the clients and the bytes of users.
    """

    def __init__(self, loop: RightsIO, rights: ClientRights, conduct: AbuseLimits) -> None:
        self._loop = loop
        self._rights = rights
        self._conduct = conduct
        self._policies: dict[str, ListenerPolicy] = {}  # of listeners whose limits were read anew

    def put(self, policies: Mapping[str, ListenerPolicy]) -> None:
        """Go by other limits of listeners; clients follow when the sweep looks at them."""
        self._policies.update(policies)

    def look(self, client: Client) -> None:
        """Have a client's bounds follow its limits; one that waits for CONNACK is judged by them when it gets it."""
        client.policy = self._policies.get(client.policy.name, client.policy)
        if not client.was_open:
            return
        if client.seat is not None:
            self._loop.share(client.conn, client.seat.purse)
        before = client.known_bounds
        bounds = with_told(self._rights.bounds_of(client), before)
        if bounds == before:
            return
        client.bounds = bounds
        client.filter_gap_ns = filter_gap_ns(bounds.subscribe_rate_max)
        self._conduct.recount(client)
        metered = self._conduct.is_metered(client)
        self._loop.limit(client.conn, bounds.publish_rate_max, bounds.byte_rate_max, metered)
        if bounds.topic_levels_max != before.topic_levels_max:
            self._loop.forget_verdicts(client.conn)


def filter_gap_ns(subscribe_rate_max: float) -> int:
    """Return the time that one filter uses up, 0 without a rate."""
    return int(NS / subscribe_rate_max) if subscribe_rate_max else 0
