"""A node with a valid certificate of its tier but no membership: neither in a Raft group nor in a map, at least now.

It sends well-formed messages of every type that its tier may send, with epochs, numbers and senders that it can find
out, and sometimes one that its tier may not send. None may be executed. ``tests/simulation/hostile_watch.py`` checks
the messages that routers process and other nodes send to it.

- A router is in all nodes' list of seeds, like one that left the group. Nodes dial it, and it serves those with a map;
  before its first map a node can only trust its seeds.
- A storage node dials all nodes.
- An edge dials all nodes too. In some lives it registers first, keeps no lease, and waits until all maps have its
  incarnation as dead.
"""

import random
from typing import TYPE_CHECKING, Any

from tests.simulation.hostile_node import LIFE_S, HostileNode
from tests.simulation.network import Endpoint
from tests.simulation.process import World
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess
from tests.wire.schema_messages import TYPES, RaftState, SchemaMessages
from wire.links.allowed import fault_of
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.control import decode_control, decode_controls, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.messages.nodes import Heartbeat, RegisterRequest

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

__all__ = ["UnregisteredProcess"]

FORBIDDEN = 0.02  # probability of a message that ends the link: of another tier, or in another node's name
INTRODUCTIONS = ((int(FrameKind.CONTROL), RegisterRequest), (int(FrameKind.CONTROL), Heartbeat))
REGISTERING = 0.3  # probability that a life of an edge begins with a registration
FRAMES_AT_ONCE = (1, 1, 2, 4)


class UnregisteredProcess(HostileNode):
    """One unregistered node.

    Attributes:
        received: Frames that it should not receive: (sender, kind, payload).
    """

    def __init__(self, world: World, cluster: "Cluster", rng: random.Random, tier: str) -> None:
        super().__init__(world, cluster, rng, f"{tier[0]}8", tier)
        self._schema = SchemaMessages(rng)
        self._registers = False
        self.may_register = tier == TIER_EDGE
        self.received: list[tuple[PeerKey, int, bytes]] = []

    # -- lives

    def start(self, incarnation: int) -> None:
        """Begin a life, in which an edge may register first."""
        self._registers = self.may_register and self._draws.random() < REGISTERING
        super().start(incarnation)

    def life_s(self) -> float:
        """Return the duration of a life: with a registration until after the end of its lease."""
        over_s = 4 * self._cluster.knobs.lease_s if self._registers else 0.0
        return over_s + self._draws.uniform(*LIFE_S)

    # -- links

    def accepted(self, end: Endpoint, port: int) -> None:
        """Serve a node with a map."""
        node = self._cluster.nodes.get(end.other.host)
        if node is None or not node.up or not self.map_of(node.node).nodes:
            end.close()
            return
        super().accepted(end, port)

    def on_up(self, peer: PeerKey) -> None:
        """Register at a reachable router."""
        if self._registers and peer.tier == TIER_ROUTER:
            entry = NodeEntry(self.node, self.tier, self.incarnation, self.address)
            self.table.send(peer.node, FrameKind.CONTROL, encode_control(RegisterRequest(1, entry)))

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Store received frames, unless this incarnation is a member."""
        super().on_frame(peer, kind, payload)
        if not self._registers:
            self.received.append((peer, kind, payload))

    def map_of(self, name: str) -> ClusterMap:
        """Return the map of a node."""
        node = self._cluster.nodes[name]
        return node.core.machine.map if isinstance(node, RouterProcess) else node.core.map

    def is_registered_at(self, name: str) -> bool:
        """Return whether a node may have this incarnation as a member."""
        return self.map_of(name).is_alive(self.node, self.incarnation)

    # -- sending

    def send_some(self, peer: PeerKey, cluster_map: ClusterMap) -> None:
        """Send some messages of any type, as a live node of the tier would."""
        if self._registers and not self._is_dead_everywhere():
            return
        rng = self._draws
        pairs = self._schema.types(self.tier, peer.tier)
        for _ in range(rng.choice(FRAMES_AT_ONCE)):
            is_forbidden = rng.random() < FORBIDDEN
            pair = rng.choice(rng.choice((TYPES, INTRODUCTIONS)) if is_forbidden or not pairs else pairs)
            victim = self._victim(cluster_map)
            sender = PeerKey(self.node, self.tier, self.incarnation)
            frame = self._schema.frame(pair, victim, self._known(peer.node), sender, peer, self._raft_state(peer.node))
            if not is_forbidden and self._ends_link(sender, peer, *frame):
                continue
            self.frames_sent += 1
            self.table.send(peer.node, *frame)

    def _ends_link(self, sender: PeerKey, peer: PeerKey, kind: int, payload: bytes) -> bool:
        """Return whether a message is in another's name, or registers this node, which is permitted."""
        if kind == FrameKind.CONTROLS:
            (message,) = decode_controls(payload)
        elif kind == FrameKind.CONTROL:
            message = decode_control(payload)
        else:
            return False
        registers = isinstance(message, RegisterRequest) and self.tier != TIER_ROUTER
        return registers or bool(fault_of(sender, peer.tier, message))

    def _is_dead_everywhere(self) -> bool:
        incarnations = []
        for name, node in self._cluster.nodes.items():
            entry = self.map_of(name).nodes.get(self.node) if node.up else None
            if entry is not None and entry.incarnation == self.incarnation:
                incarnations.append(entry.alive)
            elif isinstance(node, RouterProcess) and node.up:
                return False  # its map is older
        return bool(incarnations) and not any(incarnations)

    def _known(self, name: str) -> dict[str, list[Any]]:
        """Return a node's open requests, by the field name of the answer."""
        node = self._cluster.nodes[name]
        mine = [self.incarnation]
        if isinstance(node, RouterProcess):
            return {"incarnation": mine, "sender_epoch": mine}
        lease: Any = node.core.lease
        known: dict[str, list[Any]] = {
            "incarnation": [node.incarnation],
            "sent_at": [sent_at for beats in vars(lease)["_beats"].values() for sent_at in beats][-8:],
            "leader": [self.node],
            "leader_hint": [self.node],
            "lease_s": [1_000.0],
        }
        if not isinstance(node, StorageProcess):
            core = node.core
            pending = (vars(core.requests)["_by_number"], vars(core.cache)["_requests"])
            known["request"] = [number for numbers in pending for number in numbers][:32]
        return known

    def _raft_state(self, name: str) -> RaftState:
        node = self._cluster.nodes[name]
        if not isinstance(node, RouterProcess):
            return RaftState()
        raft = node.raft
        return RaftState(raft.term, raft.log.last_index, raft.log.last_term, node.disk.storage_id)
