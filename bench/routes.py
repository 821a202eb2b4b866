"""Measure the route shards: lookups, registrations, memory, takeover; in one process, messages as on the wire.

A router process's core and, for AddRoutes, three edges that cache topics and acknowledge invalidations. Links and TLS
are omitted. Times are CPU seconds, independent of other load. ``--suback`` measures
SUBACK at a real cluster instead.
"""

import argparse
import gc
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.hot import build_mqload
from router.core import RouterCore
from router.events import Applied, RoleChanged, RoundEnded
from router.map.commands import Bootstrap, RegisterNode, encode_command
from router.settings import RouterLimits
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.routes import (
    AddRoutes,
    Invalidate,
    Invalidated,
    ReportRoutes,
    Resolve,
    RouteEntry,
    RoutesAdded,
    SenderReport,
)
from wire.node.events import FrameArrived
from wire.node.process import collect_rarely

EDGES = tuple(PeerKey(f"edge-{number}", "edge", 1) for number in range(3))
SHARDS = 64


class Router:
    """A router that owns every shard, with three edges that have reported no routes."""

    def __init__(self, *, collect: bool = True, utc: Callable[[], float] = lambda: 0.0) -> None:
        self.core = RouterCore(NodeEntry("r1", "router", 1, "h:1"), RouterLimits(lease_s=60.0), utc=utc)
        self.now = 1.0
        self.edges: list[tuple[str, Control]] = []
        self.core.handle(self.now, [Applied(encode_command(Bootstrap("c", 1, SHARDS, 1, 1, 60.0)))])
        for key in (*EDGES, PeerKey("r1", "router", 1)):
            entry = NodeEntry(key.node, key.tier, key.incarnation, "h:1")
            self.core.handle(self.now, [Applied(encode_command(RegisterNode(entry)))])
        self.core.handle(self.now, [RoleChanged(True, "r1")])
        for _ in range(3):  # its own heartbeat
            self.now += 1.0
            ready = self.core.handle(self.now, [])
            self.core.handle(self.now, [RoundEnded(context, True) for context in ready.rounds])
        if collect:
            for number in range(SHARDS):
                for key in EDGES:
                    self.tell(key, ReportRoutes(number, self.epoch(number), [SenderReport(-1, 1, 1, [])]))
                    self.tell(key, Resolve(1, number, self.epoch(number), [], True))
            self.acknowledge()

    def epoch(self, shard: int) -> int:
        return self.core.machine.map.shards[shard].epoch

    def shard(self, topic: str) -> int:
        return self.core.machine.map.shard_for_topic(topic)

    def tell(self, peer: PeerKey, *messages: Control) -> list[Control]:
        """Process messages as frames; return the decoded output."""
        frames = [FrameArrived(peer, FrameKind.CONTROL, encode_control(message)) for message in messages]
        sent = [(node, decode_control(payload)) for node, _, payload in self.core.handle(self.now, list(frames)).sends]
        self.edges += [(node, message) for node, message in sent if isinstance(message, Invalidate)]
        return [message for _, message in sent]

    def acknowledge(self) -> int:
        """Let the edges acknowledge; return how many AddRoutes are answered by that."""
        answered = 0
        orders, self.edges = self.edges, []
        for node, message in orders:
            assert isinstance(message, Invalidate)
            key = next(key for key in EDGES if key.node == node)
            answers = self.tell(key, Invalidated(message.number, message.shard, message.shard_epoch))
            answered += sum(1 for answer in answers if isinstance(answer, RoutesAdded))
        return answered


def by_shard(router: Router, topics: list[str]) -> dict[int, list[str]]:
    """Return the topics of each shard."""
    placed: dict[int, list[str]] = {}
    for topic in topics:
        placed.setdefault(router.shard(topic), []).append(topic)
    return placed


def lookups(count: int) -> float:
    """Return topics answered per second, 100 in a message, each matched by one filter of four levels."""
    router = Router()
    topics = [f"site-{number % 5000}/line/{number}/temperature" for number in range(count)]
    for shard, some in by_shard(router, [f"site-{number}/line/+/temperature" for number in range(5000)]).items():
        router.tell(EDGES[0], AddRoutes(1, shard, router.epoch(shard), -1, 1, 1, [RouteEntry(name) for name in some]))
    requests = [
        (shard, some[at : at + 100])
        for shard, some in by_shard(router, topics).items()
        for at in range(0, len(some), 100)
    ]
    began = time.process_time()
    for shard, some in requests:
        router.tell(EDGES[1], Resolve(2, shard, router.epoch(shard), some))
    return count / (time.process_time() - began)


def registrations(count: int, batch: int) -> float:
    """Return filters registered per second while three edges cache a topic that each filter matches."""
    router = Router()
    topics = [f"device-{number}/state" for number in range(count)]
    for shard, some in by_shard(router, topics).items():
        for key in EDGES:
            router.tell(key, Resolve(2, shard, router.epoch(shard), some))
    requests = [
        (shard, some[at : at + batch])
        for shard, some in by_shard(router, topics).items()
        for at in range(0, len(some), batch)
    ]
    answered = 0
    began = time.process_time()
    for number, (shard, some) in enumerate(requests):
        routes = [RouteEntry(name) for name in some]
        answered += (
            len(router.tell(EDGES[0], AddRoutes(number, shard, router.epoch(shard), -1, 1, number, routes))) == 1
        )
        router.acknowledge()
    assert not router.edges
    return count / (time.process_time() - began)


