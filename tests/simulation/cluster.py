"""A whole cluster in one thread: routers, storage nodes, edges and MQTT clients on one clock and one network.

The seed and the knobs determine all events. Faults are methods here; ``simulation.py`` or a script of
``test_schedules.py`` decides which ones happen and when.
"""

import random
from dataclasses import dataclass, field, replace

from edge.loop.options import HotLimits
from edge.node.limits import EdgeLimits
from router.settings import RouterLimits
from storage.state.settings import PartitionSettings
from stratamq.history.check import judge
from stratamq.history.history import parse_history
from stratamq.history.operations import Header, Kind
from stratamq.history.verdict import HistoryVerdict
from stratamq.history.writer import HistoryWriter
from tests.simulation.edge_process import EdgeProcess
from tests.simulation.hostile_node import HostileNode
from tests.simulation.hostile_process import HostileProcess
from tests.simulation.hostile_watch import HostileWatch
from tests.simulation.link_process import CLUSTER
from tests.simulation.network import Network
from tests.simulation.process import World
from tests.simulation.router_process import RaftKnobs, RouterProcess
from tests.simulation.scheduler import Scheduler
from tests.simulation.sim_client import ClientOptions, SimClient
from tests.simulation.storage_process import DiskKnobs, StorageProcess
from tests.simulation.unregistered_process import UnregisteredProcess
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["Cluster", "Knobs", "NodeProcess"]

NodeProcess = RouterProcess | StorageProcess | EdgeProcess
READY_MAX_S = 30.0
RESTART_S = 0.05  # from the end of an incarnation to the start of the next one


@dataclass(frozen=True)
class Knobs:
    """Constants of one seed; the defaults are those of a fault-free laboratory."""

    routers: int = 1
    storages: int = 1
    edges: int = 2
    replicas: int = 1
    min_in_sync: int = 1
    partitions: int = 2
    shards: int = 2
    lease_s: float = 2.0
    lease_margin_s: float = 0.1
    delay_s: float = 0.0005
    jitter_s: float = 0.0002
    split_chance: float = 0.0
    turn_s: float = 0.0001
    cached_topics_max: int = 1_000_000
    map_page_bytes: int = MAP_PAGE_BYTES
    prune_late_s: float = 1.0
    clock_offsets: bool = True
    users: bool = False  # edges have a closed listener for users of the cluster
    raft: RaftKnobs = field(default_factory=RaftKnobs)
    disk: DiskKnobs = field(default_factory=DiskKnobs)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    edge: EdgeLimits = field(default_factory=lambda: EdgeLimits(sys_interval_s=0))
    hot: HotLimits = field(default_factory=HotLimits)


