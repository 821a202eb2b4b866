"""One operator that reads all lists continuously, beside 10 000 msg/s: the cost to messages and CPUs.

    python -m bench.operator_walk [--runs 9] [--clients 2000]

All nodes run on CPU 0, as in ``bench/cluster.py``, the generator on CPU 1 with priority if
permitted (SCHED_FIFO). The operator runs on idle time of CPU 1 (SCHED_IDLE): its queries must not delay
the generator. Besides the 100 pairs there are idle clients, every second one with a stored
session, a subscription, and a retained message. A run with the operator and one without make a pair on one cluster, in
alternating order. Limits: P99 1.15 times, CPU per message of all nodes 1.05 times, by the medians of the
pairs. A pair has no valid P99 if the generator was late in one of its runs: its own lateness is part of every
latency. Without three valid pairs the P99 is undecided.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from admin.links import open_links
from admin.queries import Cluster as Asked
from admin.queries import ListQuery, walk
from admin.scatter_gather import EVERY_ROW
from bench.cluster import Cluster, machine, run_on
from bench.hot import ROWS, Row, build_mqload, make_certificate
from stratamq.cli.nouns import NOUNS
from tests.clients.packets import connect, publish, session_expiry, subscribe
from wire.links.operator_access import find_access

PACED = "10 000 msg/s over 100 pairs"
SETTLE_S = 12.0
LATE_US = 500  # P99 of the generator's lateness: a fifth of the latency of a message at most
PAIRS_MIN = 3
AT_ONCE = 50
EXPIRY_S = 3_600
ACKNOWLEDGED = b"\x40"


async def ask(data: Path) -> None:
    """Walk all lists until the end of this process; print rounds, rows, and nodes that did not answer."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    access = find_access("", data)
    rounds = rows = silent = 0
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with open_links(access.cluster, access.contexts) as links, trio.open_nursery() as nursery:
            await links.read_map(access.routers)

            async def ended() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(ended)
            while True:
                for noun in NOUNS.values():
                    if noun.what == "trace":
                        continue  # it needs the name of one
                    limit = 1_000 if noun.best else EVERY_ROW
                    wanted = ListQuery(limit=limit, columns=noun.columns, best=noun.best, tier=noun.tier)
                    found = await walk(Asked(links), noun.what, wanted)
                    rows, silent = rows + len(found.rows), silent + len(found.partial)
                rounds += 1
    print(f"{rounds} {rows} {silent}")


