"""Publishes changed $SYS metrics of this edge to the subscribers connected here.

Ephemeral sessions get them by Routes. The partitions of durable sessions know no metrics of an edge, so this edge keeps
the $SYS filters of its connected durable sessions too. A disconnected client misses them, as no edge is its own then.
"""

from collections.abc import Sequence

from conf.drop_reasons import REASON_OF
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.state import InboundPublish, Route, Sub
from edge.node.node import EdgeNode
from edge.node.ports import LoopCounters
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from edge.subscriptions.sys_scope import matches_metrics
from edge.subscriptions.sys_topics import SysTopics
from edge.subscriptions.topic_routes import TopicRoutes
from wire.messages.sessions import SessionOpened, SessionSubscription

__all__ = ["SysMetrics"]


class SysMetrics:
    """Publishes the metrics of one edge every ``sys_interval_s``; 0: never.

    Args:
        node: This edge.
        loop: Its counters; publishes the topics.
        clients: The connections; observed when they open and end.
        routes: Subscribers of ephemeral sessions.
        sys: The metrics.
        rights: Permissions of each client.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: LoopCounters,
        clients: Clients,
        routes: TopicRoutes,
        sys: SysTopics,
        rights: ClientRights,
    ) -> None:
        self._rights = rights
        self._stored = EphemeralSubscriptions(lambda _: None)  # of durable sessions connected here
        self._names: dict[int, set[str]] = {}  # their filters, by connection
        clients.lifecycle.watch(self)
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._sys = sys
        self._started = 0.0
        self._next = 0.0
        self._last = 0.0

    def begin(self, now: float) -> None:
        """Start the uptime at the first call."""
        if not self._started:
            self._started = self._last = now

    def next_deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._next if self._node.limits.sys_interval_s else float("inf")

    def tick(self, now: float) -> None:
        """Publish changed values if due."""
        if now < self.next_deadline():
            return
        self._next = now + self._node.limits.sys_interval_s
        interval_s, self._last = now - self._last, now
        values = self._values()
        for topic, value in self._sys.update(now - self._started, interval_s, values, self._node.map):
            route = self._routes.of_local(topic.encode())
            if route.subs:
                self._loop.publish(route, InboundPublish(topic.encode(), value))
            stored = tuple(sub for sub in self._stored.subscribers(topic).subs if self._may_receive(sub, topic))
            if stored:
                self._loop.publish(Route(topic.encode(), stored), InboundPublish(topic.encode(), value))

    def _values(self) -> dict[str, int]:
        """Return the loop's counters, and the other values of $SYS."""
        values = self._loop.counters() | {
            name: self._node.counts[name] for name in REASON_OF.keys() & self._node.counts
        }
        values["clients"] = self._clients.doors.total()
        values["subscriptions"] = len(self._routes.local)
        values["shared"] = self._routes.local.shared
        values["sockets"] = self._clients.adopted
        values["connects"] = sum(count for name, count in self._node.counts.items() if name.startswith("connects_"))
        return values

    def _may_receive(self, sub: Sub, topic: str) -> bool:
        """Return whether a durable session may receive a metric: other rules may have granted its filter."""
        client = sub.conn.context
        return isinstance(client, Client) and self._rights.may_receive(client, topic, 0)

    # --- filters of durable sessions

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Add the $SYS filters of a resumed session, as its partition sent them."""
        if opened.sys_filters:
            self.subscribed(client, opened.sys_filters)

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Add filters that match metrics; Routes have those of ephemeral sessions."""
        if not client.session:
            return
        for subscription in taken:
            if matches_metrics(subscription.topic_filter):
                self._names.setdefault(client.number, set()).add(subscription.topic_filter)
                self._stored.add(client, subscription)

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Remove filters."""
        held = self._names.get(client.number)
        for name in held.intersection(names) if held else ():
            self._stored.remove(client, name)
        if held:
            held.difference_update(names)

    def disconnected(self, client: Client) -> None:
        """Remove the filters of a closed client."""
        for name in self._names.pop(client.number, ()):
            self._stored.remove(client, name)