def take_over(count: int) -> dict[str, float]:
    """Return a new shard owner's time for a report of this many filters, and their cost."""
    router = Router(collect=False)
    before = _resident_bytes()
    names = by_shard(router, [f"customer-{number % 20000}/device/{number}/command" for number in range(count)])
    frames = []
    for shard, some in names.items():
        pieces = [some[at : at + 5000] for at in range(0, len(some), 5000)]
        reports = [
            SenderReport(-1, 1, 1, [RouteEntry(name) for name in piece], at == 0, at == len(pieces) - 1)
            for at, piece in enumerate(pieces)
        ]
        for report in reports:
            frames.append((shard, encode_control(ReportRoutes(shard, router.epoch(shard), [report]))))
    del names
    began = time.process_time()
    for _, payload in frames:
        router.core.handle(router.now, [FrameArrived(EDGES[0], FrameKind.CONTROL, payload)])
    for shard in range(SHARDS):
        for key in EDGES[1:]:
            router.tell(key, ReportRoutes(shard, router.epoch(shard), [SenderReport(-1, 1, 1, [])]))
        for key in EDGES:
            router.tell(key, Resolve(1, shard, router.epoch(shard), [], True))
    router.acknowledge()
    spent = time.process_time() - began
    shards = router.core.shards.values()
    assert sum(shard.routes for shard in shards) == count
    assert not any(shard.collecting for shard in shards)
    frames.clear()
    gc.collect()
    grown = _resident_bytes() - before
    return {"seconds": round(spent, 2), "bytes_per_route": round(grown / count)}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def suback(count: int, load: int) -> dict[str, object]:
    """Return the time of SUBACK at a real cluster of three routers and three edges, idle or under a load.

    Args:
        count: SUBSCRIBEs, one after the other, each of a filter whose topic all three edges have cached.
        load: Messages per second (QoS 0) that cross from edge to edge meanwhile.
    """
    from tests.clients.blocking import BlockingClient
    from tests.e2e.local_cluster import local_cluster

    options = ("--routers", "3", "--storages", "1", "--edges", "3", "--plain-port", "0")
    with local_cluster(*options) as cluster, tempfile.TemporaryDirectory() as folder:
        ports = [cluster.port(edge, "plain") for edge in range(3)]
        time.sleep(1.0)
        for edge, port in enumerate(ports):  # every edge caches every topic, so the barrier has work
            publisher = BlockingClient(port, version=4)
            publisher.open(f"publisher-{edge}", keep_alive_s=0)
            for number in range(count):
                publisher.publish(f"barrier-{number}/x")
            publisher.close()
        generator = _generator(Path(folder), ports, load) if load else None
        time.sleep(1.0)
        client = BlockingClient(ports[0], version=4)
        client.open("subscriber", keep_alive_s=0)
        pids = {node: cluster.pid(node) for node in cluster.state["nodes"]}
        before = {node: _processor_s(pid) for node, pid in pids.items()}
        began = time.monotonic()
        waits = sorted(client.subscribe_each(f"barrier-{number}/x") for number in range(count))
        lasted = time.monotonic() - began
        spent = {node: _processor_s(pid) - before[node] for node, pid in pids.items()}
        client.close()
        if generator is not None:
            assert generator.poll() is None, "the load ended before its time"
            generator.terminate()
            generator.wait(30)
    tiers = {tier: sum(s for node, s in spent.items() if node.startswith(tier)) for tier in ("router", "edge")}
    return {
        "count": count,
        "load_messages_s": load,
        "p50_ms": round(waits[count // 2] * 1000, 2),
        "p99_ms": round(waits[int(count * 0.99)] * 1000, 2),
        "worst_ms": round(waits[-1] * 1000, 2),
        "seconds": round(lasted, 1),
        "cpu_ms_per_suback": {tier: round(seconds / count * 1000, 2) for tier, seconds in tiers.items()},
        "load_average": round(os.getloadavg()[0], 1),
    }


def _generator(folder: Path, ports: list[int], load: int) -> subprocess.Popen[bytes]:
    hosts = [word for port in ports for word in ("-H", f"127.0.0.1:{port}")]
    command = [str(build_mqload(folder)), *hosts, "-P", "10", "--cross", "-d", "600", "-r", str(load / 10)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routes", type=int, default=1_000_000)
    parser.add_argument("--suback", type=int, default=0, metavar="COUNT")
    parser.add_argument("--load", type=int, default=0, metavar="MESSAGES_S", help="with --suback: beside so many")
    arguments = parser.parse_args()
    if arguments.suback:
        print(json.dumps({"suback": suback(arguments.suback, arguments.load)}))
        return
    collect_rarely()
    result = {
        "take_over": take_over(arguments.routes),
        "lookups_topics_s": round(lookups(100_000)),
        "add_routes_filters_s_batch_1": round(registrations(10_000, 1)),
        "add_routes_filters_s_batch_20": round(registrations(20_000, 20)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
