"""Queries of a router. Commands are answered in ``router/answering.py``."""

from collections.abc import Callable, Mapping

from access.operators.commands import operator_of
from router.queries.routes import RouterRouteQueries
from router.routes.shard import RouteShard
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control
from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.messages.queries import Query
from wire.queries.journal import Journal, journal_source
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer

__all__ = ["RouterOperators"]

ROUTER_BOUNDS = QueryBounds(rows=5_000, seconds=0.002, reply_bytes=256 * 1024)


class RouterOperators:
    """Query server and journal of one router.

    Args:
        node: Its name.
        shards: Its owned shards.
        cluster_map: Its current map.
        send_message: Sends a message to a node.
        utc: Seconds since the epoch.
    """

    def __init__(
        self,
        node: str,
        shards: Callable[[], Mapping[int, RouteShard]],
        cluster_map: Callable[[], ClusterMap],
        send_message: Callable[[str, Control], None],
        utc: Callable[[], float],
    ) -> None:
        self.journal = Journal(lambda: int(utc() * 1000))
        sources = RouterRouteQueries(node, shards, cluster_map).sources()
        sources["journal"] = journal_source(self.journal, node, cluster_map)
        self.queries = QueryServer(
            node,
            TIER_ROUTER,
            ROUTER_BOUNDS,
            sources,
            send_message,
            lambda: cluster_map().epoch,
            lambda: int(utc() * 1000),
        )

    def take(self, now: float, node: str, peer: PeerKey | None, look: Query) -> None:
        """Queue a query; it is answered at the end of an iteration."""
        operator = operator_of(peer)
        self.queries.ask(now, node, operator.role.name.lower() if operator is not None else "", look)