class _Lines:
    """The history in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self.lines.append(data)


class Cluster:
    """All processes of one seed."""

    def __init__(self, seed: int | str, knobs: Knobs | None = None, scheduler: Scheduler | None = None) -> None:
        self.knobs = knobs = knobs or Knobs()
        self.seed = seed
        self.scheduler = scheduler or Scheduler()
        self.network = Network(self.scheduler, self.rng("network"), delay_s=knobs.delay_s, jitter_s=knobs.jitter_s)
        self.network.split_chance = knobs.split_chance
        self.world = World(self.scheduler, self.network, knobs.turn_s)
        self.nodes: dict[str, NodeProcess] = {}
        self.clients: dict[str, SimClient] = {}
        self.hostile: list[HostileNode] = []
        self.hostile_watch: HostileWatch | None = None
        self.seeds: list[str] = []  # of storage nodes and edges; running nodes read additions
        self.down: set[str] = set()  # nodes that are not restarted automatically
        self.stopping: set[str] = set()  # nodes after SIGTERM that may not have ended yet
        self.draining: dict[str, str] = {}  # last ordered state of each edge
        self.faults_over = False
        self._incarnations = 0
        self._last: dict[str, int] = {}
        self._lines = _Lines()
        self.writer = HistoryWriter(
            self._lines,
            Header(workload="simulation", seed=0, broker=("sim",), settings={"detection_s": 2 * knobs.lease_s + 20.0}),
        )
        self._make_nodes()

    def rng(self, name: str) -> random.Random:
        """Return the random stream of one part; it depends on seed and name only."""
        return random.Random(f"{self.seed}/{name}")

    # -- nodes

    def _make_nodes(self) -> None:
        knobs, offsets = self.knobs, self.rng("clocks")
        settings = RouterLimits(
            CLUSTER, knobs.partitions, knobs.shards, knobs.replicas, knobs.min_in_sync, knobs.lease_s,
            knobs.lease_margin_s, knobs.cached_topics_max, knobs.map_page_bytes, knobs.prune_late_s,
            self.rng("cluster").randbytes(16).hex(),
        )  # fmt: skip
        members = {f"r{number}": f"r{number}:1" for number in range(1, knobs.routers + 1)}

        def offset() -> float:
            return offsets.uniform(-500.0, 100_000.0) if knobs.clock_offsets else 0.0

        for number, name in enumerate(members, start=1):
            self.nodes[name] = RouterProcess(
                self.world, name, members, settings, knobs.raft, number * 1000 + 1, offset()
            )
        seeds = self.seeds = list(members.values())
        for number in range(1, knobs.storages + 1):
            name = f"s{number}"
            self.nodes[name] = StorageProcess(
                self.world, name, seeds, knobs.partition, knobs.disk, f"{self.seed}/disk/{name}", offset()
            )
        hot = replace(knobs.hot, partitions=knobs.partitions)
        for number in range(1, knobs.edges + 1):
            name = f"e{number}"
            self.nodes[name] = EdgeProcess(self.world, name, seeds, knobs.edge, hot, offset(), has_users=knobs.users)
        for name, node in self.nodes.items():
            node.ended = lambda name=name: self._ended(name)  # type: ignore[method-assign,misc]
            node.stopped = lambda name=name: self.kill(name)  # type: ignore[method-assign,misc]
            if isinstance(node, StorageProcess):
                node.failed = node.ended  # type: ignore[method-assign]
                node.holds_last_copy = lambda name=name: self._holds_last_copy(name)  # type: ignore[method-assign,misc]

    def node(self, name: str) -> NodeProcess:
        return self.nodes[name]

    def router(self, name: str = "r1") -> RouterProcess:
        node = self.nodes[name]
        assert isinstance(node, RouterProcess)
        return node

    def storage(self, name: str = "s1") -> StorageProcess:
        node = self.nodes[name]
        assert isinstance(node, StorageProcess)
        return node

    def edge(self, name: str = "e1") -> EdgeProcess:
        node = self.nodes[name]
        assert isinstance(node, EdgeProcess)
        return node

    # -- lives

    def start(self, name: str, *, proof: bool = True) -> None:
        """Start the next incarnation of a node.

        Args:
            name: The node.
            proof: Its former process provably ended (by the lock on its folder); otherwise its lease decides.
        """
        node = self.nodes[name]
        if node.up:
            return
        self.down.discard(name)
        self._incarnations += 1
        incarnation = self._incarnations
        former = self._last.get(name, 0) if proof else 0
        self._last[name] = incarnation
        self.network.refuse_silent(name)
        self.scheduler.note(f"{name} starts as incarnation {incarnation}")
        node.start(incarnation, former, f"{self.seed}/{name}/{incarnation}")

    def kill(self, name: str, *, power: bool = False) -> None:
        """Kill -9, or power loss, without an automatic restart."""
        self.down.add(name)
        self.stopping.discard(name)
        self.nodes[name].kill(power=power)

    def stop(self, name: str) -> None:
        """SIGTERM: the node ends in order, without an automatic restart."""
        if self.nodes[name].up:
            self.down.add(name)
            self.stopping.add(name)
            self.nodes[name].stop()

    def start_anew(self, name: str) -> None:
        """Start a node, after a second SIGTERM if it is still stopping."""
        if name in self.stopping and self.nodes[name].up:
            self.kill(name)
        self.start(name)

    def _ended(self, name: str) -> None:
        """Restart a process whose incarnation the map ended, or whose disk failed."""
        if isinstance(self.nodes[name], EdgeProcess):
            self.mark(Kind.KILL, name, "ended by the map")  # clients see the same end of their connections
        self.nodes[name].kill()
        self.scheduler.after(RESTART_S, self._restart, name)

    def _holds_last_copy(self, name: str) -> bool:
        """Whether the newest map has no other in-sync replica of a partition."""
        routers = [node for node in self.nodes.values() if isinstance(node, RouterProcess)]
        newest = max((node.core.machine.map for node in routers), key=lambda one: one.epoch)
        return any(placement.in_sync == (name,) for placement in newest.partitions)

    def _restart(self, name: str) -> None:
        if name not in self.down:
            self.start(name)

    def add_hostile_router(self) -> None:
        """Add the address of a router outside the group to every node's list of seeds."""
        self.seeds.append("r8:1")

    def start_hostile(self) -> None:
        """Start the hostile nodes; they are not in ``nodes``, from which faults choose."""
        strangers = [
            UnregisteredProcess(self.world, self, self.rng(f"hostile {tier}"), tier)
            for tier in (TIER_ROUTER, TIER_STORAGE, TIER_EDGE)
        ]
        self.hostile = [HostileProcess(self.world, self, self.rng("hostile")), *strangers]
        self.hostile_watch = HostileWatch(self, strangers)
        for node in self.hostile:
            self.start_hostile_node(node)

    def start_hostile_node(self, node: HostileNode) -> None:
        """Start the next incarnation of a hostile node."""
        self._incarnations += 1
        self.network.refuse_silent(node.node)
        self.scheduler.note(f"{node.node} starts as hostile incarnation {self._incarnations}")
        node.start(self._incarnations)

    def start_all(self) -> None:
        """Start all nodes and wait until the edges serve.

        Raises:
            AssertionError: They do not serve within READY_MAX_S.
        """
        for name in self.nodes:
            self.start(name)
        until = self.scheduler.now + READY_MAX_S
        while not self.ready():
            assert self.scheduler.now < until, "the cluster does not become ready"
            self.run(0.05)

    def ready(self) -> bool:
        """True if every running edge serves clients."""
        return all(node.core.ready for node in self.nodes.values() if isinstance(node, EdgeProcess) and node.up)

    # -- clients

    def client(
        self, process: str, options: ClientOptions | None = None, client_id: str = "", kind: type[SimClient] = SimClient
    ) -> SimClient:
        """Return a new client program."""
        client = kind(self.world, self.writer, process, client_id or process, options or ClientOptions())
        self.clients[process] = client
        return client

    # -- time

    def run(self, seconds: float) -> None:
        """Advance the time."""
        self.scheduler.run_until(self.scheduler.now + seconds)

    def until(self, condition: object, within_s: float = 10.0) -> None:
        """Run until a condition (a callable) holds.

        Raises:
            AssertionError: The condition does not hold within the time.
        """
        assert callable(condition)
        end = self.scheduler.now + within_s
        while not condition():
            assert self.scheduler.now < end, f"not within {within_s} s"
            self.run(0.01)

    # -- history

    def mark(self, kind: Kind, target: str = "", reason: str = "") -> None:
        """Record a fault in the history."""
        self.writer.event(int(self.scheduler.now * 1e9), kind, target=target, reason=reason)

    def judge(self) -> HistoryVerdict:
        """Stop waiting for the clients and check the whole history."""
        self.mark(Kind.DRAINED)
        for client in self.clients.values():
            client.give_up()
        return judge(parse_history(b"".join(self._lines.lines)))

    def history(self) -> bytes:
        """Return the history in its file format."""
        return b"".join(self._lines.lines)
