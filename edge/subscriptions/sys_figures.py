"""$SYS by time: this edge's figures are published to its own subscribers when they changed."""

from edge.clients.clients import Clients
from edge.hot.state import Inbound
from edge.node.node import EdgeNode
from edge.node.ports import Figures
from edge.subscriptions.sys_topics import SysTopics
from edge.subscriptions.topic_routes import TopicRoutes

__all__ = ["SysFigures"]


class SysFigures:
    """Publishes the figures of one edge every ``sys_interval_s``; 0: never."""

    def __init__(self, node: EdgeNode, loop: Figures, clients: Clients, routes: TopicRoutes, sys: SysTopics) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._sys = sys
        self._started = 0.0
        self._next = 0.0

    def begin(self, now: float) -> None:
        """Count the time of service from the first call."""
        if not self._started:
            self._started = now

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do."""
        return self._next if self._node.limits.sys_interval_s else float("inf")

    def tick(self, now: float) -> None:
        """Publish what changed, if it is time."""
        if now < self.next_deadline():
            return
        self._next = now + self._node.limits.sys_interval_s
        counters = self._loop.counters()
        counters["clients"] = self._clients.open_count()
        counters["subscriptions"] = len(self._routes.local)
        for topic, value in self._sys.update(self._node.now - self._started, counters, self._node.map.epoch):
            route = self._routes.of_local(topic.encode())
            if route.subs:
                self._loop.publish(route, Inbound(topic.encode(), value))
