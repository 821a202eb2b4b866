"""``python -m tests.gateways.bridges.cluster_fault_run``: a bridge between a cluster and a Mosquitto, under faults.

The edge of the bridge's connection and the storage node that is primary of its session are killed; the links to the
other broker and to the cluster are cut, and the former is slow and stalls. Publishers and subscribers on both sides
record one history, one direction each way. The history checker verifies it: no loss, order in each topic, and with
exactly-once no repeat.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from conf.errors import UserError
from stratamq.cli.node_requests import ask_links
from stratamq.history.check import judge
from stratamq.history.client import Address, RecordingClient
from stratamq.history.client_options import ClientOptions
from stratamq.history.history import read_history
from stratamq.history.operations import Header, Kind, OperationPhase
from stratamq.history.writer import HistoryWriter
from tests.chaos.fault_proxy import TcpFaultProxy
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.gateways.bridges.fault_run import BridgeProcess, Clock, Outcome, settings
from tests.stratamq.history.mosquitto import running_mosquitto

__all__ = ["ClusterFaults", "cluster_fault_run"]

SHAPE = ("--routers", "3", "--storages", "3", "--edges", "3")
BRIDGE = "under-test"
BOTH_WAYS = '"f/# out 2", "g/# in 2"'
UNHEALTHY = ("partitions_without_primary", "partitions_under_replicated", "partitions_unplaced", "shards_collecting")
WHOLE_S_MAX = 60.0
MOVED_S_MAX = 60.0  # for both directions to deliver a message after a fault
DRAIN_S = 30.0  # without a new message
GAP_S = 0.02  # between two messages of one publisher
TOPICS = 4
IN_FLIGHT_MAX = 200  # messages of a direction in flight
OPEN_S = 2.0  # a message received this long before a fault may have been open at it


@dataclass(frozen=True)
class ClusterFaults:
    """Faults of a run.

    Attributes:
      edge_kills: kill -9 of the edge of the bridge's connection.
      primary_kills: kill -9 of the storage node that is primary of the bridge's session.
      cuts: Cuts of the link to the other broker.
      near_cuts: Cuts of the links to all edges.
      cut_s: Their duration.
      slow_s: Duration of a slow phase: each way takes 200 ms, and 5 % of the writes stall for 0.2 to 3 s.
      slow_link: Whether the link is slow.
    """

    edge_kills: int = 0
    primary_kills: int = 0
    cuts: int = 0
    near_cuts: int = 0
    cut_s: float = 30.0
    slow_link: bool = False
    slow_s: float = 20.0


@dataclass
class Received:
    """Messages received on one side.

    Attributes:
      at: Payload -> time of each arrival.
      latest: Time of the last arrival.
    """

    at: dict[str, list[float]] = field(default_factory=dict)
    latest: float = 0.0

    def take(self, _client: RecordingClient, _topic: str, payload: str, _retain: bool) -> None:
        self.latest = time.monotonic()
        self.at.setdefault(payload, []).append(self.latest)


@dataclass
class Links:
    """The bridge's links.

    Attributes:
      near: To each edge.
      far: To the other broker.
    """

    near: list[TcpFaultProxy]
    far: TcpFaultProxy

    def of(self, fault: str) -> list[TcpFaultProxy]:
        """Return the links that a fault cuts."""
        return [self.far] if fault == "cut" else self.near


class FaultRun:
    """One run: reconnecting clients, the bridge, and the faults."""

    def __init__(
        self, nursery: trio.Nursery, writer: HistoryWriter, cluster: LocalCluster, bridge: BridgeProcess, seed: int
    ) -> None:
        self.cluster, self.bridge = cluster, bridge
        self.seen = {"f": Received(), "g": Received()}
        self.sent = {"f": 0, "g": 0}
        self.clock = Clock()
        self.faults: list[tuple[float, float]] = []  # start and end
        self.publishers: list[RecordingClient] = []
        self._nursery, self._writer = nursery, writer
        self._rng, self._seed = random.Random(seed), seed
        self._working = True

    def client(self, name: str, addresses: tuple[Address, ...], seen: Received) -> RecordingClient:
        options, rng = ClientOptions(silence_s=10.0), random.Random(f"{self._seed}/{name}")
        return RecordingClient(self._nursery, self._writer, self.clock, name, name, addresses, rng, options, seen.take)

    async def subscribe(self, name: str, addresses: tuple[Address, ...], letter: str) -> None:
        """Run a subscriber of one direction; return when it is subscribed."""
        await self._nursery.start(self._keep_connected, self.client(name, addresses, self.seen[letter]), f"{letter}/#")

    async def publish(self, name: str, addresses: tuple[Address, ...], letter: str, qos: int) -> None:
        """Run a publisher of one direction."""
        publisher = self.client(name, addresses, Received())
        self.publishers.append(publisher)
        await self._nursery.start(self._keep_connected, publisher, "")
        self._nursery.start_soon(self._publish, publisher, letter, qos)

    async def _keep_connected(
        self, client: RecordingClient, wanted: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep a client connected, and subscribed."""
        is_granted = is_started = False
        while True:
            if not await client.connect():
                await trio.sleep(0.1)
                continue
            if wanted and not (is_granted and client.session_present):
                pending = client.subscribe(wanted, 2)
                is_granted = pending is not None and await client.outcome(pending) is OperationPhase.OK
            if not is_started and (is_granted or not wanted):
                is_started = True
                task_status.started()
            await client.wait_ended()

    async def _publish(self, publisher: RecordingClient, letter: str, qos: int) -> None:
        while self._working:
            if self.sent[letter] - len(self.seen[letter].at) >= IN_FLIGHT_MAX:
                await trio.sleep(GAP_S)
                continue
            self.sent[letter] += 1
            number = self.sent[letter]
            await publisher.publish(f"{letter}/{number % TOPICS}", f"{letter}-{number}", qos)
            await trio.sleep(GAP_S)

    async def fault(self, fault: str, links: Links, faults: ClusterFaults) -> None:
        """Cause one fault, and wait until both directions deliver again."""
        await trio.sleep(self._rng.uniform(0.2, 1.0))
        node = await self._node(fault)
        began = time.monotonic()
        self._writer.event(self.clock.now_ns(), Kind.KILL if node else Kind.FAULT, target=node, reason=fault)
        if fault in ("cut", "near cut"):
            for link in links.of(fault):
                link.cut()
            await trio.sleep(faults.cut_s)
            for link in links.of(fault):
                link.heal()
            slow_down(links.far, faults)
        elif fault == "slow":
            await trio.sleep(faults.slow_s)
        else:
            former = self.cluster.pid(node)
            self.cluster.kill(node)
            await self._wait_recovered(node, former)
        with trio.fail_after(MOVED_S_MAX):
            done = {letter: len(seen.at) for letter, seen in self.seen.items()}
            while not all(len(seen.at) > done[letter] for letter, seen in self.seen.items()):
                await trio.sleep(0.01)
        self._writer.event(self.clock.now_ns(), Kind.RESTART if node else Kind.HEAL, target=node)
        self.faults.append((began, time.monotonic()))

    async def _node(self, fault: str) -> str:
        """Return the node that a fault kills: "" for a link fault."""
        if fault not in ("edge", "primary"):
            return ""
        with trio.fail_after(WHOLE_S_MAX):
            while True:
                shown = await trio.to_thread.run_sync(self.cluster.admin, "client", "show", BRIDGE)
                connection: dict[str, Any] = shown["connection"] or {}
                found = connection.get("node") if fault == "edge" else shown["primary"]
                if found:
                    return str(found)
                await trio.sleep(0.1)

    async def _wait_recovered(self, node: str, former: int) -> None:
        with trio.fail_after(WHOLE_S_MAX):
            while not self.cluster.is_started_again(node, former):
                await trio.sleep(0.05)
            while not await trio.to_thread.run_sync(self._is_recovered):
                await trio.sleep(0.1)

    def _is_recovered(self) -> bool:
        try:
            reply = ask_links("cluster status", {}, "", self.cluster.data)
        except UserError:
            return False
        return reply.ok and not any(reply.result[name] for name in UNHEALTHY)

    async def drain(self) -> None:
        """Stop publishing; wait until all messages arrived, or none arrives for DRAIN_S."""
        self._working = False
        since = time.monotonic()
        while any(each.session.outbound for each in self.publishers) or any(
            len(self.seen[letter].at) < count for letter, count in self.sent.items()
        ):
            if time.monotonic() - max(since, *(seen.latest for seen in self.seen.values())) > DRAIN_S:
                break
            await trio.sleep(0.05)
        await trio.sleep(1.0)  # for repeats
        self._writer.event(self.clock.now_ns(), Kind.DRAINED)

    def repeats(self) -> tuple[int, int]:
        """Return the number of repeated messages, and of those not explained by a fault."""
        twice = [times for seen in self.seen.values() for times in seen.at.values() if len(times) > 1]
        unexplained = [
            times
            for times in twice
            if not any(times[0] - OPEN_S < ended and began < times[-1] + OPEN_S for began, ended in self.faults)
        ]
        return len(twice), len(unexplained)


