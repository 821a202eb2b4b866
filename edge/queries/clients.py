"""Columns of clients at an edge: identity, in-flight messages, and reasons of paused reading."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.broker_loop import BrokerLoop
from edge.loop.connections import NO_LIMIT
from edge.loop.state import LoopConnection
from edge.node.node import NS, EdgeNode
from edge.queries.windows import in_flight, oldest_unacknowledged, round_trip_p99_ms, unsent_bytes, waiting_since_ns
from edge.rights.client_rights import ClientRights
from edge.subscriptions.live_message_holds import LiveMessageHolds
from wire.messages.client_rows import ClientRow
from wire.queries.ordered_keys import OrderedKeys
from wire.queries.source import Columns, Place, QueryRefused, RowScan, RowSource
from wire.queries.timestamp_columns import TimestampColumns

__all__ = ["ClientTable"]

PROTOCOLS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
PAUSES = {  # bits of Conn.parked
    1: "answer", 2: "slow_subscriber", 4: "outbox_full", 8: "quota", 16: "output", 32: "rate", 64: "retained"
}  # fmt: skip
NAMES_MAX = 16  # of other clients in one row


class ClientTable:
    """Query rows of one edge's clients.

    Args:
        node: This edge.
        hot: Its loop.
        clients: Its connections.
        held: Live messages held for retained reads.
        rights: Permissions of each client.
        utc_ms: Milliseconds since the epoch.
        peer_name: "ip:port" of a socket's peer.
        traced: Names of the traces that mark a client.
    """

    def __init__(
        self,
        node: EdgeNode,
        hot: BrokerLoop,
        clients: Clients,
        held: LiveMessageHolds,
        rights: ClientRights,
        utc_ms: Callable[[], int],
        peer_name: Callable[[int], str],
        traced: Callable[[Client], list[str]],
    ) -> None:
        self._node = node
        self._hot = hot
        self._clients = clients
        self._held = held
        self._rights = rights
        self._moments = TimestampColumns(utc_ms)
        self._peer_name = peer_name
        self._traced = traced
        self._keys: OrderedKeys[int] = OrderedKeys(clients.numbers)

    def sources(self) -> dict[str, RowSource]:
        """Return the row sources of clients."""
        columns = self._columns()
        of_one = {name: _of_client(read) for name, read in {**columns, **self._columns_of_one()}.items()}
        one = RowSource(self._named, {**of_one, "may_receive": self._may_receive})
        return {"clients": RowSource(self._all, columns, lambda: len(self._clients), whole=self._whole), "client": one}

    def walk(self, ask: RowScan) -> Iterator[tuple[int, Client]]:
        """Yield connections after a cursor, by number."""
        (after,) = ask.numbers(1)
        for number in self._keys.behind(after if after >= 0 else None, ask.now):
            client = self._clients.get(number)
            if client is not None:
                yield number, client

    def named(self, client_id: str) -> list[Client]:
        """Return the connections of a client ID; several while a newer one is opening."""
        partition = self._node.map.partition_for(client_id) if self._node.map.partitions else -1
        found = [one for one in self._clients.at_partition(partition) if one.client_id == client_id]
        return sorted(found, key=lambda one: one.number)

    def _all(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        yield from self.walk(ask)

    def _named(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        client_id = ask.where["client_id"]
        found = self.named(client_id)
        if not found:
            raise QueryRefused(f"edge {self._node.name} has no connection of client {client_id[:64]!r}")
        yield from ((client.number, (client, ask.where)) for client in found)

    # --- columns

    def _columns(self) -> Columns:
        name = self._node.name
        return {
            "client_id": lambda client: client.client_id,
            "user": lambda client: client.owner,
            "state": lambda client: client.phase,
            "node": lambda _: name,
            "proto": lambda client: PROTOCOLS.get(client.conn.version, ""),
            "address": self._address,
            "listener": lambda client: client.policy.name,
            "keep_alive_s": lambda client: 2 * client.conn.silence_ns // (3 * NS) if client.conn.version else None,
            "expiry_s": lambda client: client.expiry_s,
            "connected_at_ms": lambda client: self.utc_of(client.opened_at) if client.opened_at else None,
            "inflight": lambda client: in_flight(client.conn),
            "queued": _queued,
            "oldest_s": self._oldest_s,
            "number": lambda client: client.number,
            "clean_start": lambda client: client.clean_start,
            "subscriptions": lambda client: None if client.session else len(client.subscriptions),
            "receive_maximum": lambda client: client.receive_maximum,
            "dropped": lambda client: client.conn.dropped,
            "rtt_p99_ms": lambda client: round_trip_p99_ms(client.conn),
            "partition": lambda client: client.partition,
            "owner_epoch": lambda client: client.owner_epoch,
            "session": lambda client: client.session,
            "unsent_bytes": lambda client: unsent_bytes(client.conn),
            "groups": lambda client: list(client.principal.groups) if client.principal is not None else None,
            "roles": lambda client: list(client.principal.roles) if client.principal is not None else None,
        }

    def _whole(self) -> Callable[[Client], ClientRow]:
        """Return a function that builds a whole row: a list of clients requests all columns.

        A call for each column takes three times as long.
        """
        name, now = self._node.name, self._node.now
        ahead_ms = self._moments.ahead(now * 1000)
        address_of = self._address

        def row(client: Client) -> ClientRow:
            conn, principal, session = client.conn, client.principal, client.session
            outbound, version, silence_ns = conn.outbound, conn.version, conn.silence_ns
            inflight = waiting = 0
            oldest_s = rtt_ms = None
            if outbound is not None:
                inflight, rtt_ms = in_flight(conn), round_trip_p99_ms(conn)
                if outbound.pending:
                    waiting = len(outbound.pending)
                    oldest_s = max(0.0, now - waiting_since_ns(conn) / NS)
            return ClientRow(
                client.client_id,
                principal.user if principal is not None else "",
                client.phase,
                name,
                PROTOCOLS.get(version, ""),
                address_of(client),
                client.policy.name,
                2 * silence_ns // (3 * NS) if version else None,
                client.expiry_s,
                int(client.opened_at * 1000) + ahead_ms if client.opened_at else None,
                inflight,
                None if session else waiting,
                oldest_s,
                client.number,
                client.clean_start,
                None if session else len(client.subscriptions),
                client.receive_maximum,
                conn.dropped,
                rtt_ms,
                client.partition,
                client.owner_epoch,
                session,
                unsent_bytes(conn) if conn.out is not None else 0,
                [*principal.groups] if principal is not None else None,
                [*principal.roles] if principal is not None else None,
            )

        return row

    def _columns_of_one(self) -> Columns:
        hot, node = self._hot, self._node
        return {
            "window": lambda client: None if client.session else client.conn.window,  # durable: in storage
            "window_max": lambda _: hot.limits.outbound_window_max,
            "unsent_bytes_max": lambda _: hot.output_high,
            "unsent_since_ms": lambda client: self._utc_of_ns(client.conn.high_since_ns if client.conn.high else 0),
            "lagging": lambda client: client.conn.lagging,
            "oldest_packet": lambda client: oldest_unacknowledged(client.conn),
            "window_full_since_ms": lambda client: self._utc_of_ns(waiting_since_ns(client.conn)),
            "retained_reads": lambda client: len(client.holds),
            "held_messages": lambda client: self._held.count_for(client.number),
            "retained_left_s": lambda client: self._held.left_s(client.number),
            "unfinished": lambda client: client.conn.quota,
            "unfinished_max": lambda client: client.conn.quota_max,
            "unfinished_packets": _unfinished_packets,
            "paused": lambda client: [why for bit, why in PAUSES.items() if client.conn.parked & bit],
            "waits_for": self._waits_for,
            "fenced": lambda _: not node.has_lease(),
            "fenced_s": lambda _: _without_lease_s(node),
            "drain": lambda _: _drains(node),
            "heard_at_ms": lambda client: self._utc_of_ns(client.conn.heard_ns),
            "ends_at_ms": _ends_at(self._utc_of_ns),
            "will_topic": lambda client: "" if not client.has_will else None,
            "maximum_packet_size": _packet_max,
            "filters": lambda client: list(client.subscriptions)[:NAMES_MAX] if not client.session else None,
            "tls": lambda client: _tls(client.conn),
            "traced": self._traced,
        }

    def _may_receive(self, one: tuple[Client, Mapping[str, str]]) -> bool | None:
        """Return whether a client may receive the topic of the query, None without one."""
        client, where = one
        topic, qos = where.get("topic", ""), where.get("qos", "")
        return self._rights.may_receive(client, topic, int(qos) if qos in ("0", "1", "2") else 1) if topic else None

    def _address(self, client: Client) -> str:
        if client.address is not None:
            host, port = client.address
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        host = client.seat.address if client.seat is not None else ""
        if host and client.port:
            return f"[{host}]:{client.port}" if ":" in host else f"{host}:{client.port}"
        return (self._peer_name(client.conn.fd) if client.conn.fd >= 0 else "") or host

    def utc_of(self, at: float) -> int:
        """Return a time of the node in UTC, milliseconds."""
        return self._moments.utc_of(at * 1000, self._node.now * 1000)

    def _utc_of_ns(self, at_ns: int) -> int | None:
        return self.utc_of(at_ns / NS) if at_ns else None

    def _oldest_s(self, client: Client) -> float | None:
        since = waiting_since_ns(client.conn)
        return max(0.0, self._node.now - since / NS) if since else None

    def _waits_for(self, client: Client) -> list[str] | None:
        """Return the slow subscribers that pause a publisher."""
        if not client.conn.waits:
            return None
        slow = [conn.context for conn in self._hot.high if conn.waiters and client.conn in conn.waiters]
        return [one.client_id for one in slow[:NAMES_MAX] if isinstance(one, Client)]


def _of_client(read: Callable[[Client], object]) -> Callable[[tuple[Client, Mapping[str, str]]], object]:
    return lambda one: read(one[0])


def _queued(client: Client) -> int | None:
    """Return the queued messages of an ephemeral session; storage queues those of a durable one."""
    if client.session:
        return None
    outbound = client.conn.outbound
    return len(outbound.pending) if outbound is not None and outbound.pending else 0


def _unfinished_packets(client: Client) -> list[int]:
    queue = client.conn.ack_queue
    return [message.packet_identifier for message in list(queue)[:NAMES_MAX]] if queue else []


def _ends_at(utc_of_ns: Callable[[int], int | None]) -> Callable[[Client], int | None]:
    def ends_at(client: Client) -> int | None:
        conn = client.conn
        return utc_of_ns(conn.heard_ns + conn.silence_ns) if conn.silence_ns else None

    return ends_at


def _packet_max(client: Client) -> int | None:
    """Return the Maximum Packet Size of a client, None if it sent none."""
    return client.conn.client_packet_max if client.conn.client_packet_max < NO_LIMIT else None


def _without_lease_s(node: EdgeNode) -> float | None:
    if node.has_lease() or node.lease.lease_until == -math.inf:
        return None
    return max(0.0, node.now - node.lease.lease_until)


def _drains(node: EdgeNode) -> bool:
    mine = node.map.nodes.get(node.name)
    return mine is not None and bool(mine.admin_state)


def _tls(conn: LoopConnection) -> str | None:
    if conn.tls is None:
        return None
    cipher = conn.tls.cipher()
    return f"{cipher[1]} {cipher[0]}" if cipher else None
