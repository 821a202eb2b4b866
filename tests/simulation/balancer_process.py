"""A balancer of the simulation: its cores over simulated links, and clients that it forwards to edges.

An edge accepts a client if it runs and has its lease; any other one does not answer, or is not ready. Gossip reports
every edge alive all the time, so that a balancer that relies on gossip alone fails.
"""

import random
from dataclasses import dataclass

from gateways.balancer.directory import Directory, DirectoryRules, PlacementRequest
from gateways.balancer.following import BalancerMapFollower
from tests.simulation.cluster import Cluster
from tests.simulation.edge_process import EdgeProcess
from tests.simulation.link_process import LinkProcess
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_GATEWAY, TIER_ROUTER, PeerKey

__all__ = ["BalancerProcess"]

CLIENT_S = 0.02  # between two clients
CHOOSE_S = 3.0
PLAIN = PlacementRequest("plain")


@dataclass
class _Client:
    """A client that waits for an edge."""

    since: float


class BalancerProcess(LinkProcess):
    """One balancer over its lives.

    Attributes:
        picks: (time, edge) of every attempt, on the scheduler's clock.
        placed: Clients by the edge that accepted them.
        failed: Times at which a client was given up.
    """

    tier = TIER_GATEWAY

    def __init__(self, cluster: Cluster, name: str) -> None:
        routers = [f"{node}:1" for node in cluster.nodes if node.startswith("r")]
        super().__init__(cluster.world, name, routers, 0.0)
        self._cluster = cluster
        self.picks: list[tuple[float, str]] = []
        self.placed = 0
        self.failed: list[float] = []
        self._waiting: list[_Client] = []

    def start(self, incarnation: int) -> None:
        """Begin a life without state of a former one."""
        rng = random.Random(f"{self.node}/{incarnation}")
        self.directory = Directory(DirectoryRules(("plain",)), lambda _: "", rng)
        self.follower = BalancerMapFollower(self._send, self._moved)
        self._waiting = []
        self.begin_links(incarnation, rng)
        self.later(CLIENT_S, self._arrive)

    # -- links

    def _send(self, router: str, message: Control) -> bool:
        return self.table.send(router, FrameKind.CONTROL, encode_control(message))

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Process a router's message."""
        assert self.follower.handle(self.clock(), peer.node, decode_control(payload)), kind

    def on_up(self, peer: PeerKey) -> None:
        """Follow another router."""
        self.follower.router_up(self.clock(), peer)

    def on_down(self, peer: PeerKey) -> None:
        """Stop following a router."""
        self.follower.router_down(self.clock(), peer.node)

    def _moved(self, cluster_map: ClusterMap) -> None:
        self.directory.map_moved(self.clock(), cluster_map)
        self.set_peers(
            {entry.node: (TIER_ROUTER, entry.address, entry.incarnation) for entry in cluster_map.live(TIER_ROUTER)}
        )

    # -- clients

    def _arrive(self) -> None:
        self._waiting.append(_Client(self.clock()))
        self.poke()
        self.later(CLIENT_S, self._arrive)

    def turn(self) -> None:
        """Read, choose, write."""
        self.read_links()
        now = self.clock()
        self.follower.tick(now)
        for name in self._cluster.nodes:
            self.directory.member_seen(now, name, "alive", None)
        self._waiting = [client for client in self._waiting if not self._forward(now, client)]
        self.flush_links()
        self.wake_by(now + CLIENT_S)

    def _forward(self, now: float, client: _Client) -> bool:
        """Forward a client to an edge, or give it up; False while it waits."""
        while now - client.since < CHOOSE_S:
            edge = self.directory.choose(now, PLAIN)
            if edge is None:
                return False
            self.picks.append((self.world.scheduler.now, edge.node))
            if self._takes(edge.node):
                edge.took()
                self.placed += 1
                return True
            self.directory.failed(now, edge)
        self.failed.append(self.world.scheduler.now)
        return True

    def _takes(self, name: str) -> bool:
        node = self._cluster.nodes[name]
        assert isinstance(node, EdgeProcess)
        return node.up and not node.paused and node.core.ready and node.core.node.has_lease()