def slow_down(proxy: TcpFaultProxy, faults: ClusterFaults) -> None:
    """Slow a link down if the run requires it."""
    if faults.slow_link:
        for direction in (proxy.to_server, proxy.to_client):
            direction.set(delay_s=0.2, stall=0.05, stall_min_s=0.2, stall_max_s=3.0)


async def cluster_fault_run(
    folder: Path, faults: ClusterFaults, *, qos: int = 1, lines: str = "", seed: int = 1, copies: int = 3
) -> Outcome:
    """Run until every fault has happened and all messages have arrived.

    Args:
      folder: Of the files.
      faults: Faults to cause.
      qos: Of the publishes.
      lines: Further settings of the bridge.
      copies: Of each partition of the cluster.
    """
    (folder / "far").mkdir()
    with (
        local_cluster(*SHAPE, "--set", f"router.replicas={copies}") as cluster,
        (folder / "history.jsonl").open("wb") as sink,
    ):
        writer = HistoryWriter(sink, Header(workload="bridge", seed=seed, broker=("cluster", "far")))
        async with running_mosquitto(folder / "far") as far, trio.open_nursery() as nursery:
            edges = [cluster.port(number, "plain") for number in range(3)]
            links = Links(
                [TcpFaultProxy(("127.0.0.1", port), seed, f"near-{port}") for port in edges],
                TcpFaultProxy(("127.0.0.1", far.port), seed),
            )
            addresses = [await nursery.start(link.run) for link in links.near]
            bridge = BridgeProcess(folder, settings(addresses, await nursery.start(links.far.run), lines, BOTH_WAYS))
            run_state = FaultRun(nursery, writer, cluster, bridge, seed)
            bridge.start()
            try:
                await _work(run_state, links, faults, edges, far.port, qos, seed)
            finally:
                bridge.kill()
            nursery.cancel_scope.cancel()
    verdict = judge(read_history(folder / "history.jsonl"))
    repeats, unexplained = run_state.repeats()
    received = sum(len(seen.at) for seen in run_state.seen.values())
    return Outcome(verdict, sum(run_state.sent.values()), received, repeats, unexplained)


