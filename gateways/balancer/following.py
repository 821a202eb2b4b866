"""The map as a balancer follows it: from every router of its map that it is linked to, for it has no lease by which it
would learn that one of them stayed behind.

The first router that sends a step makes it, the same step of the others changes nothing. Without any router the last
map stays. Before the first map each router that the balancer dialled is believed. Sans-IO; links are in ``service.py``.
Rules: docs/protocol.md sections 2 and 12.

| state | holds | way out |
|---|---|---|
| no map | every dialled router is asked | a whole map: following |
| following | routers of the map are asked, messages of others are refused | no router of the map is linked: alone |
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

ASK_AGAIN_S = 2.0  # a page that was asked for and did not come
INFINITY = float("inf")


@dataclass(slots=True)
class _Router:
    """The map as one router sends it."""

    key: PeerKey
    reader: MapReader = field(default_factory=MapReader)
    ask_at: float = -INFINITY  # infinity: it sends every step by itself


class BalancerMapFollower:
    """The map.

    Args:
        send: Sends a message to a router; False when that is not possible now.
        moved: Called with each newer map.
        cluster_id: Of the cluster that this balancer belongs to; "" where it has read no map yet.
        refuse: Called with each message of a router that is not believed, and the message's type.

    Attributes:
        cluster: The cluster whose maps are taken.
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
        self._whole_wanted = False  # a step did not fit: the map may be replaced by one of its own epoch
        self._is_stranded = False

    def router_up(self, now: float, peer: PeerKey) -> None:
        """A link to an incarnation of a router stands."""
        self._routers[peer.node] = _Router(peer)
        self._judge(now)
        self.tick(now)

    def router_down(self, now: float, router: str) -> None:
        """It ended."""
        self._routers.pop(router, None)
        self._judge(now)

    def age_s(self, now: float) -> float:
        """Return for how long no router of the map has been linked; 0 while one is."""
        return max(0.0, now - self._alone_since)

    def tick(self, now: float) -> None:
        """Ask routers that have not sent the map yet."""
        self._judge(now)
        for name, router in sorted(self._routers.items()):
            if now >= router.ask_at and (self._is_stranded or self._is_believed(router)):
                router.reader.forget()
                router.ask_at = now + ASK_AGAIN_S
                self._send(name, FollowMap(self.map.epoch))

    def handle(self, now: float, name: str, message: Control) -> bool:
        """Take a router's message; False if it is none of the map's."""
        router = self._routers.get(name)
        if not isinstance(message, MapPage | MapStep):
            return False
        if router is None:
            return True
        believed = self._is_believed(router)
        if not believed and not (self._is_stranded and isinstance(message, MapPage)):
            self._refuse(now, router.key, name_of(message))
            return True
        if isinstance(message, MapPage):
            self._page(now, name, router, message)
            if not believed:
                router.ask_at = min(router.ask_at, now + ASK_AGAIN_S)  # its steps are not taken
        else:
            self._step(now, router, message.delta)
        self.tick(now)
        return True

    def _is_believed(self, router: _Router) -> bool:
        return is_router(self.map, router.key)

    def _judge(self, now: float) -> None:
        """Note whether a router of the map is linked, and for how long none has been."""
        if any(map(self._is_believed, self._routers.values())):
            self._alone_since, self._is_stranded = INFINITY, False
            return
        if self._alone_since == INFINITY:
            self._alone_since = now
        if not self._is_stranded and self._routers and now - self._alone_since >= STRANDED_S:
            self._is_stranded = True
            say(logger, "map.routers_replaced", routers=", ".join(sorted(self._routers)))

    def _page(self, now: float, name: str, router: _Router, page: MapPage) -> None:
        router.ask_at = INFINITY
        if self.map.cluster and page.epoch <= self.map.epoch - self._whole_wanted:
            return
        try:
            cluster_map = router.reader.take(page)
        except ValueError as error:
            say(logger, "map.read_again", why=error)
            router.ask_at = now
            return
        if cluster_map is not None:
            if not self.cluster.accepts(cluster_map):
                router.ask_at = now + ASK_AGAIN_S
            elif cluster_map.epoch > self.map.epoch - self._whole_wanted or not self.map.cluster:
                self.map, self._whole_wanted = cluster_map, False
                self._moved(self.map)
        elif router.reader.reading:
            router.ask_at = now + ASK_AGAIN_S
            self._send(name, FollowMap(self.map.epoch, *router.reader.wanted))

    def _step(self, now: float, router: _Router, delta: MapDelta) -> None:
        if delta.epoch == self.map.epoch + 1 and self.map.cluster:
            try:
                self.map.apply(delta)
            except ValueError as error:
                say(logger, "map.read_anew", why=error)
                self._whole_wanted = True
                router.ask_at = now
            else:
                self._whole_wanted = False
                self._moved(self.map)
        elif delta.epoch > self.map.epoch + 1 and not (router.reader.reading and router.reader.keep(delta)):
            router.ask_at = now  # a step is missing
