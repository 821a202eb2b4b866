"""All row sources of an edge for operators' queries, and its operators."""

from collections.abc import Callable

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.cluster.peer_table import PeerTable
from edge.loop.broker_loop import BrokerLoop
from edge.node.node import EdgeNode
from edge.queries.clients import ClientTable
from edge.queries.journal import join_journal
from edge.queries.operators import EdgeOperators
from edge.queries.routes import EdgeRouteQueries
from edge.queries.slow import slow_sources
from edge.queries.subscriptions import subscription_sources
from edge.queries.traces import EdgeTraces
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from edge.subscriptions.live_message_holds import LiveMessageHolds
from edge.subscriptions.topic_routes import TopicRoutes
from wire.queries.source import RowSource

__all__ = ["edge_operators"]


def edge_operators(
    node: EdgeNode,
    hot: BrokerLoop,
    peers: PeerTable,
    clients: Clients,
    held: LiveMessageHolds,
    routes: TopicRoutes,
    rights: ClientRights,
    utc: Callable[[], float],
    peer_name: Callable[[int], str],
) -> EdgeOperators:
    """Return the operators of an edge with their row sources."""
    traces = EdgeTraces(node, hot, clients, routes, utc)
    shown = edge_sources(node, hot, clients, held, routes.local, rights, utc, peer_name, traces.names_of)
    return EdgeOperators(node, hot, peers, shown, traces, lambda: int(utc() * 1000))


def edge_sources(
    node: EdgeNode,
    hot: BrokerLoop,
    clients: Clients,
    held: LiveMessageHolds,
    local: EphemeralSubscriptions,
    rights: ClientRights,
    utc: Callable[[], float],
    peer_name: Callable[[int], str],
    traced: Callable[[Client], list[str]],
) -> dict[str, RowSource]:
    """Return the row sources of an edge."""

    def utc_ms() -> int:
        return int(utc() * 1000)

    table = ClientTable(node, hot, clients, held, rights, utc_ms, peer_name, traced)
    routes = EdgeRouteQueries(node, hot, local, rights, clients.get)
    return {
        **table.sources(),
        **subscription_sources(node, table, local),
        **routes.sources(),
        **slow_sources(node, hot, table),
        **join_journal(node, hot, rights, utc_ms),
    }
