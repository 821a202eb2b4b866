"""Subscriptions to many topics stall no node: leases are kept, and an honest pair keeps its latency.

Real processes and sockets, one attack after the other. The pair's messages go to a stored session at another edge,
every other one on a new topic: so each tier is part of its round trips. Scheduling delays of the nodes and the pair
are subtracted, so other work on the machine does not count as a stall.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mqtt.packets import Puback, Publish
from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient
from tests.e2e.hostile_clients import publish
from tests.e2e.hostile_subscribers import Attacker, topic
from tests.e2e.local_cluster import LocalCluster, local_cluster

CLIENTS = "tests.e2e.hostile_subscribers"
ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
WINDOW = 500  # messages of the filling publisher that wait for PUBACK
ATTEMPTS = 3  # of an attack under which the pair was slow, as on a busy machine
CLOCK_S = 0.001  # the finest meaningful latency after subtraction of scheduling delays
STORAGE_S = 0.05  # the storage node of a stored session also finds and sends retained messages
PAUSE_S = 0.004  # between two messages of the pair


@dataclass(frozen=True)
class Scale:
    """Counts, times and limits of one run."""

    retained: int
    cached: int
    filters: int
    leavers: int
    seconds: float  # duration of one attack
    groups: int
    topics: int  # of the groups
    flood_s: float
    calm_s: float  # measured before each attack
    after_s: float  # measured when the attackers have done
    allowance_s: float  # that a machine with other work may add
    growth_max: int


# The default limit is half a second, since other tests run at the same time; the slow run uses the real limit.
DEFAULT = Scale(1_500, 1_500, 1_000, 200, 2.0, 200, 500, 1.0, 1.0, 0.3, 0.5, 128 * MIB)
LARGE = Scale(300_000, 65_536, 1_000, 1_000, 5.0, 1_000, 65_536, 120.0, 3.0, 5.0, 0.02, 256 * MIB)


class Pair:
    """A publisher at the first edge and a stored session at the second one."""

    def __init__(self, ports: list[int], pids: list[int]) -> None:
        self._pids = pids
        self.publisher, self.subscriber = (BlockingClient(port, 5, 60) for port in ports)
        self.publisher.open("honest-0")
        self.subscriber.open("honest-1", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 3600})
        self.subscriber.subscribe("honest/+")
        self.number = 0
        self.longest_s = 0.0  # by the clock

    def round_trip_s(self) -> float:
        """Send one message; return the time until it arrived and both sides have their acknowledgements."""
        self.number += 1
        waited = self._waited_s()
        topic_name = f"honest/{self.number}" if self.number % 2 else "honest/same"
        identifier, payload = self.publisher.next_identifier(), str(self.number).encode()
        began = time.monotonic()
        self.publisher.send(Publish(topic_name, payload, 1, packet_identifier=identifier))
        assert self.subscriber.take().payload == payload
        puback = self.publisher.read()
        assert isinstance(puback, Puback) and puback.packet_identifier == identifier, puback
        wall_s = time.monotonic() - began
        self.longest_s = max(self.longest_s, wall_s)
        return max(0.0, wall_s - (self._waited_s() - waited))

    def _waited_s(self) -> float:
        """Return the time that these processes waited for a CPU; 0 if the kernel does not report it."""
        with suppress(FileNotFoundError):
            paths = [Path(f"/proc/{pid}/schedstat") for pid in self._pids] + [Path("/proc/thread-self/schedstat")]
            return sum(int(path.read_text().split()[1]) for path in paths) / 1e9
        return 0.0

    def latencies_s(self, until: threading.Event, after_s: float) -> list[float]:
        """Go on until an event, and some more."""
        found, end = [], float("inf")
        while time.monotonic() < end:
            found.append(self.round_trip_s())
            if end == float("inf") and until.is_set():
                end = time.monotonic() + after_s
            time.sleep(PAUSE_S)
        return found


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def fill(ports: list[int], scale: Scale) -> None:
    """Publish retained messages, whose topics the first edge caches up to its limit; then the other edges likewise."""
    client = Attacker(ports[0], b"fill")
    for start in range(0, scale.retained, WINDOW):
        numbers = range(start, min(scale.retained, start + WINDOW))
        messages = [publish(topic(number), b"x", 1, number - start + 1) for number in numbers]
        client.send(b"".join(bytes([message[0] | 1]) + message[1:] for message in messages))
        client.wait(0x40, len(numbers))
    client.cut()
    for port in ports[1:]:
        client = Attacker(port, b"fill")
        for start in range(0, scale.cached, WINDOW):
            client.send(b"".join(publish(topic(number), b"x") for number in range(start, start + WINDOW)) + b"\xc0\0")
            client.wait(0xD0)
        client.cut()


@contextmanager
def ends(process: "subprocess.Popen[str]", seconds: float) -> Iterator[None]:
    """Kill a process that lasts longer than it may, or is left behind."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            process.kill()


