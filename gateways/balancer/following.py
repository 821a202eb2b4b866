"""The balancer's copy of the cluster map, followed from every linked router of the map.

It follows all of them because it has no lease that would reveal a stale router. The first router that sends a step
applies it; the same step of another router has no effect. Without any router the last map stays. Before the first map
every dialled router is trusted. Sans-IO; links are in ``service.py``.
Rules: docs/protocol.md sections 2 and 12.

| state | holds | way out |
|---|---|---|
| no map | every dialled router is queried | a whole map: following |
| following | routers of the map are queried, messages of others are refused | no router of the map is linked: alone |
| alone | the last map; messages of other routers are refused | a router of the map: following; STRANDED_S: stranded |
| stranded | whole maps of other dialled routers are read, no steps | a later one, or a router of the map: following |
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from conf.events import say
from wire.links.roster import is_router
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.control import Control
from wire.messages.hello import PeerKey
from wire.messages.map_pages import MapReader
from wire.messages.message import name_of
from wire.messages.nodes import FollowMap, MapPage, MapStep
from wire.node.known_cluster import KnownCluster
from wire.node.lease_holder import STRANDED_S

__all__ = ["BalancerMapFollower"]

logger = logging.getLogger(__name__)

REQUEST_RETRY_S = 2.0  # retry of a page request without an answer
INFINITY = float("inf")


@dataclass(slots=True)
class _Router:
    """The map as sent by one router."""

    key: PeerKey
    reader: MapReader = field(default_factory=MapReader)
    request_at: float = -INFINITY  # infinity: it sends every step without a request


class BalancerMapFollower:
    """The map.

    Args:
      send: Sends a message to a router; False if that is not possible now.
      moved: Called with each newer map.
      cluster_id: Cluster of this balancer; "" if it has read no map yet.
      refuse: Called with the sender and type of each message of an untrusted router.

    Attributes:
      cluster: The cluster whose maps are accepted.
    """

    def __init__(
        self,
        send: Callable[[str, Control], bool],
        moved: Callable[[ClusterMap], None],
        cluster_id: str = "",
        refuse: Callable[[float, PeerKey, str], None] = lambda *_: None,
    ) -> None:
        self.map = ClusterMap(cluster="")
        self.cluster = KnownCluster(cluster_id)
        self._send = send
        self._moved = moved
        self._refuse = refuse
        self._routers: dict[str, _Router] = {}
        self._alone_since = -INFINITY  # infinity: a router of the map is linked
        self._whole_wanted = False  # a step did not apply: the map may be replaced by one of its own epoch
        self._is_stranded = False

    def router_up(self, now: float, peer: PeerKey) -> None:
        """Register a linked router incarnation."""
        self._routers[peer.node] = _Router(peer)
        self._update_stranded(now)
        self.tick(now)

    def router_down(self, now: float, router: str) -> None:
        """Remove a router whose link ended."""
        self._routers.pop(router, None)
        self._update_stranded(now)

    def age_s(self, now: float) -> float:
        """Return the seconds since a router of the map was linked; 0 while one is."""
        return max(0.0, now - self._alone_since)

    def tick(self, now: float) -> None:
        """Request the map from routers that have not sent it yet."""
        self._update_stranded(now)
        for name, router in sorted(self._routers.items()):
            if now >= router.request_at and (self._is_stranded or self._is_trusted(router)):
                router.reader.forget()
                router.request_at = now + REQUEST_RETRY_S
                self._send(name, FollowMap(self.map.epoch))

    def handle(self, now: float, name: str, message: Control) -> bool:
        """Handle a router's message; False if it is not about the map."""
        router = self._routers.get(name)
        if not isinstance(message, MapPage | MapStep):
            return False
        if router is None:
            return True
        trusted = self._is_trusted(router)
        if not trusted and not (self._is_stranded and isinstance(message, MapPage)):
            self._refuse(now, router.key, name_of(message))
            return True
        if isinstance(message, MapPage):
            self._page(now, name, router, message)
            if not trusted:
                router.request_at = min(router.request_at, now + REQUEST_RETRY_S)  # its steps are refused
        else:
            self._step(now, router, message.delta)
        self.tick(now)
        return True

    def _is_trusted(self, router: _Router) -> bool:
        return is_router(self.map, router.key)

    def _update_stranded(self, now: float) -> None:
        """Update whether a router of the map is linked, and since when none is."""
        if any(map(self._is_trusted, self._routers.values())):
            self._alone_since, self._is_stranded = INFINITY, False
            return
        if self._alone_since == INFINITY:
            self._alone_since = now
        if not self._is_stranded and self._routers and now - self._alone_since >= STRANDED_S:
            self._is_stranded = True
            say(logger, "map.routers_replaced", routers=", ".join(sorted(self._routers)))

    def _page(self, now: float, name: str, router: _Router, page: MapPage) -> None:
        router.request_at = INFINITY
        if self.map.cluster and page.epoch <= self.map.epoch - self._whole_wanted:
            return
        try:
            cluster_map = router.reader.take(page)
        except ValueError as error:
            say(logger, "map.read_again", why=error)
            router.request_at = now
            return
        if cluster_map is not None:
            if not self.cluster.accepts(cluster_map):
                router.request_at = now + REQUEST_RETRY_S
            elif cluster_map.epoch > self.map.epoch - self._whole_wanted or not self.map.cluster:
                self.map, self._whole_wanted = cluster_map, False
                self._moved(self.map)
        elif router.reader.reading:
            router.request_at = now + REQUEST_RETRY_S
            self._send(name, FollowMap(self.map.epoch, *router.reader.wanted))

    def _step(self, now: float, router: _Router, delta: MapDelta) -> None:
        if delta.epoch == self.map.epoch + 1 and self.map.cluster:
            try:
                self.map.apply(delta)
            except ValueError as error:
                say(logger, "map.read_anew", why=error)
                self._whole_wanted = True
                router.request_at = now
            else:
                self._whole_wanted = False
                self._moved(self.map)
        elif delta.epoch > self.map.epoch + 1 and not (router.reader.reading and router.reader.keep(delta)):
            router.request_at = now  # a step is missing
