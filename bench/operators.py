"""Queries of an operator: 20 000 clients at 3 edges listed by the command line, and one client's detail.

    python -m bench.operators [--clients 20000] [--runs 5] [--shows 300]

Starts its own cluster, with the HTTP service. A list is timed for the operator, with the start of the
command, and again while an edge is stopped, within its lease. One client is queried 20 times a second, over open links,
as by the HTTP service, and with new links, as by a command: a node answers 200 queries a second.
The idle service is measured, too. Limits: 2 s for the list, 1.2 s more with a stopped edge; P99 of 50 ms and
2 nodes for one client; 80 MiB and 0.3 % of a core. Commands keep Python's bytecode, as an installed package has it:
each one compiles 800 sources otherwise (0.5 s).
"""

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from admin.links import open_links
from admin.queries import Cluster, client
from tests.e2e.local_cluster import LocalCluster, local_cluster
from wire.links.operator_access import find_access

EDGES = 3
AT_ONCE = 100  # connections that are being made
KEEP_ALIVE_S = 600
LEASE_S = 20  # a stopped edge is asked for so long
AGAIN_S = 1.0  # until it has processed pending input
PAUSE_S = 0.05  # between two questions about one client
IDLE_S = 20.0
PARTIAL = 3  # exit code


def connect_packet(name: str) -> bytes:
    """Return a CONNECT of MQTT 3.1.1 with a clean session."""
    identifier = name.encode()
    body = b"\x00\x04MQTT\x04\x02" + KEEP_ALIVE_S.to_bytes(2, "big") + len(identifier).to_bytes(2, "big") + identifier
    return b"\x10" + bytes((len(body),)) + body


async def hold(ports: list[int], count: int, ready: Callable[[], Awaitable[None]]) -> None:
    """Hold so many connections while ``ready`` runs."""
    gate = asyncio.Semaphore(AT_ONCE)
    held: list[asyncio.StreamWriter] = []

    async def one(number: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[number % len(ports)])
            writer.write(connect_packet(f"device-{number:05}"))
            assert (await reader.readexactly(4))[3] == 0
            held.append(writer)

    await asyncio.gather(*(one(number) for number in range(count)))
    await ready()
    for writer in held:
        writer.transport.abort()


def timed(*words: str, codes: tuple[int, ...] = (0,)) -> tuple[float, str]:
    """Return a command's duration and output."""
    began = time.perf_counter()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "stratamq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept)
    if done.returncode not in codes:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr}")
    return time.perf_counter() - began, done.stdout


def processor_s() -> float:
    """Return the CPU time of all ended commands."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lists(data: Path, count: int, runs: int) -> None:
    """Time whole lists."""
    start_s = statistics.median(timed("client", "list", "--show-api")[0] for _ in range(runs))
    for form in ("jsonl", "table"):
        took = []
        before = processor_s()
        for _ in range(runs):
            seconds, shown = timed("client", "list", "--all", "-o", form, "--data", str(data))
            assert len(shown.splitlines()) - (form == "table") == count, len(shown.splitlines())
            took.append(seconds)
        own_s = (processor_s() - before) / runs
        print(
            f"list of {count} clients at {EDGES} edges, -o {form}: {statistics.median(took):.2f} s (bar 2 s), least "
            f"{min(took):.2f} s; processor of the command {own_s:.2f} s; start {start_s:.2f} s; "
            f"load {os.getloadavg()[0]:.1f}"
        )


def stopped(cluster: LocalCluster, runs: int) -> None:
    """Time a short list while one edge is stopped, for less than its lease, so that it is asked."""
    words = ("listener", "list", "--data", str(cluster.data))
    whole = statistics.median(timed(*words)[0] for _ in range(runs))
    took = []
    for _ in range(runs):
        os.kill(cluster.pid("edge-1"), signal.SIGSTOP)
        try:
            took.append(timed(*words, codes=(PARTIAL,))[0])
        finally:
            os.kill(cluster.pid("edge-1"), signal.SIGCONT)
        time.sleep(AGAIN_S)
    more = statistics.median(took) - whole
    print(f"listener list: {whole:.2f} s; with a stopped edge {more:.2f} s more (bar 1.2 s)")


def service(cluster: LocalCluster) -> None:
    """Measure the idle HTTP service."""
    process = Path(f"/proc/{cluster.pid('admin')}")
    before = int((process / "schedstat").read_text().split()[0])
    time.sleep(IDLE_S)
    used = int((process / "schedstat").read_text().split()[0]) - before
    resident = next(line.split()[1] for line in (process / "status").read_text().splitlines() if "VmRSS" in line)
    print(
        f"HTTP service idle: {int(resident) / 1024:.1f} MiB (bar 80), {used / 1e7 / IDLE_S:.2f} % of a core (bar 0.3 %)"
    )


async def shows(data: Path, count: int, runs: int) -> None:
    """Time questions about one client."""
    access = find_access("", data)
    stand, anew = [], []
    nodes = 0
    async with open_links(access.cluster, access.contexts) as links:
        await links.read_map(access.routers)
        for number in range(runs):
            began = time.perf_counter()
            view = await client(Cluster(links), f"device-{number * 37 % count:05}")
            stand.append(time.perf_counter() - began)
            await trio.sleep(PAUSE_S)
            assert view.connection is not None and not view.partial
            nodes = max(nodes, len(view.asked))
    for number in range(runs // 10):
        began = time.perf_counter()
        async with open_links(access.cluster, access.contexts) as links:
            await links.read_map(access.routers)
            await client(Cluster(links), f"device-{number * 37 % count:05}")
        anew.append(time.perf_counter() - began)
        await trio.sleep(PAUSE_S)
    for how, took in (("over links that stand", stand), ("with the map and links made anew", anew)):
        p99 = 1000 * sorted(took)[int(len(took) * 0.99)]
        median = 1000 * statistics.median(took)
        print(f"client show {how}: {nodes} nodes, median {median:.1f} ms, P99 {p99:.1f} ms (bar 50 ms)")


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shows", type=int, default=300)
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, asked.clients + 1_000), hard))
    settings = ("--set", "edge.connect_rate_max=0", "--set", f"router.lease_s={LEASE_S}")
    with local_cluster("--edges", str(EDGES), "--admin-port", "0", *settings) as cluster:
        ports = [cluster.port(edge, "plain") for edge in range(EDGES)]

        async def ready() -> None:
            await asyncio.to_thread(_measure, cluster, asked)

        asyncio.run(hold(ports, asked.clients, ready))


def _measure(cluster: LocalCluster, asked: argparse.Namespace) -> None:
    cluster.wait_for(lambda: "admin" in cluster.state["nodes"].get("admin", {}).get("addresses", {}), "served")
    lists(cluster.data, asked.clients, asked.runs)
    stopped(cluster, asked.runs)
    trio.run(shows, cluster.data, asked.clients, asked.shows)
    service(cluster)


if __name__ == "__main__":
    main()
