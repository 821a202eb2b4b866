"""Hundreds of hostile connections: an honest pair keeps its latency, and the edge's memory stays within its bounds."""

import json
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.blocking import BlockingClient
from tests.e2e.hostile_clients import KINDS, LATE_S, THROWN_OUT, publish
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S
from tests.turn_time import assert_within, timed

CLIENTS = "tests.e2e.hostile_clients"
ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


class Pair:
    """A publisher and a subscriber that behave."""

    def __init__(self, port: int) -> None:
        self.publisher, self.subscriber = BlockingClient(port, 5, PATIENCE_S), BlockingClient(port, 5, PATIENCE_S)
        self.publisher.open("honest-0")
        self.subscriber.open("honest-1")
        self.subscriber.subscribe("honest/+", qos=0)

    def round_trip_s(self, number: int) -> float:
        """Send one message and return when it has come."""
        message = publish(b"honest/x", struct.pack(">I", number) * 16)
        began = time.monotonic()
        self.publisher.send(message)
        assert self.subscriber.next_bytes() == message
        return time.monotonic() - began

    def latencies_s(self, seconds: float) -> list[float]:
        """Send twenty a second for a while."""
        found: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found.append(self.round_trip_s(len(found)))
            time.sleep(max(0.0, 0.05 - found[-1]))
        return found


def resident_bytes(cluster: LocalCluster) -> int:
    """Return the edge's resident memory."""
    status = Path(f"/proc/{cluster.pid('edge-0')}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@contextmanager
def ends_within(process: "subprocess.Popen[str]", seconds: float) -> Iterator[None]:
    """Kill a process after its deadline; its output is lost."""
    timer = threading.Timer(seconds + 30, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def attack(count: int, seconds: float) -> tuple[list[float], int, dict[str, list[int]]]:
    """Return latencies of the pair during an attack, growth of the edge's memory in bytes, and attack counts."""
    with local_cluster("--edges", "1", "--ws-port", "0", "--set", "edge.connect_timeout_s=2") as cluster:
        plain, websocket = cluster.port(0, "plain"), cluster.port(0, "ws")
        pair = Pair(plain)
        pair.latencies_s(0.5)
        before = resident_bytes(cluster)
        command = [sys.executable, "-m", CLIENTS, str(plain), str(websocket), str(count), str(seconds)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hostile,
            ends_within(hostile, 2 * seconds + LATE_S),
        ):
            assert hostile.stdout is not None and hostile.stdout.readline() == "started\n"
            latencies = pair.latencies_s(seconds)
            growth = resident_bytes(cluster) - before
            totals = json.loads(hostile.stdout.readline())
        pair.round_trip_s(0)  # still served when they have gone
    print(
        f"{count} hostile: p50 {statistics.median(latencies) * 1e3:.1f} ms,"
        f" p99 {sorted(latencies)[len(latencies) * 99 // 100] * 1e3:.1f} ms, memory +{growth / MIB:.0f} MiB; {totals}"
    )
    return latencies, growth, totals


def judge(count: int, latencies: list[float], growth: int, totals: dict[str, list[int]]) -> None:
    """Every kind came in, the forbidden ones were thrown out, and neither time nor memory ran away."""
    assert all(opened for opened, _ in totals.values()), totals
    assert all(totals[kind][1] for kind in THROWN_OUT), totals
    # Slow readers may have twice the output buffer's bound each, subscribers that never acknowledge 1 MiB of queue.
    slow = -(-count // len(KINDS))
    assert growth < 40 * MIB + slow * 4 * MIB, f"{growth / MIB:.0f} MiB"
    assert_within("the middle latency", statistics.median(latencies) * 1e3, 100)
    assert_within("99 of 100 latencies", sorted(latencies)[len(latencies) * 99 // 100] * 1e3, 1_000)


@timed
def test_honest_pair_among_some_hostile_clients() -> None:
    """100 hostile clients for a few seconds."""
    judge(104, *attack(104, 5.0))


@pytest.mark.slow
@timed
def test_honest_pair_among_a_thousand_hostile_clients() -> None:
    """1 000 for half a minute."""
    judge(1001, *attack(1001, 30.0))
