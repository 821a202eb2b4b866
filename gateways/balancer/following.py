"""The map as a balancer follows it: from every router that it is linked to, for it has no lease by which it would learn
that one of them stayed behind.

The first router that tells a step makes it, the others' are passed by. Without any the last map stays. Sans-IO; links
are in ``service.py``. Rules: docs/protocol.md sections 2 and 12.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from conf.events import say
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.control import Control
from wire.messages.map_pages import MapReader
from wire.messages.nodes import FollowMap, MapPage, MapStep
from wire.node.known_cluster import KnownCluster

__all__ = ["MapFollower"]

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 2.0  # a page that was asked for and did not come


@dataclass(slots=True)
class _Router:
    """The map as one router tells it."""

    reader: MapReader = field(default_factory=MapReader)
    ask_at: float = float("-inf")  # infinity: it tells every step by itself


class MapFollower:
    """The map.

    Args:
        send: Sends a message to a router; False when that is not possible now.
        moved: Called with each newer map.
        cluster_id: Of the cluster that this balancer belongs to; "" where it has read no map yet.

    Attributes:
        cluster: The cluster whose maps are taken.
    """

    def __init__(
        self, send: Callable[[str, Control], bool], moved: Callable[[ClusterMap], None], cluster_id: str = ""
    ) -> None:
        self.map = ClusterMap(cluster="")
        self.cluster = KnownCluster(cluster_id)
        self._send = send
        self._moved = moved
        self._routers: dict[str, _Router] = {}
        self._alone_since = float("-inf")

    def router_up(self, now: float, router: str) -> None:
        """A link to a router stands."""
        self._routers[router] = _Router()
        self.tick(now)

    def router_down(self, now: float, router: str) -> None:
        """It ended."""
        self._routers.pop(router, None)
        if not self._routers:
            self._alone_since = now

    def age_s(self, now: float) -> float:
        """Return for how long no router has told anything; 0 while one is linked."""
        return 0.0 if self._routers else now - self._alone_since

    def tick(self, now: float) -> None:
        """Ask routers that have not told the map yet."""
        for name, router in sorted(self._routers.items()):
            if now >= router.ask_at:
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
        if isinstance(message, MapPage):
            self._page(now, name, router, message)
        else:
            self._step(now, router, message.delta)
        self.tick(now)
        return True

    def _page(self, now: float, name: str, router: _Router, page: MapPage) -> None:
        router.ask_at = float("inf")
        if page.epoch <= self.map.epoch and self.map.cluster:
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
            elif cluster_map.epoch > self.map.epoch or not self.map.cluster:
                self.map = cluster_map
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
                self.map = ClusterMap(cluster="")
                router.ask_at = now
            else:
                self._moved(self.map)
        elif delta.epoch > self.map.epoch + 1 and not (router.reader.reading and router.reader.keep(delta)):
            router.ask_at = now  # a step is missing
