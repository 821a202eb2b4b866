"""A storage-only cluster on the simulation's clock, disks and network, with scripted edges and a scripted router.

Storage nodes are those of ``tests/simulation/storage_process.py``. Links are streams of the simulation's network that
exist while both ends live: HELLO, numbers and repeats are omitted. An iteration and a sync take one step each; a frame
takes no time and is in the next iteration.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from router.map.commands import Bootstrap, Command, RegisterNode
from storage.state.settings import PartitionSettings
from tests.simulation.model_store import ModelDisk
from tests.simulation.network import Endpoint, Network
from tests.simulation.process import World
from tests.simulation.scheduler import Scheduler
from tests.storage.scripted_edge import Edge
from tests.storage.scripted_router import LEASE_S, ROUTER, ScriptedRouter
from tests.storage.storage_node import STEP_S, StorageNode
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.nodes import Heartbeat, HeartbeatReply, MapStep

__all__ = ["ROUTER", "Cluster", "with_edge", "with_settings"]

REAL_TIME_MAX_S = 3_600.0  # tests have bounds of their own


class Cluster:
    """Storage nodes, edges and one router on one clock."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        replicas: int = 1,
        min_in_sync: int = 1,
        partitions: int = 2,
        shards: int = 1,
        edges: int = 2,
        settings: PartitionSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.scheduler = Scheduler(events_max=1 << 62, real_time_max_s=REAL_TIME_MAX_S)
        self.network = Network(self.scheduler, random.Random(seed), delay_s=0.0, jitter_s=0.0)
        self.world = World(self.scheduler, self.network, STEP_S)
        self.numbers = itertools.count(1)
        self.incarnations = itertools.count(10)
        self.nodes: dict[str, StorageNode] = {}  # live ones
        self.edges: dict[str, Edge] = {}
        self.frames = 0  # received, without heartbeats
        self.filter: Callable[[PeerKey, str, int, bytes], bool] = lambda *_: True  # False: the frame is lost
        self._lines: dict[tuple[str, str], Endpoint] = {}  # source, target -> the end to write to
        self._held: set[tuple[str, str]] = set()  # source, target of cut links
        bootstrap = Bootstrap("cluster", partitions, shards, replicas, min_in_sync, LEASE_S)
        self.router = ScriptedRouter(self.tell, self._map_moved, bootstrap)
        self.machine = self.router.machine
        names = [f"s{number}" for number in range(1, nodes + 1)]
        self._processes = {
            name: StorageNode(self.world, self, name, settings or PartitionSettings(), seed) for name in names
        }
        self.disks: dict[str, ModelDisk] = {name: node.disk for name, node in self._processes.items()}
        for number in range(1, edges + 1):
            self.start_edge(f"e{number}")
        for name in names:
            self.start(name)
        self.settle()

    # --- life and death

    def start_edge(self, name: str) -> Edge:
        """Start an edge, or its next life."""
        edge = self.edges[name] = Edge(self, name, next(self.incarnations))
        self.apply(RegisterNode(NodeEntry(name, TIER_EDGE, edge.key.incarnation, f"{name}:1")))
        edge.map_moved()
        return edge

    def kill_edge(self, name: str, *, declare: bool = True) -> None:
        """Kill an edge; by default its lease runs out at once."""
        edge = self.edges.pop(name)
        self._drop_frames(name)
        if declare:
            self.router.declare_dead(edge.key)

    def start(self, name: str) -> StorageNode:
        """Start a storage node on its disk."""
        node = self._processes[name]
        node.disk.admitted = bool(node.disk.identity) or not any(entry.epoch for entry in self.map.partitions)
        node.start(next(self.incarnations), 0, name)
        self.nodes[name] = node
        node.linked(self.router.key, up=True)
        for other in self.nodes.values():
            if other is not node:
                other.linked(node.key, up=True)
                node.linked(other.key, up=True)
        return node

    def kill(self, name: str, *, power: bool = False, wipe: bool = False, declare: bool = True) -> None:
        """Kill -9, power loss or loss of the disk; by default the lease runs out at once."""
        node = self.nodes.pop(name)
        node.kill(power=power)
        if wipe:
            node.disk.wipe()
        self._drop_frames(name)
        self.router.acknowledged.pop(name, None)
        for other in self.nodes.values():
            other.linked(node.key, up=False)
        if declare:
            self.router.declare_dead(node.key)

    def restart(self, name: str) -> None:
        """Kill a node and start it again; its lease continues."""
        self.kill(name, declare=False)
        self.start(name)

    def crash_all(self, *, power: bool = False) -> None:
        """Kill every storage node and start them again, in order."""
        names = sorted(self.nodes)
        for name in names:
            self.kill(name, power=power, declare=False)
        for name in names:
            self.start(name)
        self.settle()

    # --- links

    def send(self, source: PeerKey, target: str, kind: int, payload: bytes) -> None:
        """Send a frame to the target's current incarnation."""
        assert len(payload) <= FRAME_BYTES_MAX  # a link's bound
        if self.filter(source, target, kind, payload):
            self.repeat(source, target, kind, payload)

    def repeat(self, source: PeerKey, target: str, kind: int, payload: bytes) -> None:
        """Send a frame, bypassing the filter."""
        if target != ROUTER and target not in self.nodes and target not in self.edges:
            return
        pair = (source.node, target)
        if pair not in self._lines:
            near, far = Endpoint(self.network, source.node), Endpoint(self.network, target)
            near.other, far.other = far, near
            far.notify = partial(self._arrived, source, far)
            self._lines[pair] = near
        self._lines[pair].send(bytes((kind,)) + payload)

    def _arrived(self, source: PeerKey, end: Endpoint) -> None:
        while end.inbox and not end.silent:
            frame = end.inbox.popleft()
            kind, payload = frame[0], frame[1:]
            beat = kind == FrameKind.CONTROL and isinstance(decode_control(payload), Heartbeat | HeartbeatReply)
            self.frames += not beat
            if end.host == ROUTER:
                self.router.take(source, payload)
            elif end.host in self.edges:
                self.edges[end.host].take(source, kind, payload)
            else:
                self.nodes[end.host].receive(source, kind, payload)

    def _drop_frames(self, name: str) -> None:
        for pair in [pair for pair in self._lines if name in pair]:
            self._lines.pop(pair).other.silent = True

    def cut(self, one: str, other: str) -> None:
        """Hold frames between two nodes until the link is healed."""
        for here, there in ((one, other), (other, one)):
            self._hold(here, there)
            if here in self.nodes and there in self.nodes:
                self.nodes[here].linked(self.nodes[there].key, up=False)

    def heal(self, one: str, other: str) -> None:
        """Deliver the held frames and reopen the link."""
        for here, there in ((one, other), (other, one)):
            self._release(here, there)
            if here in self.nodes and there in self.nodes:
                self.nodes[here].linked(self.nodes[there].key, up=True)

    def silence(self, node: str) -> None:
        """Hold the router's frames to a node."""
        self._hold(ROUTER, node)

    def end_silence(self) -> None:
        """Deliver the router's held frames."""
        for source, target in [pair for pair in self._held if pair[0] == ROUTER]:
            self._release(source, target)

    def _hold(self, source: str, target: str) -> None:
        if (source, target) not in self._held:
            self._held.add((source, target))
            self.network.jam(source, target)

    def _release(self, source: str, target: str) -> None:
        if (source, target) in self._held:
            self._held.remove((source, target))
            self.network.release(source, target)

    # --- the router

    @property
    def map(self) -> ClusterMap:
        """The newest map."""
        return self.router.machine.map

    def apply(self, command: Command) -> str:
        """Commit a command of the map and send it to all nodes."""
        return self.router.apply(command)

    def tell(self, node: str, message: Control) -> None:
        """Let the router send a message to a storage node."""
        self.send(self.router.key, node, FrameKind.CONTROL, encode_control(message))

    def _map_moved(self, delta: MapDelta) -> None:
        for name in self.nodes:
            self.tell(name, MapStep(delta))
        for edge in self.edges.values():
            edge.map_moved()

    def primary(self, partition: int) -> StorageNode:
        """Return the node that serves a partition by the map."""
        return self.nodes[self.map.partitions[partition].primary]

    # --- time

    @property
    def now(self) -> float:
        """The time of every node, in seconds."""
        return self.scheduler.now

    def step(self) -> None:
        """Run one iteration of every process."""
        self.run(STEP_S)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.scheduler.run_until(self.now + seconds)

    def settle(self, seconds: float = 3.0) -> None:
        """Step until only heartbeats are in flight."""
        end = self.now + seconds
        quiet = 0
        while quiet < 4:
            assert self.now < end, "does not come to rest"
            frames = self.frames
            self.step()
            quiet = 0 if self.frames != frames or any(node.busy for node in self.nodes.values()) else quiet + 1


def with_edge(**options: Any) -> tuple[Cluster, Edge]:
    """Return a new cluster and its first edge."""
    cluster = Cluster(**options)
    return cluster, cluster.edges["e1"]


def with_settings(**changes: object) -> PartitionSettings:
    """Return settings that differ from the defaults."""
    return replace(PartitionSettings(), **changes)  # type: ignore[arg-type]
