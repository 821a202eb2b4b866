"""Events of clients, sessions and nodes, published under $SYS/cluster/events/ as QoS 0 messages.

``edge.events`` enables them. An edge publishes the events of its own clients, and expired sessions that partitions
report. After a change of the map, one edge publishes the node events: the first by name that was active before and
after. At most ``events_rate_max`` per second; the edge drops and counts the rest. Decision:
docs/adr/0056-sys-topics-and-events.md.
"""

from collections.abc import Callable, Sequence

import msgspec

from access.limits.buckets import Buckets
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.state import InboundPublish, Route
from edge.node.node import EdgeNode
from edge.node.ports import CorePublisher
from edge.subscriptions.sys_scope import EVENTS
from edge.subscriptions.topic_routes import TopicRoutes
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.sessions import SessionExpired, SessionOpened, SessionSubscription

__all__ = ["ClientEventPublisher"]

WAITING_MAX = 1_000  # events whose Route is requested


class _ClientEvent(msgspec.Struct):
    """An event of a client; fields that do not apply are null."""

    client: str
    user: str
    listener: str | None = None
    address: str | None = None
    version: int | None = None
    reason_code: int | None = None
    filter: str | None = None
    qos: int | None = None
    at_ms: int = 0


class _NodeEvent(msgspec.Struct):
    """An event of a node."""

    node: str
    tier: str
    event: str  # joined, left, died or promoted
    incarnation: int
    partitions: int | None  # promoted: partitions that the node leads since this map
    map_epoch: int
    at_ms: int


class ClientEventPublisher:
    """Publishes the events of one edge.

    Args:
        node: This edge.
        loop: Publishes messages.
        clients: The connections; calls this publisher when one opens or closes.
        routes: Finds the Route of a topic.
        peer_of: Returns the peer's address of a socket.
        utc: Seconds since the epoch.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: CorePublisher,
        clients: Clients,
        routes: TopicRoutes,
        peer_of: Callable[[int], str],
        utc: Callable[[], float],
    ) -> None:
        self._node = node
        self._loop = loop
        self._routes = routes
        self._peer_of = peer_of
        self._utc = utc
        self._enabled = node.limits.events
        rate = node.limits.events_rate_max
        self._rate = Buckets(rate, max(1.0, rate))
        self._pending = 0
        self._addresses: dict[int, str] = {}  # of open connections: a closed socket has none
        self._map: ClusterMap | None = None
        if self._enabled:
            clients.lifecycle.watch(self)

    # --- clients

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Publish that a client connected."""
        del opened
        address = client.seat.address if client.seat is not None else ""
        self._addresses[client.number] = address or self._peer_of(client.conn.fd)
        self._publish_client_event(client, "connected", reason_code=0)

    def disconnected(self, client: Client) -> None:
        """Publish that a connection closed, with its reason code; null if the socket closed without one."""
        self._publish_client_event(
            client, "disconnected", reason_code=client.end_code if client.end_code >= 0 else None
        )
        self._addresses.pop(client.number, None)

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Publish the filters that a client subscribed to."""
        for subscription in taken:
            self._publish_client_event(client, "subscribed", filter=subscription.topic_filter, qos=subscription.qos)

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Publish the filters that a client unsubscribed from."""
        for name in names:
            self._publish_client_event(client, "unsubscribed", filter=name)

    def session_expired(self, node: str, expired: SessionExpired) -> None:
        """Publish that a stored session expired, as reported by its partition's primary."""
        del node
        if self._enabled and self._try_consume():
            self._publish("session_expired", _ClientEvent(expired.client_id, expired.owner, at_ms=self._at_ms()))

    def _publish_client_event(
        self,
        client: Client,
        event_type: str,
        *,
        reason_code: int | None = None,
        filter: str | None = None,  # the name of the event's field
        qos: int | None = None,
    ) -> None:
        if not self._try_consume():
            return
        listener, address = client.policy.name, self._addresses.get(client.number, "")
        event = _ClientEvent(
            client.client_id, client.owner, listener, address, client.version, reason_code, filter, qos
        )
        event.at_ms = self._at_ms()
        self._publish(event_type, event)

    # --- nodes

    def map_moved(self, cluster_map: ClusterMap) -> None:
        """Publish the nodes that joined, left, died, or became primary of more partitions."""
        former, self._map = self._map, cluster_map
        if not self._enabled or former is None or self._find_publisher(former, cluster_map) != self._node.name:
            return
        gained: dict[str, int] = {}
        for before, after in zip(former.partitions, cluster_map.partitions, strict=False):
            if after.primary and after.primary != before.primary:
                gained[after.primary] = gained.get(after.primary, 0) + 1
        for name in sorted(former.nodes.keys() | cluster_map.nodes.keys()):
            entry = cluster_map.nodes.get(name) or former.nodes[name]
            for event in _changes(former.nodes.get(name), cluster_map.nodes.get(name)):
                self._publish_node_event(entry, event, None)
            if entry.tier == TIER_STORAGE and gained.get(name):
                self._publish_node_event(entry, "promoted", gained[name])

    def _find_publisher(self, former: ClusterMap, cluster_map: ClusterMap) -> str:
        """Return the edge that publishes the node events of a map change."""
        names = [
            name
            for name, entry in cluster_map.nodes.items()
            if entry.tier == TIER_EDGE
            and entry.state == NodeState.ACTIVE
            and name in former.nodes
            and former.nodes[name].state == NodeState.ACTIVE
            and former.nodes[name].incarnation == entry.incarnation
        ]
        return min(names, default="")

    def _publish_node_event(self, entry: NodeEntry, event: str, partitions: int | None) -> None:
        if self._try_consume():
            epoch = self._map.epoch if self._map is not None else 0
            at_ms = self._at_ms()
            message = _NodeEvent(entry.node, entry.tier, event, entry.incarnation, partitions, epoch, at_ms)
            self._publish("node", message)

    # --- publishing

    def _at_ms(self) -> int:
        return int(self._utc() * 1000)

    def _try_consume(self) -> bool:
        if self._pending < WAITING_MAX and self._rate.take("", self._node.now):
            return True
        self._node.count("dropped_events")
        self._node.journal.note("drop", "rate_limited", topic=f"{EVENTS}#")
        return False

    def _publish(self, event_type: str, event: msgspec.Struct) -> None:
        publish = InboundPublish(f"{EVENTS}{event_type}".encode(), msgspec.json.encode(event))
        self._pending += 1
        self._node.wake()
        self._routes.need(publish.topic.decode(), lambda route: self._routed(route, publish))

    def _routed(self, route: Route, publish: InboundPublish) -> None:
        self._pending -= 1
        self._loop.publish(route, publish)


def _changes(before: NodeEntry | None, after: NodeEntry | None) -> list[str]:
    """Return the events of one node between two maps."""
    was_alive, is_alive = before is not None and before.alive, after is not None and after.alive
    restarted = before is not None and after is not None and before.incarnation != after.incarnation
    events = []
    if before is not None and was_alive and (not is_alive or restarted):
        events.append("left" if before.state == NodeState.DRAINING else "died")
    if is_alive and (not was_alive or restarted):
        events.append("joined")
    return events
