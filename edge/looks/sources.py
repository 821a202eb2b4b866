"""Everything that an edge shows to operators, by kind of look, and its operators."""

from collections.abc import Callable

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.cluster.peer_table import PeerTable
from edge.hot.engine import Engine
from edge.looks.clients import ClientTable
from edge.looks.journal import join_journal
from edge.looks.operators import Operators
from edge.looks.routes import RouteLooks
from edge.looks.slow import slow_sources
from edge.looks.subscriptions import subscription_sources
from edge.looks.traces import EdgeTraces
from edge.node.node import EdgeNode
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from edge.subscriptions.held_live import HeldMessages
from edge.subscriptions.topic_routes import TopicRoutes
from wire.looks.source import Source

__all__ = ["edge_operators"]


def edge_operators(
    node: EdgeNode,
    hot: Engine,
    peers: PeerTable,
    clients: Clients,
    held: HeldMessages,
    routes: TopicRoutes,
    rights: ClientRights,
    utc: Callable[[], float],
    peer_name: Callable[[int], str],
) -> Operators:
    """Return the operators of an edge, with all that it shows them."""
    traces = EdgeTraces(node, hot, clients, routes, utc)
    shown = edge_sources(node, hot, clients, held, routes.local, rights, utc, peer_name, traces.names_of)
    return Operators(node, hot, peers, shown, traces, lambda: int(utc() * 1000))


def edge_sources(
    node: EdgeNode,
    hot: Engine,
    clients: Clients,
    held: HeldMessages,
    local: EphemeralSubscriptions,
    rights: ClientRights,
    utc: Callable[[], float],
    peer_name: Callable[[int], str],
    traced: Callable[[Client], list[str]],
) -> dict[str, Source]:
    """Return the sources of an edge's desk."""

    def utc_ms() -> int:
        return int(utc() * 1000)

    table = ClientTable(node, hot, clients, held, rights, utc_ms, peer_name, traced)
    routes = RouteLooks(node, hot, local, rights, clients.get)
    return {
        **table.sources(),
        **subscription_sources(node, table, local),
        **routes.sources(),
        **slow_sources(node, hot, table),
        **join_journal(node, hot, rights, utc_ms),
    }