async def _work(
    run_state: FaultRun, links: Links, faults: ClusterFaults, edges: list[int], far: int, qos: int, seed: int
) -> None:
    await run_state.bridge.ready()
    near = tuple(("127.0.0.1", port) for port in edges)
    await run_state.subscribe("subscriber-far", (("127.0.0.1", far),), "f")
    await run_state.subscribe("subscriber-near", near, "g")
    await run_state.publish("publisher-near", near, "f", qos)
    await run_state.publish("publisher-far", (("127.0.0.1", far),), "g", qos)
    slow_down(links.far, faults)
    wanted = ["edge"] * faults.edge_kills + ["primary"] * faults.primary_kills + ["cut"] * faults.cuts
    wanted += ["near cut"] * faults.near_cuts + ["slow"] * faults.slow_link
    random.Random(seed).shuffle(wanted)
    for number, fault in enumerate(wanted):
        await run_state.fault(fault, links, faults)
        began, ended = run_state.faults[-1]
        print(f"{number + 1} of {len(wanted)}: {fault}, resumes after {ended - began:.1f} s", flush=True)
    links.far.heal()
    await run_state.drain()


def main() -> int:
    """Run with the counts of the command line; exit code 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edge-kills", type=int, default=20)
    parser.add_argument("--primary-kills", type=int, default=10)
    parser.add_argument("--link", action="store_true", help="slow, with stalls")
    parser.add_argument("--cuts", type=int, default=0, help="of 30 s, of the link to the other broker")
    parser.add_argument("--near-cuts", type=int, default=0, help="of 30 s, of the links to the cluster")
    parser.add_argument("--copies", type=int, default=3, help="of each partition of the cluster")
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder that keeps the history and the log")
    options = parser.parse_args()
    lines, qos = ("exactly_once = true", 2) if options.exactly_once else ("", 1)
    faults = ClusterFaults(
        options.edge_kills, options.primary_kills, options.cuts, options.near_cuts, slow_link=options.link
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)

        async def run() -> Outcome:
            return await cluster_fault_run(
                folder, faults, qos=qos, lines=lines, seed=options.seed, copies=options.copies
            )

        outcome = trio.run(run)
    print(f"published {outcome.published}, received {outcome.received}, repeats {outcome.repeats}", end=", ")
    print(f"{outcome.unexplained} of them unexplained")
    for finding in outcome.verdict.findings[:20]:
        print(finding.message)
    return 0 if outcome.verdict.clean and outcome.received == outcome.published and not outcome.unexplained else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    sys.exit(main())