def attack(pair: Pair, ports: list[int], scale: Scale, kind: str, count: int, seconds: float) -> dict[str, Any]:
    """Measure the pair in calm and under one attack."""
    command = [sys.executable, "-m", CLIENTS, kind, ",".join(map(str, ports))]
    command += [str(count), str(scale.topics), str(seconds)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as hostile,
        ends(hostile, 300),
    ):
        assert hostile.stdin is not None and hostile.stdout is not None
        assert hostile.stdout.readline() == "ready\n"
        calm_over, over, output = threading.Event(), threading.Event(), []
        calm_over.set()
        calm = pair.latencies_s(calm_over, scale.calm_s)

        def listen() -> None:
            assert hostile.stdout is not None
            output.append(hostile.stdout.readline())
            over.set()

        listener = threading.Thread(target=listen)
        listener.start()
        pair.longest_s = 0.0
        print("go", file=hostile.stdin, flush=True)
        attacked = pair.latencies_s(over, scale.after_s)
        listener.join()
    figures = {"calm_ms": p99(calm) * 1e3, "attacked_ms": p99(attacked) * 1e3, "clock_ms": pair.longest_s * 1e3}
    figures |= {"samples": len(attacked), "ratio": p99(attacked) / max(p99(calm), CLOCK_S)}
    return figures | (json.loads(output[0]) if output[0] else {"failed": True})


def lives(cluster: LocalCluster) -> dict[str, Any]:
    """Return the values that change when a node dies or is suspected dead."""
    status = cluster.admin("cluster", "status")
    nodes = {node["node"]: (node["state"], node["incarnation"], node["primaries"]) for node in status["nodes"]}
    pids = {name: node["pid"] for name, node in cluster.state["nodes"].items()}
    return {"map_epoch": status["map_epoch"], "nodes": nodes, "pids": pids}


def resident_bytes(cluster: LocalCluster, node: str) -> int:
    status = Path(f"/proc/{cluster.pid(node)}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def judge(scale: Scale, storages: int) -> None:
    """Run all attacks against one cluster."""
    began = time.monotonic()
    with local_cluster("--routers", "1", "--storages", str(storages), "--edges", "2") as cluster:
        ports = [cluster.port(edge, "plain") for edge in range(2)]
        print(f"started after {time.monotonic() - began:.1f} s")
        fill(ports, scale)
        pair = Pair(ports, [int(node["pid"]) for node in cluster.state["nodes"].values()])
        print(f"filled after {time.monotonic() - began:.1f} s")
        before = lives(cluster)
        slow: dict[str, list[str]] = {}
        done: dict[str, int] = {}
        attacks = [
            ("filters", scale.filters, scale.seconds, scale.allowance_s),
            ("stored_filters", scale.filters, scale.seconds, scale.allowance_s + STORAGE_S),
            ("leavers", scale.leavers, 0.0, scale.allowance_s),
            ("comers_and_goers", 1, scale.seconds, scale.allowance_s),
            ("groups", scale.groups, scale.flood_s, scale.allowance_s),
        ]
        for kind, count, seconds, allowance_s in (one for one in attacks for _ in range(ATTEMPTS)):
            if kind in done and len(slow.get(kind, ())) < done[kind]:
                continue  # a real stall is there each time
            done[kind] = done.get(kind, 0) + 1
            memory = [resident_bytes(cluster, f"edge-{edge}") for edge in range(2)]
            figures = attack(pair, ports, scale, kind, count, seconds)
            growth = [resident_bytes(cluster, f"edge-{edge}") - memory[edge] for edge in range(2)]
            shown = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
            print(f"{kind}: {shown}; edges +{growth[0] / MIB:.0f} and +{growth[1] / MIB:.0f} MiB")
            assert "failed" not in figures, kind
            assert max(growth) < scale.growth_max, (kind, growth)
            if figures["attacked_ms"] >= 2 * figures["calm_ms"] + allowance_s * 1e3:
                slow.setdefault(kind, []).append(shown)
        assert lives(cluster) == before
        pair.round_trip_s()
    print(f"{time.monotonic() - began:.1f} s in all")
    assert not [kind for kind, shown in slow.items() if len(shown) == ATTEMPTS], slow


def test_no_subscriber_stalls_a_node() -> None:
    """Thousands of topics."""
    judge(DEFAULT, 1)


@pytest.mark.slow
@pytest.mark.parametrize("storages", [1, 3])
def test_no_subscriber_stalls_a_node_with_many_topics(storages: int) -> None:
    """As many topics as an edge caches, and several times as many retained ones."""
    judge(LARGE, storages)
