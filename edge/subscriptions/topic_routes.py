"""The Routes of this edge: the responses of shard owners, joined with the subscribers connected here.

The loop caches the Routes and requests one if a topic has none, or an older one (``edge/loop/routes.py``).
``edge/routes/route_cache.py`` requests the responses; ``edge/subscriptions/ephemeral_sessions.py`` has the local
subscribers. Decision: docs/adr/0023-work-in-slices.md.
"""

from collections.abc import Callable

from edge.loop.state import Route
from edge.node.node import EdgeNode
from edge.node.ports import RouteTable
from edge.rights.client_rights import ClientRights
from edge.routes.answers import RouteAnswer, RouteAnswers
from edge.routes.fanout_account import FanoutAccount
from edge.routes.publisher_names import PublisherNameTopics
from edge.routes.route_cache import RouteCache
from edge.routes.shared_groups import SharedGroups
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from mqtt.reasons import ReasonCode
from mqtt.topics import has_wildcard, is_reserved

__all__ = ["TopicRoutes"]

EVICTED_MAX = 16  # oldest local topics, removed for a new one when the cache is full


class TopicRoutes:
    """Builds Routes and keeps them current.

    Args:
        node: This edge.
        loop: The Route cache of the loop.
        next_number: Numbers a request; no incarnation of this edge uses a number twice.
        topics_max: Bound of the cache.
        rights: Permissions of each client.

    Attributes:
        local: Subscriptions of this edge's ephemeral sessions.
        cache: Cached responses of shard owners.
        answers: Interns equal responses.
        shared_bytes: Memory shared by Routes.
        named: Topics with a publisher name in each message.
        traced: Returns whether a trace covers a topic; None without such traces.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: RouteTable,
        next_number: Callable[[], int],
        topics_max: int,
        rights: ClientRights,
    ) -> None:
        self._wake = node.wake
        self._node = node
        self.named = PublisherNameTopics(node.limits.publisher_properties)
        self.traced: Callable[[str], bool] | None = None
        self._loop = loop
        self.shared_bytes = FanoutAccount()
        self.local = EphemeralSubscriptions(self._local_changed, self.shared_bytes, rights)
        self.answers = RouteAnswers(
            node.name,
            node.peer_of,
            SharedGroups(node.name, node.limits.sticky_shares, node.peer_of),
            self.shared_bytes,
        )
        self.cache = RouteCache(
            lambda: node.map,
            node.tell,
            node.tell_all,
            self.answers,
            self._install,
            lambda topic: loop.drop_route(topic.encode()),
            lambda topic: loop.route(topic.encode()),
            lambda topic: loop.clear_used(topic.encode()),
            loop.refresh_routes,
            topics_max,
            self._has_room,
            next_number,
        )

    def with_route(self, topic: bytes, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route; the cached one if present, because it has the round-robin state."""
        route = self._loop.route(topic)
        if route is not None:
            then(route)
        else:
            self.need(topic.decode(), then)

    def need(self, topic: str, then: Callable[[Route], None]) -> None:
        """Call ``then`` with the topic's Route when it is known; this iteration then runs all parts."""

        def on_route(route: Route) -> None:
            self._wake()
            then(route)

        self.cache.need(topic, on_route)

    def of_local(self, topic: bytes) -> Route:
        """Return a Route of this edge's own subscribers of a topic."""
        if not self._has_room(self.cache.bytes):
            self._loop.drop_oldest_local(EVICTED_MAX)
        audience = self.local.subscribers(topic.decode())
        route = Route(topic, audience.subs, audience=audience)
        route.copies = audience.copies
        return route

    def refresh(self, route: Route) -> Route | None:
        """Check a Route of an older generation before its use."""
        if route.reason_code:
            self._loop.keep_route(route)
            return route
        topic = route.topic.decode()
        answer = self.cache.answer(topic)
        if answer is None:
            self._loop.drop_route(route.topic)
            return None
        fresh = self._route(route.topic, topic, answer)
        if (
            fresh.subs is route.subs
            and fresh.edges is route.edges
            and fresh.partitions is route.partitions
            and fresh.groups is route.groups
            and fresh.traced == route.traced
        ):
            self._loop.keep_route(route)
            return route
        self._loop.replace_route(fresh)
        return fresh

    def peers_changed(self) -> None:
        """Check all Routes again after edges were linked or retired."""
        self.answers.peers_changed()
        self._loop.refresh_routes()
        self.cache.look_again()

    def _local_changed(self, topic_filter: str) -> None:
        """Check Routes again after a change of a filter's local subscribers."""
        if has_wildcard(topic_filter):
            self._loop.refresh_routes()
            self.cache.look_again()
        else:
            self._loop.refresh_route(topic_filter.encode())

    def _has_room(self, topics_bytes: int) -> bool:
        return topics_bytes + self.shared_bytes.bytes <= self._node.limits.routes_bytes_max

    def _install(self, topic: str, answer: RouteAnswer) -> Route:
        route = self._route(topic.encode(), topic, answer)
        # The route of a node's own message must not be used for clients: the cached one refuses them.
        kept = Route(route.topic, reason_code=ReasonCode.NOT_AUTHORIZED) if is_reserved(topic) else route
        self._loop.install_route(route.topic, kept)
        return route

    def _route(self, name: bytes, topic: str, answer: RouteAnswer) -> Route:
        audience = self.local.subscribers(topic)
        route = Route(name, audience.subs, answer.edges, answer.partitions, answer.groups, 0, audience)
        route.copies = audience.copies
        if self.named.has(topic):
            route.named = True
        if self.traced is not None:
            route.traced = self.traced(topic)
        return route
