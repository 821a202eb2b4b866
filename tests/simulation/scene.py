"""Helpers for schedule scripts: a running cluster, connected clients, names with a known placement."""

from dataclasses import replace
from typing import Any

from router.core import RouterCore
from router.map.commands import Command
from stratamq.history.operations import Kind
from tests.simulation.cluster import Cluster, Knobs
from tests.simulation.router_process import RouterProcess
from tests.simulation.sim_client import ClientOptions, SimClient
from wire.messages.cluster_map import ClusterMap

__all__ = ["EPHEMERAL", "Scene"]

EPHEMERAL = ClientOptions(clean_start=True, session_expiry_interval_s=0)


class Scene:
    """One scripted schedule on one cluster."""

    def __init__(self, seed: int = 1, **knobs: Any) -> None:
        knobs.setdefault("clock_offsets", False)
        self.cluster = Cluster(seed, replace(Knobs(), **knobs))
        self.cluster.start_all()
        self.network = self.cluster.network

    # -- the map

    def leader(self) -> str:
        """Return the leading router."""
        return next(name for name, core in self.routers().items() if core.leads)

    def routers(self) -> dict[str, RouterCore]:
        """Return the cores of the running routers, by name."""
        nodes = self.cluster.nodes.items()
        return {name: node.core for name, node in nodes if isinstance(node, RouterProcess) and node.up}

    @property
    def map(self) -> ClusterMap:
        """The newest map of a router."""
        return max((core.machine.map for core in self.routers().values()), key=lambda one: one.epoch)

    def name_on(self, storage: str, prefix: str) -> str:
        """Return a client ID, or a topic, whose partition has this primary."""
        for number in range(1_000):
            name = f"{prefix}{number}"
            if self.map.partitions[self.map.partition_for(name)].primary == storage:
                return name
        raise AssertionError(f"{storage} is primary of nothing")

    def topic_of(self, router: str) -> str:
        """Return a topic whose shard this router owns."""
        for number in range(1_000):
            if self.map.shards[self.map.shard_for_topic(f"t{number}/x")].owner == router:
                return f"t{number}/x"
        raise AssertionError(f"{router} owns no shard")

    def owner(self, topic: str) -> str:
        """Return the owner of a topic's shard."""
        return self.map.shards[self.map.shard_for_topic(topic)].owner

    def decide(self, command: Command) -> None:
        """Let the leader propose a command, as an operator or a plan step would; wait for its commit."""
        epoch = self.map.epoch
        leader = self.cluster.router(self.leader())
        leader.core.propose(command)
        leader.poke()
        self.until(lambda: self.map.epoch > epoch)

    def is_dead(self, node: str) -> bool:
        """Whether the map has a node as dead."""
        entry = self.map.nodes[node]
        return not entry.alive

    # -- clients

    def client(
        self,
        name: str,
        edge: str,
        options: ClientOptions | None = None,
        *filters: str,
        client_id: str = "",
        qos: int = 2,
    ) -> SimClient:
        """Return a connected and subscribed client."""
        client = self.cluster.client(name, options, client_id)
        self.connect(client, edge)
        for topic_filter in filters:
            self.subscribe(client, topic_filter, qos)
        return client

    def connect(
        self, client: SimClient, edge: str, within_s: float = 10.0, options: ClientOptions | None = None
    ) -> None:
        """Connect, with retries."""
        end = self.cluster.scheduler.now + within_s
        while not client.connected:
            assert self.cluster.scheduler.now < end, f"{client.process} cannot connect to {edge}"
            if not client.trying:
                client.connect(f"{edge}:2", options)
            self.cluster.run(0.01)

    def subscribe(self, client: SimClient, topic_filter: str, qos: int = 2, within_s: float = 10.0) -> None:
        """Subscribe and wait for SUBACK."""
        client.subscribe(topic_filter, qos)
        self.until(lambda: topic_filter in client.subscribed, within_s)

    def publish(self, client: SimClient, topic: str, payload: str, qos: int = 1, *, retain: bool = False) -> None:
        """Publish and wait for the acknowledgement."""
        assert client.publish(topic, payload, qos, retain=retain)
        self.until(lambda: not client.publishing)

    # -- time and faults

    def run(self, seconds: float) -> None:
        """Advance the time."""
        self.cluster.run(seconds)

    def until(self, condition: Any, within_s: float = 10.0) -> None:
        """Run until a condition holds."""
        self.cluster.until(condition, within_s)

    def cut(self, one: str, other: str) -> None:
        """Jam both directions between two hosts."""
        self.network.jam(one, other)
        self.network.jam(other, one)

    def heal(self, one: str, other: str) -> None:
        """End the cut."""
        self.network.release(one, other)
        self.network.release(other, one)

    def isolate(self, one: str, others: Any) -> None:
        """Cut a host from others."""
        for other in others:
            if other != one:
                self.cut(one, other)

    def rejoin(self, one: str, others: Any) -> None:
        """Heal the cuts."""
        for other in others:
            if other != one:
                self.heal(one, other)

    def kill(self, *names: str, power: bool = False) -> None:
        """Kill nodes, and record it in the history."""
        for name in names:
            self.cluster.mark(Kind.KILL, name)
            self.cluster.kill(name, power=power)

    def start(self, *names: str, proof: bool = True) -> None:
        """Restart nodes."""
        for name in names:
            self.cluster.start(name, proof=proof)

    def judge(self) -> None:
        """Check the whole history with every checker."""
        self.run(3.0)
        verdict = self.cluster.judge()
        assert verdict.clean, [f"{finding.checker}: {finding.message}" for finding in verdict.findings]
