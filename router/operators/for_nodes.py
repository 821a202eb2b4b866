"""Commands that nodes execute: the receiving nodes, and the content of the order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from access.operators.arguments import (
    DrainClients,
    Kick,
    ListenerArguments,
    MsgSend,
    ReloadArguments,
    RetainedClear,
    SessionArguments,
    TraceStart,
    TraceStop,
)
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.orders import KICK_REASONS, SENT_BYTES_MAX, DrainOrder, KickOrder, SendOrder, TraceOrder
from wire.queries.traces import judge_of

__all__ = ["FOR_NODES", "NodeOrderRequest", "for_nodes"]

SUBJECT_MAX = 65_535  # characters of an order's subject

NodeArguments: TypeAlias = (
    ListenerArguments
    | SessionArguments
    | DrainClients
    | Kick
    | MsgSend
    | ReloadArguments
    | RetainedClear
    | TraceStart
    | TraceStop
)
FOR_NODES = (
    ListenerArguments,
    SessionArguments,
    DrainClients,
    Kick,
    MsgSend,
    ReloadArguments,
    RetainedClear,
    TraceStart,
    TraceStop,
)


@dataclass(frozen=True, slots=True)
class NodeOrderRequest:
    """Order that nodes execute; the reply lists the result of each."""

    nodes: tuple[str, ...]
    subject: str
    dry_run: bool


def for_nodes(arguments: NodeArguments, cluster_map: ClusterMap) -> NodeOrderRequest:
    """Return the order for an operator's command.

    Raises:
        ValueError: No node can execute it now; the text is one line for the operator.
    """
    if isinstance(arguments, SessionArguments):
        return NodeOrderRequest((_primary(arguments.client_id, cluster_map),), arguments.client_id, arguments.dry_run)
    edges = tuple(entry.node for entry in cluster_map.live(TIER_EDGE))
    if isinstance(arguments, Kick):  # routers do not know the client's edge, so all edges get the order
        return NodeOrderRequest(
            edges, _text(KickOrder(arguments.client_id, KICK_REASONS[arguments.reason])), arguments.dry_run
        )
    if isinstance(arguments, DrainClients):
        order = _text(DrainOrder(arguments.rate, arguments.redirect))
        return NodeOrderRequest(_select_nodes(arguments.node, edges, "edge"), order, arguments.dry_run)
    if isinstance(arguments, ListenerArguments):
        return NodeOrderRequest(_select_nodes(arguments.node, edges, "edge"), arguments.listener, arguments.dry_run)
    if isinstance(arguments, RetainedClear):
        return NodeOrderRequest(edges[:1], _sent(SendOrder(arguments.topics, retain=True)), arguments.dry_run)
    if isinstance(arguments, MsgSend):
        if arguments.retain and not arguments.payload:
            raise ValueError("an empty retained message takes one away: `retained clear`, which wants the role admin")
        sent = SendOrder([arguments.topic], arguments.payload, arguments.qos, arguments.retain, arguments.expiry_s)
        return NodeOrderRequest(_select_nodes(arguments.node, edges, "edge")[:1], _sent(sent), arguments.dry_run)
    if isinstance(arguments, TraceStart | TraceStop):
        return _trace_order(arguments, cluster_map)
    alive = [entry.node for entry in cluster_map.nodes.values() if entry.alive]
    return NodeOrderRequest(_select_nodes(arguments.node, alive, "node"), "", arguments.dry_run)


def _select_nodes(node: str, alive: Sequence[str], kind: str) -> tuple[str, ...]:
    """Return the node of a name, or all nodes for an empty name.

    Raises:
        ValueError: No such node is alive.
    """
    if node and node not in alive:
        raise ValueError(f"no {kind} {node[:64]!r} is alive; there are {', '.join(sorted(alive)) or 'none'}")
    return (node,) if node else tuple(alive)


def _trace_order(arguments: TraceStart | TraceStop, cluster_map: ClusterMap) -> NodeOrderRequest:
    """Return the order that starts or stops a trace, at one node or at every edge and storage node."""
    if isinstance(arguments, TraceStart):
        judge_of(arguments.kind, arguments.pattern)  # an invalid pattern starts no trace anywhere
        order = TraceOrder(
            arguments.trace,
            arguments.kind,
            arguments.pattern,
            arguments.for_s,
            arguments.events_max,
            arguments.payload_bytes,
            everywhere=not arguments.node,
        )
    else:
        order = TraceOrder(arguments.trace)
    there = [entry.node for tier in (TIER_EDGE, TIER_STORAGE) for entry in cluster_map.live(tier)]
    return NodeOrderRequest(
        _select_nodes(arguments.node, there, "edge or storage node"), _text(order), arguments.dry_run
    )


def _text(order: DrainOrder | KickOrder | SendOrder | TraceOrder) -> str:
    return msgspec.json.encode(order).decode()


def _sent(order: SendOrder) -> str:
    size = len(order.payload) + sum(len(topic.encode()) for topic in order.topics)
    text = _text(order)
    if size > SENT_BYTES_MAX or len(text) > SUBJECT_MAX:
        raise ValueError(f"topics and payload are {size} bytes: {SENT_BYTES_MAX} fit into an order")
    return text


def _primary(client_id: str, cluster_map: ClusterMap) -> str:
    if not cluster_map.partitions:
        raise ValueError("the cluster has no map yet")
    number = cluster_map.partition_for(client_id)
    primary = cluster_map.partitions[number].primary
    if not primary:
        raise ValueError(f"partition {number} of {client_id[:64]!r} has no primary: ask again, see `ring show`")
    return primary
