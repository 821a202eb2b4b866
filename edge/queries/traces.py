"""Traces at an edge: marks on connections and Routes, and the conversion of the loop's events.

A trace of clients or addresses marks connections, some in each iteration, and those that open meanwhile. A trace of
topics makes the loop check every Route before its next use, which marks it (``edge/subscriptions/topic_routes.py``).
The loop reads marks, never traces (``edge/loop/traces.py``). Decision: docs/adr/0170-traces.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.broker_loop import BrokerLoop
from edge.loop.state import LoopPeer, Route
from edge.node.node import EdgeNode
from edge.subscriptions.topic_routes import TopicRoutes
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.running_traces import RunningTrace
from wire.messages.sessions import SessionOpened, SessionSubscription
from wire.queries.origins import origin_text
from wire.queries.tracer import Tracer
from wire.queries.traces import BY_NODE, COPY_OF, NO_ORIGIN, Origin

__all__ = ["EdgeTraces"]

MARKED_PER_ITERATION = 200  # connections
NAMES_MAX = 8  # filters in one event
ACKS = {4: "PUBACK", 5: "PUBREC", 7: "PUBCOMP"}


class EdgeTraces:
    """The traces of one edge; the loop's ``trace`` while one runs.

    Args:
        node: This edge.
        hot: The loop.
        clients: Connections with marks.
        routes: Builds Routes with marks.
        utc: Seconds since the epoch.

    Attributes:
        desk: The traces.
        payload_bytes: Bytes of a payload in events.
    """

    def __init__(
        self, node: EdgeNode, hot: BrokerLoop, clients: Clients, routes: TopicRoutes, utc: Callable[[], float]
    ) -> None:
        self._node = node
        self._hot = hot
        self._clients = clients
        self._routes = routes
        self._unmarked: list[int] = []  # connections with possibly outdated marks
        self._marks_clients = self._marks_topics = False
        self._map_epoch = 0  # of the last map that was read while traces ran
        self._incarnations: dict[str, int] = {}  # its edges and storage nodes, with their incarnations
        self._primaries: list[str] = []
        self._forwarded: tuple[object, str] = (None, "")  # destinations of the last message, and their text
        self.desk = Tracer(node.name, lambda: node.map, self._changed)
        self.desk.utc_us = lambda: int(utc() * 1e6)
        self.payload_bytes = 0
        clients.lifecycle.watch(self)

    # --- marks

    def _changed(self) -> None:
        """Update marks after traces started or ended."""
        desk = self.desk
        by_clients, by_topics = bool(desk.of_kind("client", "address")), bool(desk.of_kind("topic"))
        if by_clients or self._marks_clients:
            self._unmarked = self._clients.numbers()
        if by_topics or self._marks_topics:
            self._routes.traced = desk.wants_topic if by_topics else None
            self._hot.refresh_routes()
            self._routes.cache.look_again()
        self._marks_clients, self._marks_topics = by_clients, by_topics
        self.payload_bytes = desk.payload_bytes
        self._hot.trace = self if desk.running else None
        if not desk.running:
            self._forwarded = None, ""
            self._incarnations, self._primaries = {}, []
        elif not self._incarnations:
            self._read_map()
        self._node.wake()

    # --- other nodes

    def _read_map(self) -> set[str]:
        """Store the nodes and primaries of the map; return the other nodes that started, or became primary, since."""
        lives, primaries, cluster_map = self._incarnations, self._primaries, self._node.map
        self._map_epoch = cluster_map.epoch
        self._incarnations = {
            entry.node: entry.incarnation for tier in (TIER_EDGE, TIER_STORAGE) for entry in cluster_map.live(tier)
        }
        self._primaries = [placement.primary for placement in cluster_map.partitions]
        started = {node for node, incarnation in self._incarnations.items() if lives.get(node) != incarnation}
        former = [*primaries, *[""] * (len(self._primaries) - len(primaries))]
        lead = {primary for primary, before in zip(self._primaries, former, strict=False) if primary != before}
        return (started | lead) - {self._node.name, ""}

    def follow(self, now: float) -> None:
        """Send the running traces to nodes that started or became primary since the last map; while traces run."""
        if self._node.map.epoch == self._map_epoch:
            return
        nodes = sorted(self._read_map())
        told = self.desk.to_tell(now) if nodes else []
        for node in nodes:
            for message in told:
                self._node.tell(node, message)

    def heard(self, told: RunningTrace) -> None:
        """Handle another edge's running trace."""
        self.desk.heard(self._node.now, told)

    def step(self, now: float) -> None:
        """End expired traces, and mark some connections; at the end of an iteration."""
        if now >= self.desk.next_deadline():
            self.desk.step(now)
        for number in self._unmarked[-MARKED_PER_ITERATION:]:
            client = self._clients.get(number)
            if client is not None:
                self._mark(client)
        del self._unmarked[-MARKED_PER_ITERATION:]

    def next_deadline(self) -> float:
        """Return when ``step`` has work; infinity without traces."""
        return 0.0 if self._unmarked else self.desk.next_deadline()

    def _mark(self, client: Client) -> None:
        client.conn.traced = self._marks_clients and self.desk.wants_client(client.client_id, _address(client))

    def names_of(self, client: Client) -> list[str]:
        """Return the names of the traces that mark a client."""
        found = self.desk.of_kind("client", "address")
        return [trace.order.trace for trace in found if trace.is_about(client.client_id, _address(client), "")]

    # --- events of clients

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Mark a connection that opened."""
        if self._marks_clients:
            self._mark(client)
            self._record(client, "connected", detail=f"session {'resumed' if opened.session_present else 'new'}")

    def disconnected(self, client: Client) -> None:
        """Record the end of a connection."""
        if self._marks_clients:
            self._record(client, "disconnected", reason=f"{client.end_code:#04x}" if client.end_code >= 0 else "")

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Record granted filters."""
        if self._marks_clients:
            self._record(client, "subscribed", detail=_join_names([one.topic_filter for one in taken]))

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Record removed filters."""
        if self._marks_clients:
            self._record(client, "unsubscribed", detail=_join_names(names))

    def _record(self, client: Client, stage: str, *, reason: str = "", detail: str = "") -> None:
        self.desk.note(stage, NO_ORIGIN, client.client_id, _address(client), reason=reason, detail=detail)
        if self.desk.stale:
            self._node.wake()

    # --- the loop's events

    def event(
        self,
        stage: str,
        context: object,
        topic: bytes,
        origin: Origin,
        identifier: int,
        qos: int,
        marked: bool,
        detail: object,
        payload: bytes,
    ) -> None:
        """Record an event of a message; ``detail`` is a text, a reason code, an entry's number, a Peer, or a Route."""
        client_id = address = reason = text = ""
        session = seq = -1
        if isinstance(context, Client):
            client_id = context.client_id
            if self._marks_clients:
                address = _address(context)
        elif stage == "received":
            text = BY_NODE
        if stage == "written":
            if detail:
                session, seq = _session(context), detail  # type: ignore[assignment]  # an entry's number
        elif stage == "forwarded":
            if detail != self._forwarded[0]:
                self._forwarded = detail, self._destinations(detail)
            text = self._forwarded[1]
        elif stage == "acknowledged" or stage == "refused":
            reason = (f"{detail:#04x}" if detail else "") if isinstance(detail, int) else str(detail)
        elif stage == "accepted":
            text = f"from {_node_of(detail)}"
        elif stage == "dropped":
            reason = str(detail)
        elif detail:
            text = str(detail)
        self.desk.note(
            stage,
            origin,
            client_id,
            address,
            self.desk.text(topic),
            identifier or -1,
            qos,
            session,
            seq,
            -1,
            reason,
            text,
            payload,
            marked,
        )
        if self.desk.stale:
            self._node.wake()

    def acked(
        self,
        context: object,
        topic: bytes,
        origin: Origin,
        identifier: int,
        packet_type: int,
        marked: bool,
        reason_code: int,
        session_seq: int,
    ) -> None:
        """Record a client's acknowledgement of a copy."""
        client_id = address = ""
        if isinstance(context, Client):
            client_id = context.client_id
            if self._marks_clients:
                address = _address(context)
        self.desk.note(
            "acked",
            origin,
            client_id,
            address,
            self.desk.text(topic),
            identifier,
            -1,
            _session(context) if session_seq else -1,
            session_seq or -1,
            -1,
            f"{reason_code:#04x}" if reason_code else "",
            ACKS.get(packet_type, ""),
            b"",
            marked,
        )
        if self.desk.stale:
            self._node.wake()

    def _destinations(self, detail: Any) -> str:
        """Return the destinations of a message: a Route and its retaining partition, or a message and a shared
        subscription.
        """
        if not isinstance(detail[0], Route):
            (kind, a, b), share = detail
            return f"{COPY_OF}{origin_text(kind, a, b, self._node.map)} for {share.decode('utf-8', 'replace')}"
        route, retained_partition = detail
        edges = [_node_of(peer) for peer in route.edges]
        partitions = sorted({*route.partitions, *([retained_partition] if retained_partition >= 0 else [])})
        parts = (
            ("edges", edges),
            ("partitions", [str(number) for number in partitions]),
            ("groups", [group.share.decode("utf-8", "replace") for group in route.groups]),
        )
        return "; ".join(f"{what} {_join_names(names)}" for what, names in parts if names)


def _node_of(peer: object) -> str:
    assert isinstance(peer, LoopPeer)
    return str(getattr(peer.key, "node", peer.node))


def _session(context: object) -> int:
    return context.session if isinstance(context, Client) else -1


def _address(client: Client) -> str:
    if client.address is not None:
        return client.address[0]
    return client.seat.address if client.seat is not None else ""


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
