"""Rates of one connection: the strictest of its edge's, its listener's and its user's.

A user's are the limits of its principal, by the names of the listener's settings; one of them that is left out, or 0,
asks for nothing, so no limit of a user widens what its listener gives. Reading pauses where a rate is used up.
"""

from typing import NamedTuple

from edge.clients.client import Client

__all__ = ["Rates", "rates_of"]


class Rates(NamedTuple):
    """Per second; 0 for no limit."""

    publish: float
    octets: float
    filters: float


def rates_of(client: Client, edge_publish_rate: float) -> Rates:
    """Return the rates of a client whose CONNECT was accepted.

    Args:
        client: The principal that was let in is known.
        edge_publish_rate: Of all clients of the edge; 0 for no limit.
    """
    policy = client.policy
    limits = client.principal.limits if client.principal is not None else {}
    if not (limits or policy.paces):
        return Rates(edge_publish_rate, 0.0, 0.0)
    return Rates(
        _strictest(edge_publish_rate, policy.publish_rate_max, limits.get("publish_rate_max", 0)),
        _strictest(policy.byte_rate_max, limits.get("byte_rate_max", 0)),
        _strictest(policy.subscribe_rate_max, limits.get("subscribe_rate_max", 0)),
    )


def _strictest(*rates: float) -> float:
    return min((rate for rate in rates if rate > 0), default=0.0)