async def hold(port: int, count: int, ready: Any) -> None:
    """Hold idle clients while ``ready`` runs in a thread."""
    gate = asyncio.Semaphore(AT_ONCE)
    held: list[asyncio.StreamWriter] = []

    async def one(number: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stored = number % 2 == 0
            properties = session_expiry(EXPIRY_S) if stored else b""
            name = b"idle-%d" % number
            writer.write(connect(name, 5, properties))
            await _packet(reader, 0x20)
            if stored:
                writer.write(subscribe(b"idle/%d/#" % number, 1, 5))
                await _packet(reader, 0x90)
                writer.write(publish(b"kept/%d" % number, b"value", 1, 1, 5, retain=True))
                await _packet(reader, 0x40)
            held.append(writer)

    await asyncio.gather(*(one(number) for number in range(count)))
    await asyncio.to_thread(ready)
    for writer in held:
        writer.transport.abort()


async def _packet(reader: asyncio.StreamReader, first: int) -> None:
    head = await reader.readexactly(2)
    assert head[0] == first and head[1] < 128, head
    await reader.readexactly(head[1])


class Walker:
    """The operator, in its own process."""

    def __init__(self, data: Path) -> None:
        command = ["taskset", "-c", "1", sys.executable, "-m", "bench.operator_walk"]
        self._process = subprocess.Popen([*command, "--ask", str(data)], stdout=subprocess.PIPE, text=True)
        time.sleep(2.0)  # it imports

    def stop(self) -> tuple[int, int, int]:
        """End it; return rounds, rows and nodes that did not answer."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=20)
        rounds, rows, silent = map(int, out.split())
        return rounds, rows, silent


def processors(cluster: Cluster) -> dict[str, float]:
    """Return the processor time of each node, all threads, s."""
    found = {}
    for node, pid in cluster.pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[node] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def compare(cluster: Cluster, mqload: Path, row: Row, runs: int) -> int:
    """Run with and without an operator in pairs; return how many bars are missed."""
    p99: list[float] = []
    cpu: list[float] = []
    for number in range(runs):
        pair = {
            walks: measured(cluster, mqload, row, walks=walks) for walks in ((False, True), (True, False))[number % 2]
        }
        (p99_without, cpu_without, late_without), (p99_with, cpu_with, late_with) = pair[False], pair[True]
        cpu.append(cpu_with / cpu_without)
        if max(late_without, late_with) <= LATE_US:
            p99.append(p99_with / p99_without)
        print(f"pair {number + 1}: P99 {p99_with / p99_without:.2f} times, processor {cpu[-1]:.3f}", flush=True)
    print(f"an operator that walks all lists, {runs} pairs, load {os.getloadavg()[0]:.1f}:")
    print(f"processor per message {statistics.median(cpu):.3f} times (bar 1.05), {min(cpu):.3f} to {max(cpu):.3f}")
    missed = statistics.median(cpu) > 1.05
    if len(p99) < PAIRS_MIN:
        print(f"P99 not decided: the generator itself was late by more than {LATE_US} us in {runs - len(p99)} pairs")
        return missed
    print(f"P99 {statistics.median(p99):.2f} times (bar 1.15), {min(p99):.2f} to {max(p99):.2f}, by {len(p99)} pairs")
    return missed + (statistics.median(p99) > 1.15)


def measured(cluster: Cluster, mqload: Path, row: Row, *, walks: bool) -> tuple[float, float, float]:
    """Run once; return P99, processor per message and the generator's lateness, us."""
    walker = Walker(cluster.data) if walks else None
    began, before = time.monotonic(), processors(cluster)
    report = run_on(cluster, mqload, row, ahead=True)
    used = {node: seconds - before[node] for node, seconds in processors(cluster).items()}
    summary = "; " + ", ".join(f"{node} {1e6 * each / report['received']:.2f}" for node, each in used.items()) + " us"
    if walker is not None:
        rounds, rows, silent = walker.stop()
        summary += f", {rounds / (time.monotonic() - began):.1f} rounds/s of {rows // max(1, rounds)} rows"
        summary += f", {silent} did not answer" if silent else ""
    assert not report["exit"], report
    p99, cpu = float(report["latency_us"]["p99"]), float(report["broker_cpu_us_per_msg"])
    late = float(report["generator_lateness_us"]["p99"])
    print(
        f"{'with   ' if walks else 'without'}: P99 {p99:.0f} us, {cpu:.2f} us a message,"
        f" generator late P99 {late:.0f} us{summary}",
        flush=True,
    )
    return p99, cpu, late


def main() -> int:
    """Measure; return how many bars are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--ask", type=Path, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ask is not None:
        trio.run(ask, asked.ask)
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, asked.clients + 1_000), hard))
    os.sched_setaffinity(0, {1})
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    missed = 0
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        make_certificate(folder)
        mqload = build_mqload(folder)
        cluster = Cluster(folder, 1)
        stack.callback(cluster.stop)
        row = next(each for each in ROWS if each.name == PACED)

        def ready() -> None:
            nonlocal missed
            time.sleep(SETTLE_S)
            missed = compare(cluster, mqload, row, asked.runs)

        asyncio.run(hold(cluster.ports("plain")[0], asked.clients, ready))
    return missed


if __name__ == "__main__":
    sys.exit(main())
