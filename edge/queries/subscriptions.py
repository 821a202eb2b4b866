"""Query rows of ephemeral sessions' subscriptions, and of one client's in-flight messages."""

from collections.abc import Iterator
from typing import Any

from edge.clients.client import Client
from edge.loop.state import PendingAck
from edge.node.node import NS, EdgeNode
from edge.queries.clients import ClientTable
from edge.queries.windows import open_packets
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from mqtt.topics import parse_shared
from wire.messages.sessions import SessionSubscription
from wire.queries.source import Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["subscription_sources"]


def subscription_sources(node: EdgeNode, table: ClientTable, local: EphemeralSubscriptions) -> dict[str, RowSource]:
    """Return the row sources of subscriptions and in-flight messages."""

    def since_ms(pair: tuple[Client, SessionSubscription]) -> int | None:
        since = local.since(pair[0], pair[1].topic_filter)
        return table.utc_of(since) if since else None

    columns = {**_subscription_columns(node.name), "since_ms": since_ms}
    return {
        "subscriptions": RowSource(lambda ask: _subscriptions(table, ask), columns),
        "inflight": RowSource(lambda ask: _inflight(node, table, ask), _INFLIGHT),
    }


def _subscriptions(table: ClientTable, ask: RowScan) -> Iterator[tuple[Place, Any]]:
    """Yield the subscriptions of each client after a cursor: (connection, number of its rows passed)."""
    number, passed = ask.numbers(2)
    behind = RowScan(ask.where, str(number - 1) if number >= 0 else "", ask.wanted, ask.role, ask.limit, ask.now)
    for found, client in table.walk(behind):
        if client.session:
            continue  # a storage node returns them; this edge has only filters of its shared subscriptions
        for count, subscription in enumerate(list(client.subscriptions.values()), 1):
            if found != number or count > passed:
                yield (found, count), (client, subscription)


def _subscription_columns(name: str) -> Columns:
    return {
        "client_id": lambda pair: pair[0].client_id,
        "filter": lambda pair: _filter_of(pair[1]),
        "qos": lambda pair: pair[1].qos,
        "share": lambda pair: _share_of(pair[1]),
        "no_local": lambda pair: pair[1].no_local,
        "retain_as_published": lambda pair: pair[1].retain_as_published,
        "retain_handling": lambda pair: pair[1].retain_handling,
        "identifier": lambda pair: pair[1].identifier,
        "node": lambda _: name,
        "durable": lambda _: False,
        "partition": lambda pair: pair[0].partition,
        "session": lambda _: 0,
        "partial": lambda pair: pair[1].topic_filter in pair[0].partial,
    }


def _filter_of(subscription: SessionSubscription) -> str:
    shared = parse_shared(subscription.topic_filter)
    return shared[1] if shared is not None else subscription.topic_filter


def _share_of(subscription: SessionSubscription) -> str:
    shared = parse_shared(subscription.topic_filter)
    return shared[0] if shared is not None else ""


# --- in-flight messages


class _InflightMessage:
    """One in-flight message, in either direction."""

    __slots__ = ("client", "message", "now_ns", "packet", "seq", "state")

    def __init__(self, client: Client, packet: int, state: str, seq: int | None, message: PendingAck | None) -> None:
        self.client = client
        self.packet = packet
        self.state = state
        self.seq = seq
        self.message = message
        self.now_ns = 0


def _inflight(node: EdgeNode, table: ClientTable, ask: RowScan) -> Iterator[tuple[Place, Any]]:
    """Yield in-flight messages to a client, oldest first, then those from it; cursors count the rows."""
    clients = table.named(ask.where["client_id"])
    if not clients:
        raise QueryRefused(f"edge {node.name} has no connection of client {ask.where['client_id'][:64]!r}")
    (after,) = ask.numbers(1)
    at = 0
    for client in clients:
        for entry in _inflight_messages(client):
            at += 1
            entry.now_ns = int(ask.now * NS)
            if at > after:
                yield at, entry


def _inflight_messages(client: Client) -> Iterator[_InflightMessage]:
    conn = client.conn
    for packet, state, seq in open_packets(conn):
        yield _InflightMessage(client, packet, state, seq, None)
    for message in list(conn.ack_queue or ()):
        yield _InflightMessage(client, message.packet_identifier, "unfinished", None, message)
    for packet, code in list((conn.received or {}).items()):
        if code != -1:  # without PUBREC it is in ack_queue: ANSWER_PENDING of edge/loop/state.pxd
            yield _InflightMessage(client, packet, "unreleased", None, None)


def _age_s(entry: _InflightMessage) -> float | None:
    if entry.message is None or not entry.message.at_ns:
        return None
    return max(0.0, (entry.now_ns - entry.message.at_ns) / NS)


def _is_own(entry: _InflightMessage) -> bool:
    return entry.state.startswith("un")


_INFLIGHT: Columns = {
    "client_id": lambda entry: entry.client.client_id,
    "direction": lambda entry: "from" if _is_own(entry) else "to",
    "packet": lambda entry: entry.packet,
    "qos": lambda entry: entry.message.qos if entry.message is not None else None,
    "state": lambda entry: entry.state,
    "seq": lambda entry: entry.seq,
    "age_s": _age_s,
    "waits_for": lambda entry: [f"{entry.message.waiting} destinations"] if entry.message is not None else None,
}
