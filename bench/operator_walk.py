"""One operator that walks all lists without pause, beside 10 000 msg/s: what that costs messages and processors.

    python -m bench.operator_walk [--runs 5] [--clients 2000]

All nodes run on CPU 0, as in ``bench/cluster.py``, the generator on CPU 1; so does the operator, with a nice value: it
is to ask, not to make the generator late. Besides the 100 pairs there are clients that have nothing to do, every second
one with a stored session, a subscription, and a retained message. Runs with and without the operator take turns on one
cluster. Bars: P99 1.15 times, processor per message of all nodes 1.05 times, by the medians.
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

from admin.gather import EVERY_ROW
from admin.links import open_links
from admin.queries import Cluster as Asked
from admin.queries import Wanted, walk
from bench.cluster import Cluster, machine, run_on
from bench.hot import ROWS, Row, build_mqload, make_certificate
from stratamq.cli.nouns import NOUNS
from tests.clients.packets import connect, publish, session_expiry, subscribe
from wire.links.operator_access import find_access

PACED = "10 000 msg/s over 100 pairs"
SETTLE_S = 12.0
NICE = 10
AT_ONCE = 50
EXPIRY_S = 3_600
ACKNOWLEDGED = b"\x40"


async def ask(data: Path) -> None:
    """Walk all lists until the end of this process; print rounds, rows, and nodes that did not answer."""
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
                        continue  # it wants the name of one
                    limit = 1_000 if noun.best else EVERY_ROW
                    wanted = Wanted(limit=limit, columns=noun.columns, best=noun.best, tier=noun.tier)
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
    """The operator, in a process of its own."""

    def __init__(self, data: Path) -> None:
        command = ["taskset", "-c", "1", "nice", "-n", str(NICE), sys.executable, "-m", "bench.operator_walk"]
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
    """Run with and without an operator in turns; return how many bars are missed."""
    p99: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    late: list[float] = []
    for number in range(2 * runs):
        walks = number % 4 in (1, 2)
        walker = Walker(cluster.data) if walks else None
        began, before = time.monotonic(), processors(cluster)
        report = run_on(cluster, mqload, row)
        used = {node: seconds - before[node] for node, seconds in processors(cluster).items()}
        said = "; " + ", ".join(f"{node} {1e6 * each / report['received']:.2f}" for node, each in used.items()) + " us"
        if walker is not None:
            rounds, rows, silent = walker.stop()
            said += f", {rounds / (time.monotonic() - began):.1f} rounds/s of {rows // max(1, rounds)} rows"
            said += f", {silent} did not answer" if silent else ""
        assert not report["exit"], report
        p99[walks].append(float(report["latency_us"]["p99"]))
        cpu[walks].append(float(report["broker_cpu_us_per_msg"]))
        late.append(float(report["generator_lateness_us"]["p99"]))
        print(
            f"{'with   ' if walks else 'without'}: P99 {p99[walks][-1]:.0f} us, {cpu[walks][-1]:.2f} us a message,"
            f" generator late P99 {late[-1]:.0f} us{said}",
            flush=True,
        )
    times = [statistics.median(each[True]) / statistics.median(each[False]) for each in (p99, cpu)]
    print(f"an operator that walks all lists: P99 {times[0]:.2f} times (bar 1.15), processor {times[1]:.2f} (bar 1.05)")
    return (times[0] > 1.15) + (times[1] > 1.05)


def main() -> int:
    """Measure; return how many bars are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
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
