"""A hostile node over its lives: links to all nodes, random bursts of frames, and knowledge of the cluster's state.

It knows more than a certificate holder can find out: sessions, epochs, terms and open requests are read from the other
processes. Subclasses draw the frames.
"""

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.simulation.link_process import LinkProcess, Target
from tests.simulation.process import World
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess
from tests.wire.forged_messages import Victim
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_EDGE, PeerKey, first_number

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

__all__ = ["LIFE_S", "HostileNode", "SentFrame"]

LIVES_MAX = 40
LIFE_S = (0.2, 2.0)  # then it restarts, because its victims have closed its links
BURST_S = 0.1  # mean time between two bursts
BURST_FRAMES = 4
REMEMBERED = 200  # frames that it may repeat
TOPICS = ("retained/0", "qos0/0", "a/b")

SentFrame = tuple[int, bytes]


class HostileNode(LinkProcess):
    """One hostile node; all its actions come from one random stream.

    Attributes:
        frames_sent: Number of frames sent.
        lives: Number of starts.
    """

    def __init__(self, world: World, cluster: "Cluster", rng: random.Random, node: str, tier: str) -> None:
        self.tier = tier
        super().__init__(world, node, [], rng.uniform(-500.0, 100_000.0))
        self._cluster = cluster
        self._draws = rng
        self._remembered: deque[SentFrame] = deque(maxlen=REMEMBERED)
        self.frames_sent = 0
        self.lives = 0

    # -- lives

    def start(self, incarnation: int) -> None:
        """Begin a life with links to all nodes."""
        self.lives += 1
        self.begin_links(incarnation, random.Random(self._draws.random()))
        for name, node in self._cluster.nodes.items():
            self._add_target(Target(name, node.tier, f"{name}:1"), (name, f"{name}:1"))
        self.later(self._draws.expovariate(1 / BURST_S), self._burst)
        self.later(self.life_s(), self._start_repeated)

    def life_s(self) -> float:
        """Return the duration of this life."""
        return self._draws.uniform(*LIFE_S)

    def _start_repeated(self) -> None:
        self.end()
        if self.lives < LIVES_MAX:
            self.world.scheduler.after(self._draws.uniform(0.05, 0.5), self._cluster.start_hostile_node, self)

    def kill(self) -> None:
        """End it permanently."""
        self.lives = LIVES_MAX
        self.end()

    # -- links

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Store the frame, to send it to others."""
        del peer
        self._remembered.append((kind, payload))

    def on_up(self, peer: PeerKey) -> None:
        """Record a victim in reach."""

    def on_down(self, peer: PeerKey) -> None:
        """Record a closed link."""

    def turn(self) -> None:
        """One iteration of its links."""
        self.read_links()
        self.flush_links()

    # -- sending

    def _burst(self) -> None:
        rng = self._draws
        connected = self.table.connected()
        cluster_map = self._newest_map()
        if connected and cluster_map is not None:
            for _ in range(rng.randrange(1, BURST_FRAMES + 1)):
                self.send_some(rng.choice(connected), cluster_map)
        self.later(rng.expovariate(1 / BURST_S), self._burst)

    def send_some(self, peer: PeerKey, cluster_map: ClusterMap) -> None:
        """Send the drawn frames."""
        raise NotImplementedError

    # -- knowledge

    def _newest_map(self) -> ClusterMap | None:
        maps = [node.core.machine.map for node in self._cluster.nodes.values() if isinstance(node, RouterProcess)]
        newest = max(maps, key=lambda one: one.epoch)
        return newest if newest.partitions and newest.shards and newest.live(TIER_EDGE) else None

    def _victim(self, cluster_map: ClusterMap) -> Victim:
        """Draw the client or partition to name: an existing session, if any."""
        rng = self._draws
        edge = rng.choice([entry for entry in cluster_map.live(TIER_EDGE) if entry.node != self.node] or [None])
        partition = rng.randrange(len(cluster_map.partitions))
        sessions = self._sessions(cluster_map.partitions[partition].primary, partition)
        name = edge.node if edge is not None else next(iter(cluster_map.live(TIER_EDGE))).node
        common = (cluster_map, name, partition)
        rest = (first_number(cluster_map.nodes[name].incarnation) + rng.randrange(1_000), rng.randrange(1_000))
        topic = rng.choice(TOPICS)
        if not sessions:
            return Victim(*common, "nobody", partition << 48 | 1, 1 << 32 | 1, 1, 1, *rest, topic)
        session: Any = rng.choice(sessions)
        seq = next(iter(session.inflight), 1)
        own = (session.client_id, session.number, session.owner_epoch, session.connection, seq)
        return Victim(*common, *own, *rest, topic)

    def _sessions(self, primary: str, partition: int) -> list[Any]:
        node = self._cluster.nodes.get(primary)
        if not isinstance(node, StorageProcess) or not node.up or partition not in node.core.partitions:
            return []
        return list(node.core.partitions[partition].partition.sessions.values())
